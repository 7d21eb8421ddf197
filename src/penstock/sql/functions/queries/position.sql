-- The place of a job that waits: 1 is next to start. Ahead of it are the queued jobs that a claim
-- would take before: those of smaller rank in no lane, in open lanes and in its own; in a fair
-- queue those of a smaller tag, by the lanes' virtual times as claim.sql does. Jobs of kinds that
-- no worker has a handler for are not counted.
--
-- Near the head they are counted. Deeper, the snapshot that upkeep takes says how many are between
-- two slices, and only the jobs before the first untouched slice and those in the last one are
-- counted: so what was claimed since, and what came in front, are not missed. What came or went
-- between is, until the next snapshot. Each look from the head has to pass what the claims of the
-- last moments left in the index, so there is one such look where one will do.
-- Nothing here takes a lock, and nothing decides by it.

-- Up to here a place is counted.
create or replace function penstock._counted_positions() returns integer
language sql immutable parallel safe
as $$ select 2000 $$;

-- Within a submit only so many: a row takes 0.3 us, and the whole submit 500 (2026-11).
create or replace function penstock._counted_at_submit() returns integer
language sql immutable parallel safe
as $$ select 50 $$;

create or replace function penstock._slice_size() returns integer
language sql immutable parallel safe
as $$ select 250 $$;

-- What a start in this queue takes, over its kinds: for those that nothing is known of; and
-- whether kinds differ, so that it matters which jobs are ahead.
create or replace function penstock._typical_pace(p_queue integer)
returns table (seconds double precision, mixed boolean)
language sql stable
as $$
  select sum(p.seconds * p.samples) / sum(p.samples), count(*) > 1
  from penstock.kind k join penstock.pace p on p.kind_id = k.id
  where k.queue_id = p_queue
$$;

-- Queued jobs of these lanes (kind and account; account -1: in no lane) from rank p_from up to
-- (p_rank, p_id), p_limit at most, and their
-- work; the work is null where nothing is known. Not as a row comparison, which would read every
-- job of the lane: the range of ranks is for the index, equal ranks are looked at by themselves.
-- p_mixed: by kind, which has to read each row; else the index is enough, in a third of the time.
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
        offset 0 -- or the planner may think of the primary key, and read half of it
      ) e
    ) t
    where t.id < p_id; -- guard: not itself
  end if;
end
$$;

-- The same from the beginning of these lanes, by the snapshot of them where counting would take
-- too long. p_lanes: jobs in no lane first, then lanes by their heads.
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

-- The same for a job that has more than p_most before it. p_edge: the rank that has just p_most
-- before it, where that is known. Null: there is no snapshot, and p_most forbids to count further.
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
  v_last integer; -- the one the job is in
  v_front record;
  v_rear record;
begin
  select * into v_snapshot from penstock.snapshot s
  where s.queue_id = p_job.queue_id and s.lane = p_snapshot;
  if found then
    v_ranks := v_snapshot.ranks;
    if p_edge is null then
      -- Where jobs in no lane come first, the next lane has the smallest head of the others.
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
    -- To look into each of so many lanes takes longer than a slice is worth; so does any look in a
    -- submit, where a slice is less than a hundredth.
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

-- What is ahead of a job among jobs of p_kinds, and of that what is of its own account. p_laned:
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
  v_left_out boolean := false; -- the snapshot is without its lane
begin
  if p_job.lane = -1 and not p_laned and not p_mixed and cardinality(p_kinds) = 1 then
    -- As most submits find it: the same as below, in one look.
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

-- How many jobs of other open lanes of p_kinds come before the one in a fair queue that has p_own
-- before it in its account's lanes. The n-th of an account has the tag head + (n - 1) * step; equal
-- tags go by n.
create or replace function penstock._fair_ahead(
  p_queue integer, p_kinds integer[], p_account bigint, p_own bigint
) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_tag bigint;
begin
  -- A lane that opens again, or begins to wait again, begins where the queue is then.
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
