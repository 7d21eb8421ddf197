-- What can be wrong with a job that is asked for, and the sentence for each.

-- What is wrong with a job, or null. p_known: its kind's row; p_latest: the last moment it may be
-- due. Inlined where it is called, or a bulk submit would take twice as long.
create or replace function penstock._job_fault(
  p_kind text, p_known penstock.kind, p_payload jsonb, p_account text, p_dedupe_key text,
  p_topic text, p_priority integer, p_run_at timestamptz, p_delay interval,
  p_max_attempts integer, p_timeout interval, p_expires interval, p_metadata jsonb,
  p_price bigint, p_latest timestamptz, p_setting penstock.setting
) returns text
language sql stable parallel safe
as $$
  select case
    when p_kind is null then 'kind_missing'
    when p_known.id is null then 'unknown_kind'
    when jsonb_typeof(p_payload) is distinct from 'object' then 'invalid_payload'
    when p_priority not between -1000 and 1000 then 'priority'
    when p_delay < interval '0' or p_delay > interval '3650 days' then 'delay_seconds'
    when not isfinite(p_run_at) or p_run_at > p_latest then 'run_at'
    when p_run_at is not null and p_delay is not null then 'run_at_and_delay'
    when p_max_attempts not between 1 and 1000 then 'max_attempts'
    when p_timeout <= interval '0' or p_timeout > interval '3650 days' then 'timeout_seconds'
    when p_expires <= interval '0' or p_expires > interval '3650 days' then 'expires_seconds'
    -- An index takes no longer ones, so those that a kind reads from the payload count too.
    when length(coalesce(p_dedupe_key, p_payload ->> p_known.dedupe_field)) not between 1 and 500
      then 'dedupe_key'
    when length(coalesce(p_topic, p_payload ->> p_known.topic_field)) not between 1 and 500
      then 'topic'
    when length(coalesce(p_account, p_payload ->> p_known.account_field)) not between 1 and 200
      then 'account'
    when p_price not between 0 and 1000000000000 then 'price'
    when p_price is null and p_known.price is not null
      and penstock._price_of(p_known.price, p_payload) is null then 'price_of'
    when (p_price > 0 or p_known.price is not null)
      and coalesce(p_price, penstock._price_of(p_known.price, p_payload)) > 0
      and coalesce(p_account, p_payload ->> p_known.account_field, p_known.account_fixed) is null
      then 'account_required'
    when p_known.split_field is not null and p_dedupe_key is not null then 'split_key'
    when p_known.split_field is not null
      and penstock._count_of(p_payload, p_known.split_field) is null then 'split_of'
    when p_known.split_field is not null
      and penstock._count_of(p_payload, p_known.split_field) > p_known.split_most then 'split'
    -- Null first: an unknown left side would not keep the function from being called.
    when p_metadata is not null and (
      jsonb_typeof(p_metadata) <> 'object' or penstock._prints_for_ever(p_metadata)
      or octet_length(p_metadata::text) > 16384
      or (octet_length(p_metadata::text) > 2 * p_setting.payload_max_depth
        and penstock._payload_fault(p_metadata, p_setting) is not null)) then 'metadata'
    when penstock._prints_for_ever(p_payload) then 'payload_number_too_long'
    when octet_length(p_payload::text) > 2 * p_setting.payload_max_depth
      then penstock._payload_fault(p_payload, p_setting)
    end
$$;

-- What is wrong with each of many, by ordinal; null where nothing is. Inlined.
create or replace function penstock._faults(
  p_kinds text[], p_payloads jsonb[], p_accounts text[], p_dedupe_keys text[], p_topics text[],
  p_priorities integer[], p_run_ats timestamptz[], p_delays interval[], p_max_attempts integer[],
  p_timeouts interval[], p_expires interval[], p_metadata jsonb[], p_prices bigint[],
  p_latest timestamptz
) returns table (ordinal bigint, fault text, kind text, payload jsonb)
language sql stable
as $$
  select x.ordinal, penstock._job_fault(x.kind, k, x.payload, x.account, x.dedupe_key, x.topic,
    x.priority, x.run_at, x.delay, x.max_attempts, x.timeout, x.expires, x.metadata, x.price,
    p_latest, s), x.kind, x.payload
  from unnest(p_kinds, p_payloads, p_accounts, p_dedupe_keys, p_topics, p_priorities, p_run_ats,
              p_delays, p_max_attempts, p_timeouts, p_expires, p_metadata, p_prices)
    with ordinality x (kind, payload, account, dedupe_key, topic, priority, run_at, delay,
      max_attempts, timeout, expires, metadata, price, ordinal)
  cross join penstock.setting s
  left join penstock.kind k on k.name = x.kind
$$;

create or replace function penstock._refuse_fault(
  p_fault text, p_kind text, p_index bigint, p_setting penstock.setting, p_payload jsonb
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_where jsonb := jsonb_build_object('index', p_index);
  v_kind penstock.kind;
  v_odd record;
begin
  select * into v_kind from penstock.kind k where k.name = p_kind;
  case p_fault
    when 'kind_missing' then
      perform penstock._refuse(422, 'invalid_job', 'kind is required', 'kind', v_where);
    when 'unknown_kind' then
      perform penstock._refuse(404, 'unknown_kind',
        format('there is no job kind %s', p_kind), 'kind',
        v_where || jsonb_build_object('kind', p_kind),
        'Kinds are declared when a worker of the app or the penstock.toml has started once; is the '
        'name spelt as there?');
    when 'invalid_payload' then
      perform penstock._refuse(422, 'invalid_payload', 'payload must be a JSON object', 'payload',
        v_where);
    when 'payload_too_large' then
      perform penstock._refuse(413, 'payload_too_large',
        format('payload is larger than %s bytes', p_setting.payload_max_bytes), 'payload',
        v_where || jsonb_build_object('max_bytes', p_setting.payload_max_bytes),
        'Upload large data and refer to it.');
    when 'payload_too_deep' then
      perform penstock._refuse(422, 'invalid_payload',
        format('payload is nested deeper than %s levels', p_setting.payload_max_depth),
        'payload', v_where);
    when 'payload_too_many_keys' then
      perform penstock._refuse(422, 'invalid_payload',
        format('payload has more than %s keys', p_setting.payload_max_keys), 'payload', v_where);
    when 'payload_number_too_long' then
      perform penstock._refuse(422, 'invalid_payload',
        format('a number in payload has more than %s digits', p_setting.number_max_digits),
        'payload', v_where);
    when 'priority' then
      perform penstock._refuse(422, 'invalid_job',
        'priority must be from -1000 to 1000, lower runs first', 'priority', v_where);
    when 'delay_seconds', 'timeout_seconds', 'expires_seconds' then
      perform penstock._refuse(422, 'invalid_job',
        format('%s must be %s and at most ten years', p_fault,
               case p_fault when 'delay_seconds' then '0 or more' else 'more than 0' end),
        p_fault, v_where);
    when 'run_at' then
      perform penstock._refuse(422, 'invalid_job',
        'run_at must be a moment within ten years', 'run_at', v_where);
    when 'run_at_and_delay' then
      perform penstock._refuse(422, 'invalid_job',
        'give run_at or delay_seconds, not both', 'run_at', v_where);
    when 'max_attempts' then
      perform penstock._refuse(422, 'invalid_job', 'max_attempts must be from 1 to 1000',
        'max_attempts', v_where);
    when 'dedupe_key', 'topic' then
      perform penstock._refuse(422, 'invalid_job',
        format('%s must be a text of 1 to 500 characters', p_fault), p_fault, v_where);
    when 'account' then
      perform penstock._refuse(422, 'invalid_job',
        'account must be a text of 1 to 200 characters', 'account', v_where);
    when 'metadata' then
      perform penstock._refuse(422, 'invalid_job',
        'metadata must be a JSON object of at most 16384 bytes, with no deeper nesting and no '
        'longer numbers than a payload may have', 'metadata', v_where);
    when 'price' then
      perform penstock._refuse(422, 'invalid_job',
        'price must be a whole number from 0 to 1000000000000', 'price', v_where);
    when 'price_of' then
      select * into v_odd from penstock._price_fault(v_kind.price, p_payload);
      perform penstock._refuse(422, 'invalid_payload', v_odd.message, v_odd.field, v_where);
    when 'account_required' then
      perform penstock._refuse(422, 'account_required',
        format('a job of kind %s costs credits: say whose, in account', p_kind), 'account',
        v_where);
    when 'split_key' then
      perform penstock._refuse(422, 'invalid_job',
        format('a job of kind %s may become several, which cannot share a dedupe_key', p_kind),
        'dedupe_key', v_where, 'Use an idempotency key to make a repeated submit safe.');
    when 'split_of' then
      perform penstock._refuse(422, 'invalid_payload',
        format('%s must be a whole number from 1 to 1000000, or a list of one or more',
               v_kind.split_field), v_kind.split_field, v_where);
    when 'split' then
      perform penstock._refuse(422, 'invalid_payload',
        format('%s may be at most %s in a job that is submitted with others', v_kind.split_field,
               v_kind.split_most), v_kind.split_field, v_where,
        'Submit it alone: then it is split.');
  end case;
end
$$;
