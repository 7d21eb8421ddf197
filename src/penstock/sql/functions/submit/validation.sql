-- What can be wrong with a job that is submitted, and the message for each fault.

-- The fault of a job, or null. p_kind: the row of its kind; p_own: the caller has an account key.
-- Inlined into its callers, or a bulk submit would take twice as long.
create or replace function penstock._job_fault(
  p_job penstock.new_job, p_kind penstock.kind, p_now timestamptz, p_setting penstock.setting,
  p_own boolean
) returns text
language sql stable parallel safe
as $$
  select case
    when p_job.kind is null then 'kind_missing'
    when p_kind.id is null then 'unknown_kind'
    when jsonb_typeof(p_job.payload) is distinct from 'object' then 'invalid_payload'
    when p_job.priority not between -1000 and 1000 then 'priority'
    when p_job.delay < interval '0' or p_job.delay > interval '3650 days' then 'delay_seconds'
    when not isfinite(p_job.run_at) or p_job.run_at > p_now + interval '3650 days' then 'run_at'
    when p_job.run_at is not null and p_job.delay is not null then 'run_at_and_delay'
    when p_job.max_attempts not between 1 and 1000 then 'max_attempts'
    when p_job.timeout <= interval '0' or p_job.timeout > interval '3650 days'
      then 'timeout_seconds'
    when p_job.expires <= interval '0' or p_job.expires > interval '3650 days'
      then 'expires_seconds'
    -- An index takes no longer values, so values that a kind reads from the payload count too.
    when length(coalesce(p_job.dedupe_key, p_job.payload ->> p_kind.dedupe_field))
      not between 1 and 500 then 'dedupe_key'
    when length(coalesce(p_job.topic, p_job.payload ->> p_kind.topic_field)) not between 1 and 500
      then 'topic'
    when length(coalesce(p_job.account, p_job.payload ->> p_kind.account_field))
      not between 1 and 200 then 'account'
    when p_job.price not between 0 and 1000000000000 then 'price'
    when p_job.price is null and p_kind.price is not null
      and penstock._price_of(p_kind.price, p_job.payload) is null then 'price_of'
    when (p_job.price > 0 or p_kind.price is not null)
      and coalesce(p_job.price, penstock._price_of(p_kind.price, p_job.payload)) > 0
      and coalesce(p_job.account, p_job.payload ->> p_kind.account_field,
        p_kind.account_fixed) is null then 'account_required'
    when not penstock._is_webhook_url(p_job.webhook_url) then 'webhook_url'
    -- An account key may not submit a job whose price the customer writes.
    when p_own and p_kind.price ? 'field' then 'own_price' -- guard: own price
    -- With such a key a job belongs to the key's account, but the handler works with the name in
    -- the payload: the name of another customer would give access to that customer's data.
    when p_own and p_job.payload ->> p_kind.account_field <> p_job.account -- guard: other account
      then 'other_account'
    when p_kind.split_field is not null and p_job.dedupe_key is not null then 'split_key'
    when p_kind.split_field is not null
      and penstock._count_of(p_job.payload, p_kind.split_field) is null then 'split_of'
    when p_kind.split_field is not null
      and penstock._count_of(p_job.payload, p_kind.split_field) > p_kind.split_most then 'split'
    -- The test for null first: an unknown left side would not keep the function from being called.
    when p_job.metadata is not null and (
      jsonb_typeof(p_job.metadata) <> 'object' or penstock._prints_too_long(p_job.metadata)
      or octet_length(p_job.metadata::text) > 16384
      or (octet_length(p_job.metadata::text) > 2 * p_setting.payload_max_depth
        and penstock._payload_fault(p_job.metadata, p_setting) is not null)) then 'metadata'
    when penstock._prints_too_long(p_job.payload) then 'payload_number_too_long'
    when octet_length(p_job.payload::text) > 2 * p_setting.payload_max_depth
      then penstock._payload_fault(p_job.payload, p_setting)
    end
$$;


-- The fault of each of many jobs, by ordinal; null: none. Inlined.
create or replace function penstock._job_faults(
  p_jobs penstock.new_job[], p_now timestamptz, p_own boolean
) returns table (ordinal bigint, fault text)
language sql stable
as $$
  select j.ordinal, penstock._job_fault(j, k, p_now, s, p_own)
  from unnest(p_jobs) j cross join penstock.setting s
  left join penstock.kind k on k.name = j.kind
$$;

-- Refuses the first of these jobs that has a fault.
create or replace function penstock._refuse_job_faults(
  p_jobs penstock.new_job[], p_now timestamptz, p_own boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_fault text;
  v_ordinal bigint;
  v_job penstock.new_job;
  v_kind penstock.kind;
  v_setting penstock.setting;
  v_odd record;
  v_refusal record;
begin
  select f.fault, f.ordinal into v_fault, v_ordinal
  from penstock._job_faults(p_jobs, p_now, p_own) f
  where f.fault is not null
  order by f.ordinal limit 1;
  if not found then
    return;
  end if;
  v_job := p_jobs[v_ordinal];
  select * into v_kind from penstock.kind k where k.name = v_job.kind;
  select * into v_setting from penstock.setting;
  select * into v_odd from penstock._price_fault(v_kind.price, v_job.payload);
  select r.* into v_refusal from (values
    ('kind_missing', 422, 'invalid_job', 'kind', 'kind is required', null),
    ('unknown_kind', 404, 'unknown_kind', 'kind', format('there is no job kind %s', v_job.kind),
     'A kind is declared when a worker with its app or its penstock.toml starts for the first '
     'time. Check the spelling of the name.'),
    ('invalid_payload', 422, 'invalid_payload', 'payload', 'payload must be a JSON object', null),
    ('payload_too_large', 413, 'payload_too_large', 'payload',
     format('payload is larger than %s bytes', v_setting.payload_max_bytes),
     'Upload large data and refer to it.'),
    ('payload_too_deep', 422, 'invalid_payload', 'payload',
     format('payload is nested deeper than %s levels', v_setting.payload_max_depth), null),
    ('payload_too_many_keys', 422, 'invalid_payload', 'payload',
     format('payload has more than %s keys', v_setting.payload_max_keys), null),
    ('payload_number_too_long', 422, 'invalid_payload', 'payload',
     format('a number in payload has more than %s digits', v_setting.number_max_digits), null),
    ('priority', 422, 'invalid_job', 'priority',
     'priority must be from -1000 to 1000, lower runs first', null),
    ('delay_seconds', 422, 'invalid_job', 'delay_seconds',
     'delay_seconds must be 0 or more and at most ten years', null),
    ('timeout_seconds', 422, 'invalid_job', 'timeout_seconds',
     'timeout_seconds must be more than 0 and at most ten years', null),
    ('expires_seconds', 422, 'invalid_job', 'expires_seconds',
     'expires_seconds must be more than 0 and at most ten years', null),
    ('run_at', 422, 'invalid_job', 'run_at', 'run_at must be a moment within ten years', null),
    ('run_at_and_delay', 422, 'invalid_job', 'run_at',
     'give run_at or delay_seconds, not both', null),
    ('max_attempts', 422, 'invalid_job', 'max_attempts',
     'max_attempts must be from 1 to 1000', null),
    ('dedupe_key', 422, 'invalid_job', 'dedupe_key',
     'dedupe_key must be a text of 1 to 500 characters', null),
    ('topic', 422, 'invalid_job', 'topic', 'topic must be a text of 1 to 500 characters', null),
    ('account', 422, 'invalid_job', 'account',
     'account must be a text of 1 to 200 characters', null),
    ('metadata', 422, 'invalid_job', 'metadata',
     'metadata must be a JSON object of at most 16384 bytes, with no deeper nesting and no '
     'longer numbers than a payload may have', null),
    ('price', 422, 'invalid_job', 'price',
     'price must be a whole number from 0 to 1000000000000', null),
    ('price_of', 422, 'invalid_payload', v_odd.field, v_odd.message, null),
    ('account_required', 422, 'account_required', 'account',
     format('a job of kind %s costs credits, so it needs an account', v_job.kind), null),
    ('webhook_url', 422, 'invalid_job', 'webhook_url',
     'webhook_url must be an address of at most 2000 characters that begins with https:// and '
     'holds no user or password', null),
    ('own_price', 403, 'not_allowed', 'kind',
     format('the payload of a job of kind %s sets its price, so an account key may not submit it',
            v_job.kind), 'Submit it with a key of kind app.'),
    ('other_account', 403, 'not_allowed', 'payload.' || v_kind.account_field,
     format('%s names another account than %s, to which the key belongs', v_kind.account_field,
            v_job.account), 'Send the account of the key, or submit with a key of kind app.'),
    ('split_key', 422, 'invalid_job', 'dedupe_key',
     format('a job of kind %s may be split into several, which cannot share a dedupe_key',
            v_job.kind),
     'Use an idempotency key to make a repeated submit safe.'),
    ('split_of', 422, 'invalid_payload', v_kind.split_field,
     format('%s must be a whole number from 1 to 1000000, or a list of one or more',
            v_kind.split_field), null),
    ('split', 422, 'invalid_payload', v_kind.split_field,
     format('%s may be at most %s in a job that is submitted with others', v_kind.split_field,
            v_kind.split_most), 'Submit the job alone: it is then split.')
  ) r (fault, status, code, field, message, hint)
  where r.fault = v_fault;
  perform penstock._refuse(v_refusal.status, v_refusal.code, v_refusal.message, v_refusal.field,
    jsonb_build_object('index', v_ordinal - 1) || case v_refusal.code
      when 'unknown_kind' then jsonb_build_object('kind', v_job.kind)
      when 'payload_too_large' then jsonb_build_object('max_bytes', v_setting.payload_max_bytes)
      else '{}' end,
    v_refusal.hint);
end
$$;
