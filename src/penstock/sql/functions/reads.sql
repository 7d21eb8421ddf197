-- What people and programs look at. Nothing here decides anything.

-- Every start that has ended: those their job survived, and the one that ended it.
create or replace view penstock.attempts as
select t.job_id, t.attempt, t.worker_id, t.started_at, t.ended_at, t.outcome, t.error
from penstock.attempt t
union all
select f.id, f.attempt, f.worker_id, f.started_at, f.finished_at, f.status::text, f.error
from penstock.finished f where f.ended_in_start;

create or replace view penstock.queue_stats as
select q.name as queue, q.concurrency, q.paused_at is not null as paused,
  coalesce(s.scheduled, 0) as scheduled, coalesce(s.queued, 0) as queued,
  coalesce(s.running, 0) as running, coalesce(s.awaiting, 0) as awaiting, s.oldest_queued_at
from penstock.queue q
left join (
  select j.queue_id,
    count(*) filter (where j.status = 'scheduled') as scheduled,
    count(*) filter (where j.status = 'queued') as queued,
    count(*) filter (where j.status = 'running') as running,
    count(*) filter (where j.status = 'awaiting') as awaiting,
    min(j.created_at) filter (where j.status = 'queued') as oldest_queued_at
  from penstock.job j group by j.queue_id
) s on s.queue_id = q.id;

create or replace function penstock._rfc3339(p_at timestamptz) returns text
language sql immutable parallel safe
as $$ select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- The last 20 ended starts of a job, oldest first.
create or replace function penstock._attempts_json(p_job uuid) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(jsonb_build_object(
    'attempt', t.attempt, 'worker', w.name, 'started_at', penstock._rfc3339(t.started_at),
    'ended_at', penstock._rfc3339(t.ended_at), 'outcome', t.outcome,
    'error_class', t.error ->> 'class', 'message', t.error ->> 'message') order by t.attempt), '[]')
  from (
    select a.* from penstock.attempts a where a.job_id = p_job order by a.attempt desc limit 20
  ) t
  left join penstock.worker w on w.id = t.worker_id
$$;

create or replace function penstock._error_json(p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_error is not null then
    '{"class": null, "reason": null, "message": null, "retryable": false}' || p_error end
$$;

-- The job as every surface shows it.
create or replace function penstock.read_job(id uuid) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_job jsonb;
begin
  select jsonb_build_object('id', j.id, 'kind', k.name, 'queue', q.name, 'account', a.name,
    'plan', a.plan, 'topic', j.topic, 'batch', j.batch_id, 'status', j.status,
    'priority', j.priority, 'attempt', j.attempt, 'failures', j.failures,
    'deferrals', j.deferrals, 'max_attempts', j.max_attempts,
    'metadata', coalesce(j.metadata, '{}'),
    'created_at', penstock._rfc3339(j.created_at), 'updated_at', penstock._rfc3339(j.updated_at),
    'run_at', penstock._rfc3339(j.run_at), 'started_at', penstock._rfc3339(j.started_at),
    'timeout_at', penstock._rfc3339(j.timeout_at),
    'finished_at', penstock._rfc3339(j.finished_at),
    'stage', j.stage, 'progress', j.progress, 'result', j.result,
    'error', penstock._error_json(j.error),
    'recovery', jsonb_build_object('count', j.crashes, 'max', q.recovery,
      'last_at', penstock._rfc3339(j.recovered_at),
      'next_at', case when j.status = 'scheduled' and j.recovered_at is not null
        then penstock._rfc3339(j.run_at) end),
    'cancel_requested', j.cancel_requested, 'retry_of', j.retry_of, 'retried_by', j.retried_by,
    'version', j.version, 'attempts', penstock._attempts_json(j.id))
  into v_job
  from (
    select l.id, l.kind_id, l.queue_id, l.account_id, l.topic, l.batch_id, l.status, l.priority,
      l.attempt, l.failures, l.deferrals, l.crashes, l.max_attempts, l.metadata, l.created_at,
      l.updated_at, l.run_at, l.started_at, l.timeout_at, null::timestamptz as finished_at,
      l.stage, l.progress, null::jsonb as result, l.error, l.recovered_at,
      l.cancel_requested_at is not null as cancel_requested, l.retry_of,
      null::uuid as retried_by, l.version
    from penstock.job l where l.id = read_job.id
    union all
    select f.id, f.kind_id, f.queue_id, f.account_id, f.topic, f.batch_id, f.status, f.priority,
      f.attempt, f.failures, f.deferrals, f.crashes, f.max_attempts, f.metadata, f.created_at,
      f.finished_at, f.run_at, f.started_at, f.timeout_at, f.finished_at, f.stage, f.progress,
      f.result, f.error, f.recovered_at, false, f.retry_of, f.retried_by, f.version
    from penstock.finished f where f.id = read_job.id
  ) j
  join penstock.kind k on k.id = j.kind_id
  join penstock.queue q on q.id = j.queue_id
  join penstock.account a on a.id = j.account_id;
  if v_job is null then
    perform penstock._refuse(404, 'unknown_job', format('there is no job %s', read_job.id), 'id',
      p_hint => 'Finished jobs are kept for the retention of their queue.');
  end if;
  return v_job;
end
$$;
