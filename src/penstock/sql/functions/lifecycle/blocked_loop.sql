-- Blocked event loops of workers. A handler that makes a blocking call in an `async def` blocks the
-- event loop of its worker, and with it every other job there: none of them can finish, and their
-- deadlines come nearer. The worker's heartbeat runs in its own thread. While the loop is blocked,
-- the heartbeat reports that here, with the attempt that blocks. recover.sql releases the other
-- attempts without a failure when they are past their deadlines. When the loop runs again, the
-- deadlines of the attempts that are left are postponed by the lost time.

-- Loops that are blocked now. A report expires when it is not renewed within the worker's lease.
create or replace function penstock._blocked_loops(p_now timestamptz)
returns table (worker_id bigint, began_at timestamptz, job_id uuid, attempt integer)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select b.worker_id, b.began_at, b.job_id, b.attempt
  from penstock.blocked_loop b join penstock.worker w on w.id = b.worker_id
  where b.ended_at is null -- guard: not over
    and w.lost_at is null and w.stopped_at is null
    and b.reported_at >= p_now - w.lease -- guard: renewed
$$;

-- Records that the worker's loop has been blocked for p_seconds. p_over: it runs again. p_job,
-- p_attempt: the attempt that blocks it, if it was found. The same number may be reported again,
-- also when the answer was lost: a late report does not reopen a block that is over. Returns the
-- attempts that the worker still runs.
create or replace function penstock.report_blocked_loop(
  p_worker bigint, p_number integer, p_seconds double precision, p_over boolean,
  p_job uuid default null, p_attempt integer default null, p_kind text default null,
  p_location text default null
) returns table (job_id uuid, attempt integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_began timestamptz;
begin
  insert into penstock.blocked_loop as b (worker_id, number, began_at, seconds, reported_at,
    ended_at, job_id, attempt, kind, location)
  values (p_worker, p_number, v_now - make_interval(secs => p_seconds), p_seconds, v_now,
    case when p_over then v_now end, p_job, p_attempt, p_kind, left(p_location, 500))
  on conflict (worker_id, number) do update set
    seconds = excluded.seconds, reported_at = excluded.reported_at, ended_at = excluded.ended_at,
    job_id = excluded.job_id, attempt = excluded.attempt, kind = excluded.kind,
    location = excluded.location
  where b.ended_at is null -- guard: once
  returning b.began_at into v_began;
  if found and p_over then
    -- The attempts of the worker could not use the time in which the loop was blocked. Only the
    -- attempt that blocked the loop used all of it.
    update penstock.job j set
      deadline_at = j.deadline_at + (v_now - greatest(j.started_at, v_began)),
      timeout_at = j.timeout_at + (v_now - greatest(j.started_at, v_began)), updated_at = v_now
    where j.id = any (array(
      select s.id from penstock.job s
      where s.deadline_at is not null
        and s.worker_id = p_worker -- guard: its own
        and (s.id, s.attempt) is distinct from (p_job, p_attempt) -- guard: innocent
        and s.started_at < v_now
      order by s.id for no key update skip locked));
    insert into penstock.blocked_loop_total as t (kind, times, seconds)
    values (coalesce(p_kind, ''), 1, p_seconds)
    on conflict (kind) do update set times = t.times + 1, seconds = t.seconds + excluded.seconds;
  end if;
  perform penstock._mark_blocker(p_job, p_attempt, p_seconds);
  return query
  select j.id, j.attempt from penstock.job j
  where j.deadline_at is not null and j.worker_id = p_worker;
end
$$;

-- Marks a job that has blocked a loop for long, so that its next attempt runs alone in its loop. A
-- short block does not count: on a busy machine many jobs block for a moment. If the job is locked,
-- the next report marks it.
create or replace function penstock._mark_blocker(
  p_job uuid, p_attempt integer, p_seconds double precision
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update penstock.job j set blocks = true
  where j.id = any (array(
    select s.id from penstock.job s
    where s.id = p_job and not s.blocks
      and s.attempt = p_attempt -- guard: fence
      and p_seconds >= 5 -- guard: for long
    for no key update skip locked))
$$;

-- Whether an attempt of this job has blocked its worker's loop for long.
create or replace function penstock.blocks_loops(p_job uuid) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select coalesce((select j.blocks from penstock.job j where j.id = p_job), false) $$;

-- Lists blocks of the last p_within, or those that one job caused: loops that are blocked now
-- first, then the latest.
create or replace function penstock.list_blocked_loops(
  p_limit integer default 50, p_within interval default '1 day', p_job uuid default null
) returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('worker_id', coalesce(w.name, ''),
    'since', penstock._rfc3339(b.began_at),
    'seconds', case when n.worker_id is not null
      then extract(epoch from penstock.clock() - b.began_at) else b.seconds end,
    'now', n.worker_id is not null, 'job', b.job_id, 'attempt', b.attempt, 'kind', b.kind,
    'place', b.location)
  from penstock.blocked_loop b left join penstock.worker w on w.id = b.worker_id
  left join penstock._blocked_loops(penstock.clock()) n
    on n.worker_id = b.worker_id and n.began_at = b.began_at and b.ended_at is null
  where b.began_at > penstock.clock() - p_within and (p_job is null or b.job_id = p_job)
  order by n.worker_id is not null desc, b.began_at desc limit least(greatest(p_limit, 1), 1000)
$$;

-- Metrics: how many loops are blocked now, and the totals by kind.
create or replace function penstock._blocked_loop_gauges() returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object(
    'now', (select count(*) from penstock._blocked_loops(penstock.clock())),
    'kinds', (
      select coalesce(jsonb_agg(jsonb_build_object('kind', t.kind, 'times', t.times,
        'seconds', t.seconds) order by t.kind), '[]')
      from penstock.blocked_loop_total t))
$$;
