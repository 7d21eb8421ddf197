-- Submitting from plain SQL: one job, or an array of jobs, in a transaction of any language.

-- Refuses kinds with an option that the app declared as a function of its code: a caller that has
-- only the database cannot evaluate it. p_priced: whether the caller names a price for the job.
create or replace function penstock.refuse_computed(p_kinds text[], p_priced boolean[])
returns void
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(422, 'kind_needs_code',
    format('%s of job kind %s is a function in the app''s code', b.option, b.kind), b.option,
    jsonb_build_object('index', b.index),
    'Submit it through the app, or declare it as a field or a value.')
  from (
    select u.kind, u.ordinal - 1 as index, c.options[1] as option
    from unnest(p_kinds, p_priced) with ordinality u (kind, priced, ordinal)
    join penstock.kind k on k.name = u.kind
    cross join lateral (
      select array_remove(k.computed, case when u.priced then 'price' end)
    ) c (options)
    where c.options <> '{}'
    order by u.ordinal limit 1
  ) b
$$;

-- As submit_one, but returns the job as read_job does. p_computed: the caller has evaluated what
-- the app declared as functions of its code. p_own: the caller has an account key, and gets a live
-- twin as customers see it.
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
  -- Checked here first: hardly any kind has such options.
  if not p_computed
    and exists (select from penstock.kind k where k.name = p_kind and k.computed <> '{}')
  then
    perform penstock.refuse_computed(array[p_kind], array[p_price is not null]);
  end if;
  select * into v_one from penstock.submit_one(p_kind, p_payload, p_account, p_dedupe_key,
    p_topic, p_priority, p_run_at, p_delay, p_max_attempts, p_timeout, p_expires, p_metadata,
    p_key, p_scope, p_wake, p_price, p_webhook_url, p_own => p_own);
  v_job := penstock._read_job(v_one.id, null);
  return case when p_own then penstock._public_job(v_job) else v_job end
    || jsonb_build_object('deduplicated', v_one.deduplicated, 'replayed', v_one.replayed,
      'position', v_one.queue_position, 'eta_seconds', v_one.eta_seconds,
      'waiting_for', v_one.waiting_for, 'balance', v_one.balance)
    -- For a request that was split: all the jobs it became.
    || case when v_one.ids is not null then jsonb_build_object('jobs', v_one.ids) else '{}' end;
end
$$;

-- Submits a job from any language, inside its own transaction. Returns the job as read_job does.
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
    penstock._seconds(submit_job.delay_seconds), submit_job.max_attempts,
    penstock._seconds(submit_job.timeout_seconds), penstock._seconds(submit_job.expires_seconds),
    submit_job.metadata,
    submit_job.idempotency_key, 'sql:' || session_user, null, submit_job.price,
    submit_job.webhook_url);
  perform pg_notify('penstock_job', v_job ->> 'queue')
  where v_job ->> 'status' = 'queued'
    and not (v_job ->> 'deduplicated')::boolean and not (v_job ->> 'replayed')::boolean;
  return v_job;
end
$$;

-- Seconds as an interval. Limited, so that too many seconds stay too many and are refused like
-- those of every other caller; PostgreSQL sorts NaN above all numbers.
create or replace function penstock._seconds(p_seconds double precision) returns interval
language sql immutable strict parallel safe
as $$ select make_interval(secs => greatest(-1, least(p_seconds, 1e9))) $$;

-- Submits an array of objects with the arguments of submit_job as keys: all are accepted, or none.
-- Returns no positions: they would take time in the square of the number of jobs.
create or replace function penstock.submit_jobs(jobs jsonb) returns setof jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_jobs penstock.new_job[];
  v_ids uuid[];
  v_twins boolean[];
begin
  if jsonb_typeof(jobs) is distinct from 'array' or jsonb_array_length(jobs) = 0 then
    perform penstock._refuse(422, 'invalid_job', 'jobs must be an array of one job or more',
      'jobs');
  end if;
  v_jobs := array(
    select jsonb_populate_record(null::penstock.new_job,
      penstock._read_options('job', e.job, e.ordinal - 1)
        || jsonb_build_object('ordinal', e.ordinal))
    from jsonb_array_elements(jobs) with ordinality e (job, ordinal)
    order by e.ordinal);
  perform penstock.refuse_computed(array_agg(j.kind order by j.ordinal),
    array_agg(j.price is not null order by j.ordinal))
  from unnest(v_jobs) j;
  select array_agg(s.id order by s.ordinal), array_agg(s.deduplicated order by s.ordinal)
  into v_ids, v_twins
  from penstock._submit_jobs(v_jobs, p_batched => true) s;
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
