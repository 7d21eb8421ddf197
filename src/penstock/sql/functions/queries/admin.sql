-- The status of the system, stuck jobs and metrics for operators.

-- Attempts without progress, and jobs that were recovered and wait for their next attempt; the
-- longest first. The class says what is wrong; for an attempt that still runs, it is the class of
-- the error with which recovery would settle it.
create or replace function penstock._list_stuck(p_limit integer) returns setof jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('id', s.id, 'kind', k.name, 'queue', q.name, 'status', s.status,
    'stage', s.stage, 'class', s.class, 'since', penstock._rfc3339(s.since),
    'recovery', jsonb_build_object('count', s.crashes, 'max', q.recovery,
      'last_at', penstock._rfc3339(s.recovered_at),
      'next_at', case when s.status = 'scheduled' then penstock._rfc3339(s.run_at) end),
    'account', a.name, 'worker', w.name, 'attempt', s.attempt,
    'cancel_requested', s.cancel_requested_at is not null)
  from (
    select * from (
      select j.*, case j.status when 'awaiting' then 'no_callback' else 'stalled' end as class,
        coalesce(j.progressed_at, j.started_at) as since
      from penstock.job j join penstock.queue q on q.id = j.queue_id
      where j.deadline_at is not null
        -- The condition of _staleness: calling it for each takes 25 us (2026-11), and thousands of
        -- jobs may be running.
        and penstock.clock() - coalesce(j.progressed_at, j.started_at) >= q.stale_after
      union all
      select j.*, j.error ->> 'class', j.recovered_at
      from penstock.job j
      where j.recovered_at is not null and j.status in ('scheduled', 'queued')
        -- The job may have started since, and wait for another reason.
        and exists (
          select from penstock.attempt t
          where t.job_id = j.id and t.attempt = j.attempt and t.outcome in ('lost', 'stuck'))
    ) stuck
    order by since, id limit p_limit
  ) s
  join penstock.queue q on q.id = s.queue_id left join penstock.kind k on k.id = s.kind_id
  left join penstock.account a on a.id = s.account_id
  left join penstock.worker w on w.id = coalesce(s.worker_id, (
    select t.worker_id from penstock.attempt t
    where t.job_id = s.id and t.attempt <= s.attempt order by t.attempt desc limit 1))
  order by s.since, s.id
$$;

-- The status of the system for operators, with the first hundred stuck jobs.
create or replace function penstock.read_admin_status() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select penstock.read_status() || jsonb_build_object('stuck',
    (select coalesce(jsonb_agg(s - array['account', 'worker', 'attempt', 'cancel_requested']), '[]')
     from penstock._list_stuck(100) s))
$$;

-- Values for Prometheus: the state of each queue, the number of workers, and the counts since the
-- beginning.
create or replace function penstock.read_gauges() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object(
    'queues', (
      select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'scheduled', s.scheduled,
        'queued', s.queued, 'running', s.running, 'awaiting', s.awaiting, 'paused', s.paused,
        'circuit', c.state, 'oldest_seconds', coalesce(greatest(0,
          extract(epoch from penstock.clock() - s.oldest_queued_at)), 0)) order by q.name), '[]')
      from penstock.queue q join penstock.queue_stats s on s.queue = q.name
      join penstock.circuit c on c.queue_id = q.id),
    'workers', (select count(*) from penstock.worker_health w where w.alive),
    'stuck', (select count(*) from penstock._list_stuck(100)),
    'blocked', penstock._blocked_loop_gauges(),
    'unhandled', (select coalesce(jsonb_agg(u), '[]') from penstock.list_unhandled() u),
    'bounds', penstock._hour_bounds(),
    'ended', (
      select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'kind', k.name,
        'outcome', b.outcome, 'class', b.class, 'count', b.count, 'total_ms', b.total_ms,
        'histogram', b.histogram) order by q.name, k.name, b.outcome, b.class), '[]')
      from penstock.hourly_bucket b join penstock.queue q on q.id = b.queue_id
      join penstock.kind k on k.id = b.kind_id
      where b.hour = '-infinity'))
$$;
