-- Measurements of upkeep for position.sql and eta.sql: how long attempts take, how many run at
-- once, and which ranks are at which positions of a deep queue. Nothing is decided by them: if they
-- are late or missing, numbers that people see are less exact.

-- The first job of each slice of one lane (-1: of no lane) of one kind, in order, slice by slice
-- along the index. One statement with a window took four times as long, and while it runs vacuum
-- cannot remove the dead rows that claims leave (2026-11). p_from, p_done: the rank to begin with,
-- and the work before it.
create or replace function penstock._slices_of_lane(
  p_queue integer, p_kind integer, p_lane bigint, p_typical double precision, p_from bigint,
  p_done double precision, out ranks bigint[], out work double precision[]
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_slice record;
  v_done double precision := p_done;
  v_after bigint := p_from - 1;
  v_seconds double precision := coalesce(
    (select p.seconds from penstock.pace p where p.kind_id = p_kind), p_typical);
begin
  loop
    select min(s.rank) as first, max(s.rank) as last, count(*) * v_seconds as seconds
    into v_slice
    from (
      select j.rank from penstock.job j
      where j.queue_id = p_queue and j.kind_id = p_kind and j.lane = p_lane
        and j.status = 'queued' and j.rank > v_after
      order by j.rank limit penstock._slice_size()
    ) s;
    exit when v_slice.first is null;
    ranks := ranks || v_slice.first;
    work := work || v_done;
    v_done := v_done + v_slice.seconds;
    v_after := v_slice.last;
  end loop;
end
$$;

-- The same for several lanes and kinds together: of one account, or (null) of all except p_closed.
create or replace function penstock._slices_of_lanes(
  p_queue integer, p_kinds integer[], p_account bigint, p_closed bigint[],
  p_typical double precision, out ranks bigint[], out work double precision[]
)
language sql stable set search_path = pg_catalog, pg_temp set work_mem = '64MB'
as $$
  select array_agg(n.rank order by n.nth), array_agg(n.work order by n.nth)
  from (
    select j.rank, row_number() over by_rank as nth,
      sum(coalesce(p.seconds, p_typical)) over by_rank - coalesce(p.seconds, p_typical) as work
    from penstock.job j left join penstock.pace p on p.kind_id = j.kind_id
    where j.queue_id = p_queue and j.kind_id = any (p_kinds) and j.status = 'queued'
      and (j.lane = p_account or (p_account is null and j.lane <> all (p_closed)))
    window by_rank as (order by j.rank rows unbounded preceding)
  ) n
  where n.nth % penstock._slice_size() = 1
$$;

-- Takes snapshots of a deep queue: of the whole queue (lane -2), and of each account with many
-- waiting jobs. There is none of a whole fair queue, where lanes hold the number of their jobs.
-- Only kinds that can run are included.
create or replace function penstock._take_snapshots(
  p_queue integer, p_ordering text, p_kinds integer[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_began timestamptz := penstock.clock();
  v_typical double precision := coalesce(
    (select t.seconds from penstock._typical_pace(p_queue) t), 0);
  v_closed bigint[] := array(
    select distinct l.account_id from penstock.lane l
    where l.queue_id = p_queue and l.waiting > 0 and not l.open);
  v_deep record;
  v_slices record;
begin
  delete from penstock.snapshot s where s.queue_id = p_queue;
  for v_deep in
    select l.account_id as lane, l.account_id as account, array_agg(l.kind_id) as kinds
    from penstock.lane l
    where l.queue_id = p_queue and l.kind_id = any (p_kinds) and l.waiting > 0
    group by l.account_id having sum(l.waiting) > penstock._counted_at_submit()
    union all
    -- If no jobs wait in open lanes, only jobs in no lane.
    select -2, case when not exists (
        select from penstock.lane l
        where l.queue_id = p_queue and l.waiting > 0 and l.open) then -1 end, p_kinds
    where p_ordering <> 'fair'
  loop
    if cardinality(v_deep.kinds) = 1 and v_deep.account is not null then
      select * into v_slices from penstock._slices_of_lane(
        p_queue, v_deep.kinds[1], v_deep.account, v_typical, -9223372036854775807, 0);
    else
      select * into v_slices from penstock._slices_of_lanes(
        p_queue, v_deep.kinds, v_deep.account, v_closed, v_typical);
    end if;
    insert into penstock.snapshot (queue_id, lane, ranks, work)
    select p_queue, v_deep.lane, v_slices.ranks, v_slices.work
    where v_slices.ranks is not null;
  end loop;
  insert into penstock.flow as f (queue_id, closed, snapshot_due_at)
  values (p_queue, v_closed, penstock.clock()
    + greatest(interval '2 seconds', (penstock.clock() - v_began) * 20))
  on conflict (queue_id) do update set closed = excluded.closed,
    snapshot_due_at = excluded.snapshot_due_at;
end
$$;

-- Between two snapshots, adds the jobs that were submitted since, from the last slice on. Otherwise
-- each reader of a job near the end would have to count them all, tens of thousands when many are
-- submitted. Only if a single kind can run: several kinds have no common end in the index.
create or replace function penstock._extend_snapshots(p_queue integer, p_kinds integer[])
returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update penstock.snapshot s set ranks = o.ranks[:cardinality(o.ranks) - 1] || e.ranks,
    work = o.work[:cardinality(o.work) - 1] || e.work
  from penstock.snapshot o cross join lateral penstock._typical_pace(p_queue) t
  cross join lateral penstock._slices_of_lane(p_queue, p_kinds[1], greatest(o.lane, -1),
    coalesce(t.seconds, 0), o.ranks[cardinality(o.ranks)], o.work[cardinality(o.work)]) e
  where o.queue_id = p_queue and s.queue_id = o.queue_id and s.lane = o.lane
    and cardinality(p_kinds) = 1
    and e.ranks is not null
    -- Several lanes together have no common end either.
    and (o.lane >= 0 or not exists (
      select from penstock.lane l where l.queue_id = p_queue and l.waiting > 0))
$$;

-- Runs one pass, unless another pass is running or ran less than p_every ago. Returns whether it
-- measured.
create or replace function penstock.measure_waits(p_every interval default '1 second')
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
  -- How long attempts of each kind take. The median, because one job of four hours must not make
  -- everyone's ETA hours long. It is the median of the means of up to five jobs in a row, because a
  -- plain median is far below the time that many jobs take together when a few of them are long, as
  -- answers of models are. From the newest thousand finished jobs, and only for kinds of which a
  -- job has finished since.
  with newest as materialized (
    select f.id, f.kind_id, f.status, f.finished_by_attempt, f.started_at, f.finished_at
    from penstock.finished f order by f.id desc limit 1000
  ),
  sample as materialized (
    select s.* from (
      select n.kind_id, n.finished_at,
        greatest(0, date_part('epoch', n.finished_at - n.started_at)) as seconds,
        row_number() over (partition by n.kind_id order by n.id desc) as nth,
        count(*) over (partition by n.kind_id) as total
      from newest n join penstock.kind k on k.id = n.kind_id
      where n.finished_by_attempt and n.status <> 'cancelled' -- guard: ran to its end
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
  -- How many run at once in queues in which others wait. The value rises at once and falls slowly,
  -- because a pass may come just between a finish and the next claim.
  insert into penstock.flow as f (queue_id, parallel, seen_at)
  select r.queue_id, r.n, v_now
  from (
    select j.queue_id, count(*) as n from penstock.job j
    where j.deadline_at is not null group by j.queue_id
  ) r
  join penstock.queue q on q.id = r.queue_id
  where exists (
      select from penstock.job j where j.queue_id = r.queue_id and j.status = 'queued')
    -- A stopped queue runs empty, which says nothing about its usual number.
    and ( -- guard: not stopped
      select s from penstock._stop(q, null, v_now) s) is null
  on conflict (queue_id) do update set
    parallel = greatest(excluded.parallel, 0.8 * f.parallel + 0.2 * excluded.parallel),
    seen_at = excluded.seen_at;
  for v_queue in
    select q.id, q.ordering, f.snapshot_due_at, penstock._served_kinds(q.id, v_now) as kinds,
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
      perform penstock._take_snapshots(v_queue.id, v_queue.ordering, v_queue.kinds);
    else
      perform penstock._extend_snapshots(v_queue.id, v_queue.kinds);
    end if;
  end loop;
  -- Last: it keeps autovacuum from the tables until the end.
  perform penstock._refresh_statistics();
  return true;
end
$$;
