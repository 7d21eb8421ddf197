-- The position of a waiting job: 1 is next to start. Ahead of it are the queued jobs that claims
-- would take before it: those of smaller rank in no lane, in open lanes and in its own; in a fair
-- queue those of a smaller tag, by the lanes' virtual times as in choose.sql. Jobs of kinds that no
-- worker has a handler for are not counted.
--
-- Near the head of the queue the jobs are counted. Deeper, the snapshot that upkeep takes gives the
-- number of jobs between two slices, and only the jobs before the first untouched slice and those
-- in the last one are counted. So jobs that were claimed since, and jobs that were submitted in
-- front, are taken into account. Jobs that were added or left in between are not, until the next
-- snapshot. Each read from the head has to pass the dead index entries of the latest claims, so
-- there is only one such read if one is enough. Nothing here takes a lock, and no decision depends
-- on it.

-- Positions up to this one are counted.
create or replace function penstock._counted_positions() returns integer
language sql immutable parallel safe
as $$ select 2000 $$;

-- The same within a submit: a row takes 0.3 us, and the whole submit 500 (2026-11).
create or replace function penstock._counted_at_submit() returns integer
language sql immutable parallel safe
as $$ select 50 $$;

create or replace function penstock._slice_size() returns integer
language sql immutable parallel safe
as $$ select 250 $$;

-- The duration of an attempt in this queue, over all its kinds, used for kinds without
-- measurements. mixed: kinds differ, so that it matters which jobs are ahead.
create or replace function penstock._typical_pace(p_queue integer)
returns table (seconds double precision, mixed boolean)
language sql stable
as $$
  select sum(p.seconds * p.samples) / sum(p.samples), count(*) > 1
  from penstock.kind k join penstock.pace p on p.kind_id = k.id
  where k.queue_id = p_queue
$$;

-- The number of queued jobs of these lanes (kind and account; account -1: in no lane) from rank
-- p_from up to (p_rank, p_id), p_limit at most, and their work in seconds; the work is null if it
-- is not known. Not as a row comparison, which would read every job of the lane: the index serves
-- the range of ranks, and equal ranks are read separately. p_mixed: count by kind, which has to
-- read each row; otherwise the index is enough, in a third of the time.
create or replace function penstock._count_queued(
  p_queue integer, p_kinds integer[], p_lanes bigint[], p_from bigint, p_rank bigint, p_id uuid,
  p_limit integer, p_typical double precision, p_mixed boolean, out jobs bigint,
  out work double precision
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_mixed then
    select coalesce(sum(k.n), 0), coalesce(sum(k.n * coalesce(p.seconds, p_typical)), 0)
    into jobs, work
    from (
      select f.kind_id, count(*) as n from (
        select l.kind_id from unnest(p_kinds, p_lanes) l (kind_id, lane) cross join lateral (
          select from penstock.job j
          where j.queue_id = p_queue and j.kind_id = l.kind_id and j.lane = l.lane
            and j.status = 'queued' and j.rank >= p_from and j.rank < p_rank
        ) w
        limit p_limit
      ) f
      group by f.kind_id
    ) k
    left join penstock.pace p on p.kind_id = k.kind_id;
  else
    select count(*) into jobs from (
      select from unnest(p_kinds, p_lanes) l (kind_id, lane) cross join lateral (
        select from penstock.job j
        where j.queue_id = p_queue and j.kind_id = l.kind_id and j.lane = l.lane
          and j.status = 'queued' and j.rank >= p_from and j.rank < p_rank
      ) w
      limit p_limit
    ) f;
    work := case when jobs = 0 then 0 else jobs * p_typical end;
  end if;
  if p_id is not null then
    select jobs + count(*), work + count(*) * coalesce(p_typical, 0)
    into jobs, work
    from (
      select e.id from unnest(p_kinds, p_lanes) l (kind_id, lane) cross join lateral (
        select j.id from penstock.job j
        where j.queue_id = p_queue and j.kind_id = l.kind_id and j.lane = l.lane
          and j.status = 'queued' and j.rank = p_rank
        offset 0 -- otherwise the planner may use the primary key and read half of it
      ) e
    ) t
    where t.id < p_id; -- guard: not itself
  end if;
end
$$;

-- The same from the beginning of these lanes, by their snapshot if counting would take too long.
-- p_lanes: jobs in no lane first, then lanes by their heads.
create or replace function penstock._count_ahead(
  p_job penstock.job, p_kinds integer[], p_lanes bigint[], p_snapshot bigint, p_most integer,
  p_typical double precision, p_mixed boolean, out jobs bigint, out work double precision
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  select * into jobs, work from penstock._count_queued(p_job.queue_id, p_kinds, p_lanes,
    -9223372036854775808, p_job.rank, p_job.id, p_most + 1, p_typical, p_mixed);
  if jobs > p_most then
    select * into jobs, work
    from penstock._by_snapshot(p_job, p_kinds, p_lanes, p_snapshot, null, p_most, p_typical,
      p_mixed);
  end if;
end
$$;

-- The same for a job that has more than p_most jobs before it. p_edge: the rank that has exactly
-- p_most before it, if known. Returns null if there is no snapshot and p_most forbids counting
-- further.
create or replace function penstock._by_snapshot(
  p_job penstock.job, p_kinds integer[], p_lanes bigint[], p_snapshot bigint, p_edge bigint,
  p_most integer, p_typical double precision, p_mixed boolean, out jobs bigint,
  out work double precision
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_from bigint := coalesce(p_edge, -9223372036854775808);
  v_counted integer := case when p_edge is null then 0 else p_most end;
  v_hurried boolean := p_most < penstock._counted_positions();
  v_slice integer := penstock._slice_size();
  v_snapshot penstock.snapshot;
  v_ranks bigint[];
  v_head bigint := p_edge;
  v_unordered integer;
  v_first integer; -- the first slice of which nothing has been claimed
  v_last integer; -- the slice of the job
  v_front record;
  v_rear record;
begin
  select * into v_snapshot from penstock.snapshot s
  where s.queue_id = p_job.queue_id and s.lane = p_snapshot;
  if found then
    v_ranks := v_snapshot.ranks;
    if p_edge is null then
      -- Jobs in no lane come first; the lane after them has the smallest head of the others.
      v_unordered := case when p_lanes[1] = -1 then 1 + cardinality(array_positions(p_lanes, -1))
        else cardinality(p_lanes) end;
      select min(h.rank) into v_head
      from unnest(p_kinds[1:v_unordered], p_lanes[1:v_unordered]) l (kind_id, lane)
      cross join lateral (
        select j.rank from penstock.job j
        where j.queue_id = p_job.queue_id and j.kind_id = l.kind_id and j.lane = l.lane
          and j.status = 'queued'
        order by j.rank limit 1
      ) h;
    end if;
    v_first := width_bucket(v_head, v_ranks) + 1;
    v_last := width_bucket(p_job.rank, v_ranks);
  end if;
  if v_last >= v_first
    and (cardinality(p_lanes) > 256 or (v_hurried and v_last > v_first + 100))
  then
    -- Reading each of so many lanes costs more than the exactness of one slice is worth. So does
    -- any read within a submit when a slice is less than a hundredth.
    jobs := greatest(p_most + 1, v_counted + ((v_last - v_first)::bigint
      + penstock._share(v_ranks, v_last, p_job.rank)
      + 1 - penstock._share(v_ranks, v_first - 1, v_head)) * v_slice);
    work := v_snapshot.work[v_last] - v_snapshot.work[v_first]
      + (v_counted + v_slice) * p_typical;
  elsif v_last >= v_first then
    select * into v_front from penstock._count_queued(p_job.queue_id, p_kinds, p_lanes, v_from,
      v_ranks[v_first], null, case when v_hurried then v_slice end, p_typical, p_mixed);
    select * into v_rear from penstock._count_queued(p_job.queue_id, p_kinds, p_lanes,
      v_ranks[v_last], p_job.rank, p_job.id, case when v_hurried then v_slice end, p_typical,
      p_mixed);
    jobs := greatest(p_most + 1,
      v_counted + v_front.jobs + (v_last - v_first)::bigint * v_slice + v_rear.jobs);
    work := v_counted * p_typical + v_front.work
      + v_snapshot.work[v_last] - v_snapshot.work[v_first] + v_rear.work;
  elsif not v_hurried or v_first is not null then
    select c.jobs + v_counted, c.work + v_counted * p_typical into jobs, work
    from penstock._count_queued(p_job.queue_id, p_kinds, p_lanes, v_from, p_job.rank, p_job.id,
      case when v_hurried then p_most + v_slice end, p_typical, p_mixed) c;
  end if;
end
$$;

-- How far into a slice a rank is, from 0 to 1, if its jobs are spread evenly.
create or replace function penstock._share(p_ranks bigint[], p_slice integer, p_rank bigint)
returns double precision
language sql immutable parallel safe
as $$
  select coalesce((p_rank - p_ranks[p_slice])::double precision
    / nullif(p_ranks[p_slice + 1] - p_ranks[p_slice], 0), 0)
$$;

-- The jobs of p_kinds that are ahead of a job, and those of them of its own account. p_laned:
-- whether the queue has open lanes; p_mixed: whether the paces of its kinds differ.
create or replace function penstock._jobs_ahead(
  p_job penstock.job, p_kinds integer[], p_ordering text, p_laned boolean, p_most integer,
  p_typical double precision, p_mixed boolean, out jobs bigint, out work double precision,
  out own_jobs bigint, out own_work double precision
)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_edge bigint;
  v_kinds integer[];
  v_lanes bigint[];
  v_own bigint[] := array_fill(p_job.lane, array[cardinality(p_kinds)]);
  v_left_out boolean := false; -- the snapshot does not include its lane
begin
  if p_job.lane = -1 and not p_laned and not p_mixed and cardinality(p_kinds) = 1 then
    -- The usual case of a submit: the same as below, in one statement.
    select n.jobs + case when n.jobs > p_most then 0 else (
      select count(*) from (
        select j.id from penstock.job j
        where j.queue_id = p_job.queue_id and j.kind_id = p_kinds[1] and j.lane = -1
          and j.status = 'queued' and j.rank = p_job.rank
        offset 0
      ) t
      where t.id < p_job.id) end, -- guard: not itself
      n.edge
    into jobs, v_edge
    from (
      select count(*) as jobs, max(f.rank) as edge from (
        select j.rank from penstock.job j
        where j.queue_id = p_job.queue_id and j.kind_id = p_kinds[1] and j.lane = -1
          and j.status = 'queued' and j.rank < p_job.rank
        order by j.rank limit p_most + 1
      ) f
    ) n;
    if jobs <= p_most then
      work := case when jobs = 0 then 0 else jobs * p_typical end;
    else
      select * into jobs, work
      from penstock._by_snapshot(p_job, p_kinds, array[-1], -2, v_edge, p_most, p_typical, p_mixed);
    end if;
    return;
  end if;
  if p_job.lane >= 0 then
    select * into own_jobs, own_work
    from penstock._count_ahead(p_job, p_kinds, v_own, p_job.lane, p_most, p_typical, p_mixed);
    if p_ordering = 'fair' then
      jobs := own_jobs + penstock._fair_ahead(p_job.queue_id, p_kinds, p_job.lane, own_jobs);
      work := own_work + (jobs - own_jobs) * p_typical;
      return;
    end if;
    v_left_out := exists (
      select from penstock.flow f
      where f.queue_id = p_job.queue_id and p_job.lane = any (f.closed));
  end if;
  select array_agg(o.kind_id), array_agg(o.account_id) into v_kinds, v_lanes
  from (
    select f.kind_id, f.account_id
    from unnest(p_kinds) k (id) cross join lateral (
      select l.kind_id, l.account_id, l.head from penstock.lane l
      where l.queue_id = p_job.queue_id and l.kind_id = k.id
        and l.open -- guard: open
        and l.waiting > 0 and l.head <= p_job.rank and l.account_id <> p_job.lane
      order by l.head limit p_most + 1
    ) f
    order by f.head limit p_most + 1
  ) o;
  v_kinds := p_kinds || v_kinds;
  v_lanes := array_fill(-1::bigint, array[cardinality(p_kinds)]) || v_lanes;
  if p_job.lane >= 0 and not v_left_out then
    v_kinds := v_kinds || p_kinds;
    v_lanes := v_lanes || v_own;
  end if;
  select * into jobs, work
  from penstock._count_ahead(p_job, v_kinds, v_lanes, -2, p_most, p_typical, p_mixed);
  if v_left_out then
    jobs := jobs + own_jobs;
    work := work + own_work;
  end if;
end
$$;

-- The number of jobs of other open lanes of p_kinds before a job in a fair queue that has p_own
-- jobs before it in its account's lanes. The n-th job of an account has the tag head + (n - 1) *
-- step; equal tags are ordered by n.
create or replace function penstock._fair_ahead(
  p_queue integer, p_kinds integer[], p_account bigint, p_own bigint
) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_tag bigint;
begin
  -- A lane that opens again, or gets jobs again, gets the virtual time that the queue has then.
  select coalesce(max(l.head) filter (where l.open and l.waiting > 0),
      greatest(max(l.head), penstock._fair_floor(p_queue)))
    + p_own * penstock._fair_step(min(a.weight))
  into v_tag
  from penstock.lane l join penstock.account a on a.id = l.account_id
  where l.queue_id = p_queue and l.account_id = p_account;
  return (
    select coalesce(sum(least(o.waiting,
      (v_tag - o.head + o.step - 1) / o.step
      + ((v_tag - o.head) % o.step = 0
         and ((v_tag - o.head) / o.step, o.account_id) < (p_own, p_account))::integer)), 0)
    from (
      select l.account_id, sum(l.waiting) as waiting, max(l.head) as head,
        penstock._fair_step(min(a.weight)) as step
      from penstock.lane l join penstock.account a on a.id = l.account_id
      where l.queue_id = p_queue and l.kind_id = any (p_kinds)
        and l.open -- guard: open
        and l.waiting > 0
        and l.head <= v_tag and l.account_id <> p_account
      group by l.account_id
    ) o);
end
$$;
