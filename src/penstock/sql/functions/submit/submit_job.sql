-- Submitting from plain SQL: one job, or an array of them, in any language's own transaction.

-- Who has only the database cannot evaluate what an app declared as a function of its own code.
-- p_priced: of which of these a price is said.
create or replace function penstock.refuse_computed(p_kinds text[], p_priced boolean[])
returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_bad record;
begin
  select u.kind, u.ordinal - 1 as index, c.options[1] as option into v_bad
  from unnest(p_kinds, p_priced) with ordinality u (kind, priced, ordinal)
  join penstock.kind k on k.name = u.kind
  cross join lateral (
    select array_remove(k.computed, case when u.priced then 'price' end)
  ) c (options)
  where c.options <> '{}'
  order by u.ordinal limit 1;
  if found then
    perform penstock._refuse(422, 'kind_needs_code',
      format('%s of job kind %s is a function in the app''s code', v_bad.option, v_bad.kind),
      v_bad.option, jsonb_build_object('index', v_bad.index),
      'Submit it through the app, or declare it as a field or a value.');
  end if;
end
$$;

create or replace function penstock._refuse_computed(p_kind text, p_priced boolean)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  -- Nearly none has any.
  if exists (select from penstock.kind k where k.name = p_kind and k.computed <> '{}') then
    perform penstock.refuse_computed(array[p_kind], array[p_priced]);
  end if;
end
$$;

-- As submit_one, and answers the job as read_job does. p_computed: the caller has evaluated what
-- the app declared as functions of its code. p_own: with an account's own key, to
-- which a live twin is shown as to any customer.
create or replace function penstock.accept_job(
  p_kind text, p_payload jsonb, p_account text default null, p_dedupe_key text default null,
  p_topic text default null, p_priority integer default null, p_run_at timestamptz default null,
  p_delay interval default null, p_max_attempts integer default null,
  p_timeout interval default null, p_expires interval default null,
  p_metadata jsonb default null, p_key text default null, p_scope text default '',
  p_wake text default null, p_price bigint default null, p_webhook_url text default null,
  p_computed boolean default false, p_own boolean default false
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_one record;
  v_job jsonb;
begin
  if not p_computed then
    perform penstock._refuse_computed(p_kind, p_price is not null);
  end if;
  select * into v_one from penstock.submit_one(p_kind, p_payload, p_account, p_dedupe_key,
    p_topic, p_priority, p_run_at, p_delay, p_max_attempts, p_timeout, p_expires, p_metadata,
    p_key, p_scope, p_wake, p_price, p_webhook_url, p_own => p_own);
  v_job := penstock._read_job(v_one.id, null);
  return case when p_own then penstock._public_job(v_job) else v_job end
    || jsonb_build_object('deduplicated', v_one.deduplicated, 'replayed', v_one.replayed,
      'position', v_one.place, 'eta_seconds', v_one.eta_seconds,
      'waiting_for', v_one.waiting_for, 'balance', v_one.balance)
    -- A request that was split: all the jobs it became.
    || case when v_one.ids is not null then jsonb_build_object('jobs', v_one.ids) else '{}' end;
end
$$;

-- For any language, inside its own transaction. Answers the job as read_job does.
create or replace function penstock.submit_job(
  kind text, payload jsonb, account text default null, priority integer default null,
  delay_seconds double precision default null, run_at timestamptz default null,
  dedupe_key text default null, topic text default null, max_attempts integer default null,
  timeout_seconds double precision default null, expires_seconds double precision default null,
  metadata jsonb default null, idempotency_key text default null, price bigint default null,
  webhook_url text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  v_job jsonb;
begin
  v_job := penstock.accept_job(
    submit_job.kind, submit_job.payload, submit_job.account, submit_job.dedupe_key,
    submit_job.topic, submit_job.priority, submit_job.run_at,
    penstock._seconds(submit_job.delay_seconds, 'delay_seconds'), submit_job.max_attempts,
    penstock._seconds(submit_job.timeout_seconds, 'timeout_seconds'),
    penstock._seconds(submit_job.expires_seconds, 'expires_seconds'), submit_job.metadata,
    submit_job.idempotency_key, 'sql:' || session_user, null, submit_job.price,
    submit_job.webhook_url);
  perform pg_notify('penstock_job', v_job ->> 'queue')
  where v_job ->> 'status' = 'queued'
    and not (v_job ->> 'deduplicated')::boolean and not (v_job ->> 'replayed')::boolean;
  return v_job;
end
$$;

create or replace function penstock._seconds(p_seconds double precision, p_field text)
returns interval
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_seconds = 'NaN' or abs(p_seconds) > 3650 * 86400.0 then
    perform penstock._refuse(422, 'invalid_job',
      format('%s must be a number of seconds of at most ten years', p_field), p_field);
  end if;
  return make_interval(secs => p_seconds);
end
$$;

create or replace function penstock._moment(p_text text, p_field text) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  return p_text::timestamptz;
exception when data_exception then
  perform penstock._refuse(422, 'invalid_job',
    format('%s must be a moment such as 2030-01-31T12:00:00Z', p_field), p_field);
end
$$;

-- Refuses what is no job at all: a field that does not exist, or is not of its type.
create or replace function penstock._refuse_odd_item(p_item jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_field text;
begin
  if jsonb_typeof(p_item) is distinct from 'object' then
    perform penstock._refuse(422, 'invalid_job', 'a job must be a JSON object', 'jobs');
  end if;
  perform penstock._refuse_unknown_options(p_item, array['kind', 'payload', 'account', 'priority',
    'delay_seconds', 'run_at', 'dedupe_key', 'topic', 'max_attempts', 'timeout_seconds',
    'expires_seconds', 'metadata', 'price', 'webhook_url']);
  select f into v_field
  from unnest(array['kind', 'account', 'dedupe_key', 'topic', 'run_at', 'webhook_url']) f
  where jsonb_typeof(p_item -> f) not in ('string', 'null') limit 1;
  if found then
    perform penstock._refuse(422, 'invalid_job', format('%s must be a text', v_field), v_field);
  end if;
  perform penstock._option_integer(p_item, 'priority', -1000, 1000);
  perform penstock._option_integer(p_item, 'max_attempts', 1, 1000);
  perform penstock._option_seconds(p_item, 'delay_seconds', true);
  perform penstock._option_seconds(p_item, 'timeout_seconds');
  perform penstock._option_seconds(p_item, 'expires_seconds');
  perform penstock._moment(p_item ->> 'run_at', 'run_at');
  if penstock._whole(p_item -> 'price', 0, 1000000000000) is null
    and p_item ->> 'price' is not null
  then
    perform penstock._refuse(422, 'invalid_job',
      'price must be a whole number from 0 to 1000000000000', 'price');
  end if;
  perform penstock._refuse_computed(p_item ->> 'kind', p_item ->> 'price' is not null);
end
$$;

-- An array of objects with the arguments of submit_job as keys; all are accepted, or none. Without
-- their places, which would take the square of their number.
create or replace function penstock.submit_jobs(jobs jsonb) returns setof jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_item jsonb;
  v_index bigint;
  v_told text;
  v_detail jsonb;
  v_all record;
  v_ids uuid[];
  v_twins boolean[];
begin
  if jsonb_typeof(jobs) is distinct from 'array' or jsonb_array_length(jobs) = 0 then
    perform penstock._refuse(422, 'invalid_job', 'jobs must be an array of one job or more',
      'jobs');
  end if;
  begin
    for v_item, v_index in
      select e, o - 1 from jsonb_array_elements(jobs) with ordinality t (e, o)
    loop
      perform penstock._refuse_odd_item(v_item);
    end loop;
  exception when sqlstate 'PS422' then
    -- As submit_job would say it, and of which job.
    get stacked diagnostics v_told = message_text, v_detail = pg_exception_detail;
    perform penstock._refuse(422, replace(v_detail ->> 'code', 'invalid_option', 'invalid_job'),
      v_told, v_detail ->> 'field', jsonb_build_object('index', v_index));
  end;
  select array_agg(e ->> 'kind' order by o) as kinds,
    array_agg(e -> 'payload' order by o) as payloads,
    array_agg(e ->> 'account' order by o) as accounts,
    array_agg(e ->> 'dedupe_key' order by o) as dedupe_keys,
    array_agg(e ->> 'topic' order by o) as topics,
    array_agg((e ->> 'priority')::numeric::integer order by o) as priorities,
    array_agg(penstock._moment(e ->> 'run_at', 'run_at') order by o) as run_ats,
    array_agg(make_interval(secs => (e ->> 'delay_seconds')::double precision) order by o)
      as delays,
    array_agg((e ->> 'max_attempts')::numeric::integer order by o) as max_attempts,
    array_agg(make_interval(secs => (e ->> 'timeout_seconds')::double precision) order by o)
      as timeouts,
    array_agg(make_interval(secs => (e ->> 'expires_seconds')::double precision) order by o)
      as expires,
    array_agg(case when e ->> 'metadata' is not null then e -> 'metadata' end order by o)
      as metadata,
    array_agg((e ->> 'price')::numeric::bigint order by o) as prices,
    bool_or(e ->> 'price' is not null) as priced,
    array_agg(e ->> 'webhook_url' order by o) as webhook_urls,
    bool_or(e ->> 'webhook_url' is not null) as hooked
  into v_all
  from jsonb_array_elements(jobs) with ordinality i (e, o);

  select array_agg(s.id order by s.ordinal), array_agg(s.deduplicated order by s.ordinal)
  into v_ids, v_twins
  from penstock.submit_many(v_all.kinds, v_all.payloads, v_all.accounts, v_all.dedupe_keys,
    v_all.topics, v_all.priorities, v_all.run_ats, v_all.delays, v_all.max_attempts,
    v_all.timeouts, v_all.expires, v_all.metadata,
    case when v_all.priced then v_all.prices end, p_batched => true,
    p_webhook_urls => case when v_all.hooked then v_all.webhook_urls end) s;
  perform pg_notify('penstock_job', n.name) from (
    select distinct q.name from unnest(v_ids) u (id) join penstock.job j on j.id = u.id
    join penstock.queue q on q.id = j.queue_id where j.status = 'queued'
  ) n;
  return query
  select penstock._read_job(u.id, null) || jsonb_build_object('deduplicated', u.twin)
  from unnest(v_ids, v_twins) with ordinality u (id, twin, o)
  order by u.o;
end
$$;
