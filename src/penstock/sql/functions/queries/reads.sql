-- Reads for people and programs. Nothing here decides anything.

-- Every settled attempt: those after which the job went on, and the one that finished it.
create or replace view penstock.attempts as
select t.job_id, t.attempt, t.worker_id, t.started_at, t.ended_at, t.outcome, t.error, t.usage
from penstock.attempt t
union all
select f.id, f.attempt, f.worker_id, f.started_at, f.finished_at, f.status::text, f.error, f.usage
from penstock.finished f where f.finished_by_attempt;

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
-- The planner removes this join if neither column is selected.
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

-- One settled attempt of a job.
create or replace function penstock._attempt_json(
  p_attempt integer, p_worker text, p_started_at timestamptz, p_settled_at timestamptz,
  p_outcome text, p_error jsonb
) returns jsonb
language sql stable
as $$
  select jsonb_build_object('attempt', p_attempt, 'worker', p_worker,
    'started_at', penstock._rfc3339(p_started_at), 'ended_at', penstock._rfc3339(p_settled_at),
    'outcome', p_outcome, 'error_class', p_error ->> 'class', 'message', p_error ->> 'message',
    'frames', coalesce(p_error -> 'frames', '[]'))
$$;

-- The last 20 settled attempts of a job, oldest first.
create or replace function penstock._attempts_json(p_job uuid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    select coalesce(jsonb_agg(penstock._attempt_json(t.attempt, w.name, t.started_at, t.ended_at,
      t.outcome, t.error) order by t.attempt), '[]')
    from (
      select a.* from penstock.attempts a where a.job_id = p_job order by a.attempt desc limit 20
    ) t
    left join penstock.worker w on w.id = t.worker_id);
end
$$;

-- The sum of what all attempts of a job have used: a failed attempt is paid for, too.
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

-- An error as every reader sees it. Its frames are shown with the attempt, and to operators only.
create or replace function penstock._error_json(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_error is not null then
    '{"class": null, "reason": null, "message": null, "retryable": false}'
      || case jsonb_typeof(p_error) when 'object' then p_error - 'frames' else p_error end end
$$;

-- When a job starts again that was recovered from a lost or stuck attempt; no row if the job has
-- run since and is scheduled for another reason.
create or replace function penstock._recovery_at(p_job penstock.job) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p_job.run_at
  from penstock.attempt t
  where t.job_id = p_job.id and t.attempt = p_job.attempt and t.outcome in ('lost', 'stuck')
$$;

-- Only the next two functions make a job's JSON for readers. Either `j` (a live job) or `f` (a
-- finished one) is null; p_charged and p_refunded are null until its credits are resolved. Both
-- functions are inlined, so they name no table: otherwise each time stamp would be a function call.
--
-- The short form, for lists: it reads no large value and no history. 1,000 finished jobs with
-- results of 3 KB take 14 ms, in the whole form 57 ms (2026-11).
create or replace function penstock._short_json(
  j penstock.job, f penstock.finished, p_kind text, p_queue text, p_account text, p_charged bigint,
  p_refunded bigint, p_waiting_for text
) returns jsonb
language sql stable
as $$
  select jsonb_build_object('id', coalesce(j.id, f.id), 'kind', p_kind, 'queue', p_queue,
    'account', p_account, 'topic', coalesce(j.topic, f.topic),
    'batch', coalesce(j.batch_id, f.batch_id), 'status', coalesce(j.status, f.status),
    'attempt', coalesce(j.attempt, f.attempt), 'failures', coalesce(j.failures, f.failures),
    'max_attempts', coalesce(j.max_attempts, f.max_attempts),
    'created_at', penstock._rfc3339(coalesce(j.created_at, f.created_at)),
    'run_at', penstock._rfc3339(coalesce(j.run_at, f.run_at)),
    'started_at', penstock._rfc3339(coalesce(j.started_at, f.started_at)),
    'finished_at', penstock._rfc3339(f.finished_at), 'stage', coalesce(j.stage, f.stage),
    'stage_label', j.stage_label, 'error', penstock._error_json(coalesce(j.error, f.error)),
    'waiting_for', p_waiting_for, 'cancel_requested', j.cancel_requested_at is not null,
    'credits', case when j.reserved > 0 or p_charged is not null then jsonb_build_object(
      'reserved', coalesce(j.reserved, f.reserved), 'charged', coalesce(p_charged, 0),
      'refunded', coalesce(p_refunded, 0)) end)
$$;

-- The whole job. p_worker: the worker of the attempt that finished it.
create or replace function penstock._job_json(
  j penstock.job, f penstock.finished, p_kind text, p_queue text, p_recovery integer,
  p_account text, p_plan text, p_charged bigint, p_refunded bigint, p_worker text,
  p_position bigint, p_eta_seconds double precision, p_waiting_for text, p_attempts boolean
) returns jsonb
language sql stable
as $$
  -- The result is set separately: `||` would copy it once more, and it may be large.
  select jsonb_set(penstock._short_json(j, f, p_kind, p_queue, p_account, p_charged, p_refunded,
    p_waiting_for) || jsonb_build_object(
    'plan', p_plan, 'priority', coalesce(j.priority, f.priority),
    'first_job', coalesce(j.first_job, f.first_job),
    'deferrals', coalesce(j.deferrals, f.deferrals),
    'metadata', coalesce(j.metadata, f.metadata, '{}'),
    'updated_at', penstock._rfc3339(coalesce(j.updated_at, f.finished_at)),
    'timeout_at', penstock._rfc3339(j.timeout_at), 'stage_at', penstock._rfc3339(j.stage_at),
    'progress', coalesce(j.progress, f.progress),
    -- A live job whose first attempt runs, and nearly all finished ones, have no other attempt that
    -- has used anything.
    'usage', case
      when coalesce(j.attempt, f.attempt) > 1 or (f.attempt = 1 and not f.finished_by_attempt)
        then penstock._usage_json(coalesce(j.id, f.id))
      else f.usage end,
    'position', p_position, 'eta_seconds', p_eta_seconds,
    'staleness', case when j.started_at is not null then penstock._staleness(j) end,
    'recovery', jsonb_build_object('count', coalesce(j.crashes, f.crashes), 'max', p_recovery,
      'last_at', penstock._rfc3339(coalesce(j.recovered_at, f.recovered_at)),
      'next_at', case when j.status = 'scheduled' and j.recovered_at is not null
        then penstock._rfc3339(penstock._recovery_at(j)) end),
    'retry_of', coalesce(j.retry_of, f.retry_of), 'retried_by', f.retried_by,
    'version', coalesce(j.version, f.version),
    'attempts', case
      when not p_attempts or coalesce(j.attempt, f.attempt) = 0 then '[]'
      -- Nearly all jobs have a single attempt, and its row is the job's own.
      when f.attempt = 1 and f.finished_by_attempt then jsonb_build_array(
        penstock._attempt_json(1, p_worker, f.started_at, f.finished_at, f.status::text,
          f.error))
      else penstock._attempts_json(coalesce(j.id, f.id)) end),
    '{result}', coalesce(f.result, 'null'))
$$;

-- The job as every reader sees it.
create or replace function penstock.read_job(id uuid) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  return penstock._read_job(read_job.id, penstock._counted_positions());
end
$$;

-- p_most: how many jobs may be counted for its position; null: without position, ETA and reason,
-- for callers that read many; p_attempts: with its attempts; p_must_exist: if false, null for a job
-- that does not exist. History is read only if the job is not live: a read or a submit in an app's
-- transaction shall not lock its partitions.
create or replace function penstock._read_job(
  p_id uuid, p_most integer, p_attempts boolean default true, p_must_exist boolean default true
) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_job penstock.job;
  v_finished penstock.finished;
  v_names record;
  v_waiting record;
  v_json jsonb;
begin
  select null::bigint as queue_position, null::double precision as eta_seconds,
    null::text as waiting_for
  into v_waiting;
  select * into v_job from penstock.job j where j.id = p_id;
  if not found then
    select * into v_finished from penstock.finished f where f.id = p_id;
    if not found then
      if p_must_exist then
        perform penstock._refuse_unknown_job(p_id);
      end if;
      return null;
    end if;
  elsif p_most is not null then
    v_waiting := penstock._waiting(v_job, p_most);
  end if;
  select k.name as kind, q.name as queue, q.recovery, a.name as account, a.plan,
    w.name as worker, r.charged, r.refunded
  into v_names
  from (select) one
  left join penstock.kind k on k.id = coalesce(v_job.kind_id, v_finished.kind_id)
  left join penstock.queue q on q.id = coalesce(v_job.queue_id, v_finished.queue_id)
  left join penstock.account a on a.id = coalesce(v_job.account_id, v_finished.account_id)
  left join penstock.worker w on w.id = v_finished.worker_id
  left join penstock.resolution r on v_finished.reserved > 0 and r.job_id = v_finished.id;
  -- As an expression and not in the query above, so that it is prepared only once in a transaction.
  v_json := penstock._job_json(v_job, v_finished, v_names.kind, v_names.queue, v_names.recovery,
    v_names.account, v_names.plan, v_names.charged, v_names.refunded, v_names.worker,
    v_waiting.queue_position, v_waiting.eta_seconds, v_waiting.waiting_for, p_attempts);
  return case when p_attempts then v_json else v_json - 'attempts' end;
end
$$;
