-- What people and programs look at. Nothing here decides anything.

-- Every start that has ended: those their job survived, and the one that ended it.
create or replace view penstock.attempts as
select t.job_id, t.attempt, t.worker_id, t.started_at, t.ended_at, t.outcome, t.error, t.usage
from penstock.attempt t
union all
select f.id, f.attempt, f.worker_id, f.started_at, f.finished_at, f.status::text, f.error, f.usage
from penstock.finished f where f.ended_in_start;

create or replace view penstock.queue_stats as
select q.name as queue, q.concurrency, q.paused_at is not null as paused,
  coalesce(s.scheduled, 0) as scheduled, coalesce(s.queued, 0) as queued,
  coalesce(s.running, 0) as running, coalesce(s.awaiting, 0) as awaiting, s.oldest_queued_at,
  coalesce(h.failed_today, 0) as failed_today, h.avg_seconds
from penstock.queue q
left join (
  select j.queue_id,
    count(*) filter (where j.status = 'scheduled') as scheduled,
    count(*) filter (where j.status = 'queued') as queued,
    count(*) filter (where j.status = 'running') as running,
    count(*) filter (where j.status = 'awaiting') as awaiting,
    min(j.created_at) filter (where j.status = 'queued') as oldest_queued_at
  from penstock.job j group by j.queue_id
) s on s.queue_id = q.id
-- Not read where neither column is asked for: the planner removes such a join.
left join (
  select b.queue_id,
    sum(b.count) filter (where b.outcome = 'failed'
      and b.hour >= date_trunc('day', penstock.clock(), 'UTC'))::bigint as failed_today,
    round(sum(b.total_ms) filter (where b.outcome = 'succeeded') / 1000.0
      / nullif(sum(b.count) filter (where b.outcome = 'succeeded'), 0), 3) as avg_seconds
  from penstock.hourly_bucket b
  where b.hour > penstock.clock() - interval '1 day'
  group by b.queue_id
) h on h.queue_id = q.id;

create or replace function penstock._rfc3339(p_at timestamptz) returns text
language sql stable parallel safe
as $$ select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- The last 20 ended starts of a job, oldest first.
create or replace function penstock._attempts_json(p_job uuid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    select coalesce(jsonb_agg(jsonb_build_object(
      'attempt', t.attempt, 'worker', w.name, 'started_at', penstock._rfc3339(t.started_at),
      'ended_at', penstock._rfc3339(t.ended_at), 'outcome', t.outcome,
      'error_class', t.error ->> 'class', 'message', t.error ->> 'message',
      'frames', coalesce(t.error -> 'frames', '[]')) order by t.attempt),
      '[]')
    from (
      select a.* from penstock.attempts a where a.job_id = p_job order by a.attempt desc limit 20
    ) t
    left join penstock.worker w on w.id = t.worker_id);
end
$$;

-- What all starts of a job have used together: a failed one is paid for too.
create or replace function penstock._usage_json(p_job uuid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    select jsonb_object_agg(s.name, s.total) from (
      select u.key as name, sum((u.value #>> '{}')::numeric) as total
      from penstock.attempts a cross join lateral jsonb_each(a.usage) u
      where a.job_id = p_job
      group by u.key
    ) s);
end
$$;

-- An error as every surface shows it. Its frames are shown with the attempt, and to operators only.
create or replace function penstock._error_json(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_error is not null then
    '{"class": null, "reason": null, "message": null, "retryable": false}'
      || case jsonb_typeof(p_error) when 'object' then p_error - 'frames' else p_error end end
$$;

-- A live job as every surface shows it. Inlined: each of its moments would be another call.
create or replace function penstock._live_json(
  p_job penstock.job, p_kind text, p_queue text, p_recovery integer, p_account text, p_plan text,
  p_place bigint, p_eta_seconds double precision, p_waiting_for text, p_attempts boolean
) returns jsonb
language sql stable
as $$
  select jsonb_build_object('id', p_job.id, 'kind', p_kind, 'queue', p_queue,
    'account', p_account, 'plan', p_plan, 'topic', p_job.topic,
    'batch', p_job.batch_id, 'status', p_job.status,
    'priority', p_job.priority, 'first_job', p_job.first_job,
    'attempt', p_job.attempt, 'failures', p_job.failures,
    'deferrals', p_job.deferrals, 'max_attempts', p_job.max_attempts,
    'metadata', coalesce(p_job.metadata, '{}'),
    'created_at', penstock._rfc3339(p_job.created_at),
    'updated_at', penstock._rfc3339(p_job.updated_at),
    'run_at', penstock._rfc3339(p_job.run_at),
    'started_at', penstock._rfc3339(p_job.started_at),
    'timeout_at', penstock._rfc3339(p_job.timeout_at), 'finished_at', null,
    'stage', p_job.stage, 'stage_label', p_job.stage_label,
    'stage_at', penstock._rfc3339(p_job.stage_at), 'progress', p_job.progress,
    'result', null,
    'usage', case when p_job.attempt > 1 then penstock._usage_json(p_job.id) end,
    'error', penstock._error_json(p_job.error), 'position', p_place,
    'eta_seconds', p_eta_seconds, 'waiting_for', p_waiting_for,
    'staleness', case when p_job.started_at is not null then penstock._staleness(p_job) end,
    'recovery', jsonb_build_object('count', p_job.crashes, 'max', p_recovery,
      'last_at', penstock._rfc3339(p_job.recovered_at),
      'next_at', case when p_job.status = 'scheduled' and p_job.recovered_at is not null
          -- It may have started since, and wait for another reason.
          and exists (
            select from penstock.attempt t
            where t.job_id = p_job.id and t.attempt = p_job.attempt
              and t.outcome in ('lost', 'stuck'))
        then penstock._rfc3339(p_job.run_at) end),
    'credits', case when p_job.reserved > 0 then jsonb_build_object(
      'reserved', p_job.reserved, 'charged', 0, 'refunded', 0) end,
    'cancel_requested', p_job.cancel_requested_at is not null, 'retry_of', p_job.retry_of,
    'retried_by', null, 'version', p_job.version,
    'attempts', case when p_job.attempt = 0 or not p_attempts then '[]'
      else penstock._attempts_json(p_job.id) end)
$$;

-- The job as every surface shows it.
create or replace function penstock.read_job(id uuid) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  return penstock._read_job(read_job.id, penstock._counted_places());
end
$$;

-- p_most: how many jobs may be counted for its place; null: without place, wait and reason, for
-- who reads many; p_attempts: with its starts; p_must_exist: else null where it does not. History
-- is looked at only for what does not live: a read or a submit in an app's transaction shall hold
-- no lock on its partitions.
create or replace function penstock._read_job(
  p_id uuid, p_most integer, p_attempts boolean default true, p_must_exist boolean default true
) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_job penstock.job;
  v_done penstock.finished;
  v_is_live boolean;
  v_of record;
  v_waits record;
  v_place bigint;
  v_eta_seconds double precision;
  v_waiting_for text;
begin
  select * into v_job from penstock.job j where j.id = p_id;
  v_is_live := found;
  if not v_is_live then
    select * into v_done from penstock.finished f where f.id = p_id;
    if not found then
      if p_must_exist then
        perform penstock._refuse_unknown_job(p_id);
      end if;
      return null;
    end if;
  end if;
  select k.name as kind, q.name as queue, q.recovery, a.name as account, a.plan,
    w.name as worker, r.reserved, r.charged, r.refunded
  into v_of
  from (select) one
  left join penstock.kind k on k.id = coalesce(v_job.kind_id, v_done.kind_id)
  left join penstock.queue q on q.id = coalesce(v_job.queue_id, v_done.queue_id)
  left join penstock.account a on a.id = coalesce(v_job.account_id, v_done.account_id)
  left join penstock.worker w on w.id = v_done.worker_id
  left join penstock.resolution r on v_done.reserved > 0 and r.job_id = v_done.id;
  if v_is_live then
    if p_most is not null then
      v_waits := penstock._waiting(v_job, p_most);
      v_place := v_waits.place;
      v_eta_seconds := v_waits.eta_seconds;
      v_waiting_for := v_waits.waiting_for;
    end if;
    return penstock._live_json(v_job, v_of.kind, v_of.queue, v_of.recovery, v_of.account,
      v_of.plan, v_place, v_eta_seconds, v_waiting_for, p_attempts);
  end if;
  return jsonb_build_object('id', v_done.id, 'kind', v_of.kind, 'queue', v_of.queue,
    'account', v_of.account, 'plan', v_of.plan, 'topic', v_done.topic,
    'batch', v_done.batch_id, 'status', v_done.status,
    'priority', v_done.priority, 'first_job', v_done.first_job,
    'attempt', v_done.attempt, 'failures', v_done.failures,
    'deferrals', v_done.deferrals, 'max_attempts', v_done.max_attempts,
    'metadata', coalesce(v_done.metadata, '{}'),
    'created_at', penstock._rfc3339(v_done.created_at),
    'updated_at', penstock._rfc3339(v_done.finished_at),
    'run_at', penstock._rfc3339(v_done.run_at),
    'started_at', penstock._rfc3339(v_done.started_at), 'timeout_at', null,
    'finished_at', penstock._rfc3339(v_done.finished_at),
    'stage', v_done.stage, 'stage_label', null, 'stage_at', null,
    'progress', v_done.progress, 'result', v_done.result,
    'usage', case when v_done.attempt = 0 then null
      when v_done.attempt > 1 or not v_done.ended_in_start
      then penstock._usage_json(v_done.id)
      else v_done.usage end,
    'error', penstock._error_json(v_done.error), 'position', null, 'eta_seconds', null,
    'waiting_for', null, 'staleness', null,
    'recovery', jsonb_build_object('count', v_done.crashes, 'max', v_of.recovery,
      'last_at', penstock._rfc3339(v_done.recovered_at), 'next_at', null),
    'credits', case when v_of.reserved is not null then jsonb_build_object(
      'reserved', v_of.reserved, 'charged', v_of.charged, 'refunded', v_of.refunded) end,
    'cancel_requested', false, 'retry_of', v_done.retry_of,
    'retried_by', v_done.retried_by, 'version', v_done.version,
    'attempts', case when not p_attempts or v_done.attempt = 0 then '[]'
      -- Nearly all: there is no other start, and this one is told here.
      when v_done.attempt = 1 and v_done.ended_in_start then jsonb_build_array(
        jsonb_build_object('attempt', 1,
          'worker', v_of.worker,
          'started_at', penstock._rfc3339(v_done.started_at),
          'ended_at', penstock._rfc3339(v_done.finished_at), 'outcome', v_done.status,
          'error_class', v_done.error ->> 'class', 'message', v_done.error ->> 'message',
          'frames', coalesce(v_done.error -> 'frames', '[]')))
      else penstock._attempts_json(v_done.id) end);
end
$$;
