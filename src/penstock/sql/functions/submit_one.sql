-- One job: with an idempotency key where the caller has one, and in a form for plain SQL.

-- As submit_many for one job. With a key, the record of it is written in the same transaction:
-- a repetition gets the first one's job, one with other arguments is refused, and a twin that
-- comes while the first is not committed yet waits for it, five seconds at most. p_wake: the queue
-- whose resting workers are told with the commit. Its place and its wait, as far as they can be
-- known at little cost: a deep queue makes no submit slow.
create or replace function penstock.submit_one(
  p_kind text, p_payload jsonb, p_account text default null, p_dedupe_key text default null,
  p_topic text default null, p_priority integer default null, p_run_at timestamptz default null,
  p_delay interval default null, p_max_attempts integer default null,
  p_timeout interval default null, p_expires interval default null,
  p_metadata jsonb default null, p_key text default null, p_scope text default '',
  p_wake text default null
) returns table (
  id uuid, status penstock.job_status, deduplicated boolean, replayed boolean,
  place bigint, eta_seconds double precision, waiting_for text
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_print bytea;
  v_record penstock.idempotency;
  v_lock_timeout text;
  v_simple boolean;
  v_told boolean;
begin
  if p_key is not null then
    if length(p_key) not between 1 and 255 then
      perform penstock._refuse(422, 'invalid_job',
        'idempotency_key must be a text of 1 to 255 characters', 'idempotency_key');
    end if;
    -- Moments and durations as numbers: their texts depend on the session's settings.
    v_print := sha256(convert_to(jsonb_build_array(p_kind, p_payload, p_account, p_dedupe_key,
      p_topic, p_priority, extract(epoch from p_run_at), extract(epoch from p_delay),
      p_max_attempts, extract(epoch from p_timeout), extract(epoch from p_expires),
      p_metadata)::text, 'UTF8'));
    v_lock_timeout := current_setting('lock_timeout');
    begin
      perform set_config('lock_timeout', '5s', true);
      insert into penstock.idempotency (scope, key, fingerprint, job_id, deduplicated, created_at)
      values (p_scope, p_key, v_print, '00000000-0000-0000-0000-000000000000', false,
              penstock.clock())
      on conflict do nothing
      returning * into v_record;
      perform set_config('lock_timeout', v_lock_timeout, true);
    exception when lock_not_available then
      perform penstock._refuse(409, 'idempotency_in_progress',
        'a request with this idempotency key is still being accepted', 'idempotency_key',
        p_hint => 'Repeat it with the same key.');
    end;
    if v_record.key is null then
      select * into v_record from penstock.idempotency i
      where i.scope = p_scope and i.key = p_key;
      if v_record.fingerprint is distinct from v_print then -- guard: same job => if false then
        perform penstock._refuse(422, 'idempotency_key_reused',
          'this idempotency key was used with other arguments', 'idempotency_key');
      end if;
      id := v_record.job_id; status := penstock._status_of(v_record.job_id);
      deduplicated := v_record.deduplicated; replayed := true;
      if status is null then
        perform penstock._refuse(404, 'unknown_job',
          'the job accepted with this idempotency key is no longer kept', 'idempotency_key');
      end if;
      select w.place, w.eta_seconds, w.waiting_for into place, eta_seconds, waiting_for
      from penstock.job j
      cross join lateral penstock._waiting(j, penstock._counted_at_submit()) w
      where j.id = submit_one.id;
      return next;
      return;
    end if;
  end if;

  deduplicated := false;
  if p_account is null and p_dedupe_key is null then
    select s.id, s.status, s.place, s.eta_seconds, s.waiting_for, s.is_told
    into id, status, place, eta_seconds, waiting_for, v_told
    from penstock._submit_plain(p_kind, p_payload, p_topic, p_priority, p_run_at, p_delay,
      p_max_attempts, p_timeout, p_expires, p_metadata) s;
  end if;
  if id is null then
    select s.id, s.status, s.deduplicated into id, status, deduplicated
    from penstock.submit_many(array[p_kind], array[p_payload], array[p_account],
      array[p_dedupe_key], array[p_topic], array[p_priority], array[p_run_at], array[p_delay],
      array[p_max_attempts], array[p_timeout], array[p_expires], array[p_metadata]) s;
  end if;
  if p_key is not null then
    update penstock.idempotency i set job_id = submit_one.id,
      deduplicated = submit_one.deduplicated
    where i.scope = p_scope and i.key = p_key;
  end if;
  replayed := false;
  if p_wake is not null and status = 'queued' and not deduplicated then
    perform pg_notify('penstock_job', p_wake);
  end if;
  if v_told then
    return next;
    return;
  end if;
  select w.simple, w.place, w.eta_seconds, w.waiting_for
  into v_simple, place, eta_seconds, waiting_for
  from penstock._waiting_simply(id, penstock.clock()) w;
  if v_simple is not true then
    select w.place, w.eta_seconds, w.waiting_for into place, eta_seconds, waiting_for
    from penstock.job j cross join lateral penstock._waiting(j, penstock._counted_at_submit()) w
    where j.id = submit_one.id;
  end if;
  return next;
end
$$;

-- A job of nobody's and without a key, as most single ones are: no account to lock, no twin to look
-- for, no lane. The way for many takes three times as long. Nothing where it is not so simple.
-- is_told: whether its place and its wait are, too.
create or replace function penstock._submit_plain(
  p_kind text, p_payload jsonb, p_topic text, p_priority integer, p_run_at timestamptz,
  p_delay interval, p_max_attempts integer, p_timeout interval, p_expires interval,
  p_metadata jsonb, out id uuid, out status penstock.job_status, out place bigint,
  out eta_seconds double precision, out waiting_for text, out is_told boolean
)
language plpgsql set search_path = pg_catalog, pg_temp
  -- Planned anew, each of its looks would take longer than all of them.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_kind penstock.kind;
  v_queue penstock.queue;
  v_setting penstock.setting;
  v_run_at timestamptz;
  v_priority integer;
  v_rank bigint;
begin
  select k.* into v_kind from penstock.kind k
  where k.name = p_kind
    and k.account_field is null and k.account_fixed is null
    and k.dedupe_field is null and k.dedupe_fixed is null;
  if not found then
    return;
  end if;
  perform pg_advisory_xact_lock_shared(1886413172, v_kind.queue_id); -- guard: order locked
  select q.* into v_queue from penstock.queue q
  where q.id = v_kind.queue_id
    and q.ordering <> 'fair'; -- guard: no lane
  if not found then
    return;
  end if;
  select s.* into v_setting from penstock.setting s;
  if penstock._job_fault(p_kind, v_kind, p_payload, null, null, p_topic, p_priority, p_run_at,
    p_delay, p_max_attempts, p_timeout, p_expires, p_metadata, v_now + interval '3650 days',
    v_setting) is not null
  then
    return; -- guard: in order => null;
  end if;
  v_run_at := greatest(v_now, coalesce(p_run_at, v_now + p_delay, v_now));
  v_priority := coalesce(p_priority, greatest(-1000, least(1000, v_kind.priority_offset)));
  v_rank := penstock._rank(v_queue.ordering, v_priority, v_queue.aging_step, v_run_at, 1);
  id := penstock.new_id(v_now);
  status := case when v_run_at > v_now then 'scheduled'::penstock.job_status
    else 'queued'::penstock.job_status end;
  insert into penstock.job (id, rank, lane, account_id, queue_id, kind_id, status, priority,
    max_attempts, created_at, updated_at, run_at, expires_at, timeout, topic, metadata, payload)
  values (id, v_rank,
    -1, 0, v_queue.id, v_kind.id, status, v_priority,
    coalesce(p_max_attempts, v_kind.max_attempts, v_queue.max_attempts), v_now, v_now, v_run_at,
    v_run_at + p_expires, p_timeout,
    coalesce(p_topic, p_payload ->> v_kind.topic_field, v_kind.topic_fixed), p_metadata,
    p_payload);
  -- The two common cases in few looks: a resting worker starts it at once, or there is none.
  if status = 'queued' and not penstock._anyone_alive(v_now) then
    select 1 + nullif(count(*), penstock._counted_at_submit() + 1) into place from (
      select from penstock.job j
      where j.queue_id = v_queue.id and j.lane = -1 and j.status = 'queued' and j.rank < v_rank
      order by j.rank limit penstock._counted_at_submit() + 1) f;
    waiting_for := case when v_queue.paused_at is null then 'no_worker' else 'paused' end;
    is_told := not exists (select from penstock.lane l where l.queue_id = v_queue.id)
      and (place is not null
        or not exists (select from penstock.snapshot s where s.queue_id = v_queue.id));
  elsif status = 'queued' and v_queue.concurrency is null and v_queue.rate_count is null
    and v_queue.paused_at is null
    and (select count(*) from (
           select from penstock.job j
           where j.queue_id = v_queue.id and j.status = 'queued'
           order by j.lane, j.rank limit 2) f) = 1
    and exists (
      select from penstock.circuit c where c.queue_id = v_queue.id and c.state = 'closed')
  then
    place := 1;
    eta_seconds := 0;
    is_told := true;
  end if;
end
$$;

create or replace function penstock._status_of(p_id uuid) returns penstock.job_status
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select j.status from penstock.job j where j.id = p_id),
    (select f.status from penstock.finished f where f.id = p_id))
$$;

-- Tells resting workers to look. A hint: a lost one costs a poll interval, never a job.
create or replace function penstock.wake_workers(p_queues text[]) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_notify('penstock_job', q.name) from unnest(p_queues) q (name) $$;

-- Plain SQL cannot evaluate what an app declared as a function of its own code.
create or replace function penstock._refuse_computed(p_kind text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_computed text[];
begin
  select k.computed into v_computed from penstock.kind k where k.name = p_kind;
  if v_computed <> '{}' then
    perform penstock._refuse(422, 'kind_needs_code',
      format('%s of job kind %s is a function in the app''s code', v_computed[1], p_kind),
      v_computed[1], p_hint => 'Submit it through the app, or declare it as a field or a value.');
  end if;
end
$$;

-- For any language, inside its own transaction. Answers the job as read_job does.
create or replace function penstock.submit_job(
  kind text, payload jsonb, account text default null, priority integer default null,
  delay_seconds double precision default null, run_at timestamptz default null,
  dedupe_key text default null, topic text default null, max_attempts integer default null,
  timeout_seconds double precision default null, expires_seconds double precision default null,
  metadata jsonb default null, idempotency_key text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  v_one record;
begin
  perform penstock._refuse_computed(submit_job.kind);
  select * into v_one from penstock.submit_one(
    submit_job.kind, submit_job.payload, submit_job.account, submit_job.dedupe_key,
    submit_job.topic, submit_job.priority, submit_job.run_at,
    penstock._seconds(submit_job.delay_seconds, 'delay_seconds'), submit_job.max_attempts,
    penstock._seconds(submit_job.timeout_seconds, 'timeout_seconds'),
    penstock._seconds(submit_job.expires_seconds, 'expires_seconds'), submit_job.metadata,
    submit_job.idempotency_key, 'sql:' || session_user);
  perform pg_notify('penstock_job', q.name)
  from penstock.job j join penstock.queue q on q.id = j.queue_id
  where j.id = v_one.id and j.status = 'queued' and not v_one.deduplicated and not v_one.replayed;
  return penstock._read_job(v_one.id, null)
    || jsonb_build_object('deduplicated', v_one.deduplicated, 'replayed', v_one.replayed,
      'position', v_one.place, 'eta_seconds', v_one.eta_seconds,
      'waiting_for', v_one.waiting_for);
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
    'expires_seconds', 'metadata']);
  select f into v_field
  from unnest(array['kind', 'account', 'dedupe_key', 'topic', 'run_at']) f
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
  perform penstock._refuse_computed(p_item ->> 'kind');
end
$$;

-- An array of objects with the arguments of submit_job as keys; all are accepted, or none. Without
-- their places, which would take the square of their number.
create or replace function penstock.submit_jobs(jobs jsonb) returns setof jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_batch uuid := penstock.new_id(penstock.clock());
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
  insert into penstock.batch (id, total, created_at)
  values (v_batch, jsonb_array_length(jobs), penstock.clock());

  select array_agg(e ->> 'kind' order by o) as kinds,
    array_agg(e -> 'payload' order by o) as payloads,
    array_agg(e ->> 'account' order by o) as accounts,
    array_agg(e ->> 'dedupe_key' order by o) as dedupe_keys,
    array_agg(e ->> 'topic' order by o) as topics,
    array_agg((e ->> 'priority')::integer order by o) as priorities,
    array_agg(penstock._moment(e ->> 'run_at', 'run_at') order by o) as run_ats,
    array_agg(make_interval(secs => (e ->> 'delay_seconds')::double precision) order by o)
      as delays,
    array_agg((e ->> 'max_attempts')::integer order by o) as max_attempts,
    array_agg(make_interval(secs => (e ->> 'timeout_seconds')::double precision) order by o)
      as timeouts,
    array_agg(make_interval(secs => (e ->> 'expires_seconds')::double precision) order by o)
      as expires,
    array_agg(case when e ->> 'metadata' is not null then e -> 'metadata' end order by o)
      as metadata
  into v_all
  from jsonb_array_elements(jobs) with ordinality i (e, o);

  select array_agg(s.id order by s.ordinal), array_agg(s.deduplicated order by s.ordinal)
  into v_ids, v_twins
  from penstock.submit_many(v_all.kinds, v_all.payloads, v_all.accounts, v_all.dedupe_keys,
    v_all.topics, v_all.priorities, v_all.run_ats, v_all.delays, v_all.max_attempts,
    v_all.timeouts, v_all.expires, v_all.metadata, v_batch) s;
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
