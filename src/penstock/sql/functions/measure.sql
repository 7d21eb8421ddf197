-- What upkeep measures for position.sql and wait.sql: how long starts take, how many run at once,
-- and where in a deep queue is what. None of it decides anything: late or missing, it costs the
-- exactness of a number that people are shown.

-- How long starts of each kind take. A median, for one job of four hours must not make everyone's
-- wait look like hours; of the means of up to five in a row, since a plain median is far below
-- what many jobs take together where a few are long, as answers of models are.
-- From the newest thousand finished jobs, and only for kinds of which something ended since.
create or replace function penstock._measure_paces() returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
begin
  with newest as materialized (
    select f.id, f.kind_id, f.status, f.ended_in_start, f.started_at, f.finished_at
    from penstock.finished f order by f.id desc limit 1000
  ),
  sample as materialized (
    select s.* from (
      select n.kind_id, n.finished_at,
        greatest(0, date_part('epoch', n.finished_at - n.started_at)) as seconds,
        row_number() over (partition by n.kind_id order by n.id desc) as nth,
        count(*) over (partition by n.kind_id) as total
      from newest n join penstock.kind k on k.id = n.kind_id
      where n.ended_in_start and n.status <> 'cancelled' -- guard: ran to its end
    ) s
    where s.nth <= 100
  ),
  bunch as (
    select s.kind_id, avg(s.seconds) as seconds, count(*) as n, max(s.finished_at) as newest_at
    from sample s
    group by s.kind_id, (s.nth - 1) / greatest(1, least(5, s.total / 5))
  )
  insert into penstock.pace as p (kind_id, seconds, samples, newest_at)
  select b.kind_id, percentile_cont(0.5) within group (order by b.seconds), sum(b.n),
    max(b.newest_at)
  from bunch b group by b.kind_id
  on conflict (kind_id) do update set seconds = excluded.seconds, samples = excluded.samples,
    newest_at = excluded.newest_at
  where p.newest_at <> excluded.newest_at;
end
$$;

-- How many run at once in queues where others wait: up at once, down slowly, for a look may come
-- just between an end and the next claim.
create or replace function penstock._measure_flows(p_now timestamptz) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  insert into penstock.flow as f (queue_id, parallel, seen_at)
  select r.queue_id, r.n, p_now
  from (
    select j.queue_id, count(*) as n from penstock.job j
    where j.deadline_at is not null group by j.queue_id
  ) r
  join penstock.queue q on q.id = r.queue_id
  where exists (
      select from penstock.job j where j.queue_id = r.queue_id and j.status = 'queued')
    -- What is stopped runs empty, and says nothing of how it goes otherwise.
    and penstock._stop(q.id, q.paused_at, p_now) is null -- guard: not stopped
  on conflict (queue_id) do update set
    parallel = greatest(excluded.parallel, 0.8 * f.parallel + 0.2 * excluded.parallel),
    seen_at = excluded.seen_at
$$;

-- The first job of each slice, in order. p_lane: of one lane; null: of all that are not closed.
create or replace function penstock._take_snapshot(
  p_queue integer, p_lane bigint, p_closed bigint[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_typical double precision := coalesce(
    (select t.seconds from penstock._typical_pace(p_queue) t), 0);
begin
  insert into penstock.snapshot as s (queue_id, lane, ranks, work)
  select p_queue, coalesce(p_lane, -2), array_agg(n.rank order by n.nth),
    array_agg(n.work order by n.nth)
  from (
    select j.rank, row_number() over by_rank as nth,
      sum(coalesce(p.seconds, v_typical)) over by_rank - coalesce(p.seconds, v_typical) as work
    from penstock.job j left join penstock.pace p on p.kind_id = j.kind_id
    where j.queue_id = p_queue and j.status = 'queued'
      and (j.lane = p_lane or (p_lane is null and j.lane <> all (p_closed)))
    window by_rank as (order by j.rank rows unbounded preceding)
  ) n
  where n.nth % penstock._slice_size() = 1
  having count(*) > 0
  on conflict (queue_id, lane) do update set ranks = excluded.ranks, work = excluded.work;
end
$$;

-- Snapshots of a deep queue: as a whole, and of lanes that are deep by themselves. Not in a fair
-- queue, where lanes say how many wait in them, as a whole.
create or replace function penstock._take_snapshots(p_queue integer, p_ordering text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set work_mem = '64MB'
as $$
declare
  v_began timestamptz := penstock.clock();
  v_closed bigint[] := array(
    select l.account_id from penstock.lane l
    where l.queue_id = p_queue and l.waiting > 0 and not l.open);
  v_deep bigint[] := array(
    select l.account_id from penstock.lane l
    where l.queue_id = p_queue and l.waiting > penstock._counted_at_submit());
begin
  delete from penstock.snapshot s
  where s.queue_id = p_queue and s.lane <> all (v_deep)
    and (s.lane <> -2 or p_ordering = 'fair');
  if p_ordering <> 'fair' then
    perform penstock._take_snapshot(p_queue, null, v_closed);
  end if;
  perform penstock._take_snapshot(p_queue, d.lane, '{}') from unnest(v_deep) d (lane);
  insert into penstock.flow as f (queue_id, closed, snapshot_due_at)
  values (p_queue, v_closed, penstock.clock()
    + greatest(interval '2 seconds', (penstock.clock() - v_began) * 20))
  on conflict (queue_id) do update set closed = excluded.closed,
    snapshot_due_at = excluded.snapshot_due_at;
end
$$;

-- One pass: nothing where another is at it, or was less than p_every ago. Whether it measured.
create or replace function penstock.measure_waits(p_every interval default '2 seconds')
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
  v_queue record;
begin
  if not pg_try_advisory_xact_lock(1886413177, 1) then
    return false;
  end if;
  update penstock.measured m set at = v_now
  where m.at <= v_now - p_every -- guard: not so soon
    or m.at > v_now; -- the clock was set back
  if not found then
    return false;
  end if;
  perform penstock._measure_paces();
  perform penstock._measure_flows(v_now);
  for v_queue in
    select q.id, q.ordering, f.snapshot_due_at,
      (select count(*) from (
         select from penstock.job j where j.queue_id = q.id and j.status = 'queued'
         limit penstock._counted_at_submit() + 1) d) > penstock._counted_at_submit() as deep
    from penstock.queue q left join penstock.flow f on f.queue_id = q.id
  loop
    if not v_queue.deep then
      delete from penstock.snapshot s where s.queue_id = v_queue.id;
    elsif v_queue.snapshot_due_at is null
      or v_queue.snapshot_due_at <= v_now or v_queue.snapshot_due_at > v_now + interval '10 minutes'
    then
      perform penstock._take_snapshots(v_queue.id, v_queue.ordering);
    end if;
  end loop;
  return true;
end
$$;
