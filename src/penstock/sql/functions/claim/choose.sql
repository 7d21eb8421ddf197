-- Choose the jobs that a claim starts: lock accounts and jobs that nobody else has locked, and
-- choose among them by rank, or by virtual time in a fair queue. If the queue has a limit, the
-- caller has locked its gate.

-- Locks and returns up to p_limit jobs in no lane, those of the smallest ranks of all p_kinds
-- first. p_strays: accounts that have a limit by now, so that their jobs belong in lanes.
create or replace function penstock._hold_plain(
  p_queue integer, p_kinds integer[], p_limit integer, p_strays bigint[], p_now timestamptz,
  out jobs uuid[], out ranks bigint[], out owners bigint[]
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_share integer;
  v_round record;
  v_after bigint := -9223372036854775808;
  v_seen uuid[] := '{}';
begin
  if cardinality(p_kinds) = 1 then
    select array_agg(n.id), array_agg(n.rank),
      array_agg(n.account_id) filter (where n.account_id <> 0)
    into jobs, ranks, owners from (
      select j.id, j.rank, j.account_id from penstock.job j
      where j.queue_id = p_queue and j.kind_id = p_kinds[1] and j.lane = -1
        and j.status = 'queued' -- guard: waits
        and j.account_id <> all (p_strays) -- guard: stray
        -- An expired job that is still queued has a locked account. It must not start too late.
        and (j.expires_at is null or j.expires_at > p_now) -- guard: in time
      order by j.rank limit p_limit for no key update skip locked
    ) n;
    return;
  end if;
  -- Several kinds are merged by rank. Reading p_limit jobs of each kind would take time in
  -- proportion to the number of kinds. So the first round reads twice the even share of each and
  -- takes the jobs whose order is certain; each further round reads twice as many.
  v_share := 1 + 2 * p_limit / cardinality(p_kinds);
  loop
    v_share := least(v_share, p_limit - coalesce(cardinality(jobs), 0));
    with candidate as materialized (
      select c.id, c.rank, c.nth
      from unnest(p_kinds) k (id)
      cross join lateral (
        select f.id, f.rank, row_number() over () as nth
        from (
          select j.id, j.rank from penstock.job j
          where j.queue_id = p_queue and j.kind_id = k.id and j.lane = -1
            and j.status = 'queued' -- guard: merged queued
            and j.rank >= v_after and (j.rank > v_after or j.id <> all (v_seen))
            and j.account_id <> all (p_strays) -- guard: merged stray
            and (j.expires_at is null or j.expires_at > p_now) -- guard: merged in time
          order by j.rank limit v_share
        ) f
      ) c
    ),
    first as materialized (
      select c.id, c.rank from candidate c
      -- If the share of a kind was read in full, its jobs beyond the last rank read are not known.
      where v_share = p_limit - coalesce(cardinality(jobs), 0)
        or c.rank <= (select coalesce(min(e.rank), 9223372036854775807) from candidate e
                      where e.nth = v_share)
      order by c.rank limit p_limit - coalesce(cardinality(jobs), 0)
    ),
    held as materialized (
      select j.id, j.rank, j.account_id
      from first f join penstock.job j on j.id = f.id
      where j.lane = -1
        and j.status = 'queued' -- guard: merged waits
      order by f.rank for no key update of j skip locked
    )
    select array_agg(h.id order by h.rank) as jobs, array_agg(h.rank order by h.rank) as ranks,
      array_agg(h.account_id) filter (where h.account_id <> 0) as owners,
      (select max(f.rank) from first f) as last,
      (select array_agg(f.id) from first f) as seen,
      (select count(*) from candidate c) > (select count(*) from first f)
        or exists (select from candidate c where c.nth = v_share) as more
    into v_round from held h;
    jobs := jobs || v_round.jobs;
    ranks := ranks || v_round.ranks;
    owners := owners || v_round.owners;
    exit when not v_round.more or cardinality(jobs) >= p_limit;
    v_after := v_round.last;
    v_seen := v_seen || v_round.seen;
    v_share := 2 * v_share;
  end loop;
end
$$;

-- Locks and returns up to p_limit accounts that have open lanes of p_kinds, by their first head;
-- accounts that are locked are skipped. The account's values are read under the lock.
create or replace function penstock._hold_accounts(
  p_queue integer, p_kinds integer[], p_limit integer,
  out accounts bigint[], out heads bigint[], out running integer[], out limits integer[],
  out weights integer[]
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_limit integer := p_limit;
  v_candidates integer;
begin
  loop
    with first as materialized (
      select f.account_id, min(f.head) as head
      from unnest(p_kinds) k (id)
      cross join lateral (
        select l.account_id, l.head from penstock.lane l
        where l.queue_id = p_queue and l.kind_id = k.id and l.open and l.waiting > 0
        order by l.head limit v_limit
      ) f
      group by f.account_id
    ),
    held as materialized (
      select f.account_id, f.head, a.running, a.concurrency, a.weight
      from first f join penstock.account a on a.id = f.account_id
      order by f.head, f.account_id limit p_limit
      for no key update of a skip locked -- guard: locked
    )
    select array_agg(h.account_id), array_agg(h.head), array_agg(h.running),
      array_agg(h.concurrency), array_agg(h.weight), (select count(*) from first)
    into accounts, heads, running, limits, weights, v_candidates
    from held h;
    -- Others have locked some of the first accounts: the accounts behind them may start instead.
    exit when cardinality(accounts) >= p_limit or v_candidates < v_limit;
    v_limit := 4 * v_limit;
  end loop;
end
$$;

-- Chooses up to p_limit jobs of p_kinds among the lanes of p_accounts (locked) and p_plain (jobs in
-- no lane, locked), and updates lanes and accounts. Every chosen job of a lane takes one slot of
-- its account. Lanes whose account turns out to be full (the other of two queues that share a limit
-- may have filled it) are closed: if they stayed open, they would stay in front for ever.
create or replace function penstock._choose(
  p_queue penstock.queue, p_kinds integer[], p_limit integer, p_accounts bigint[],
  p_running integer[], p_limits integer[], p_weights integer[], p_plain uuid[],
  p_plain_ranks bigint[]
) returns uuid[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_chosen uuid[];
  -- In a fair queue, many lanes without a limit may compete: reading p_limit jobs from each would
  -- cost the square of p_limit. Twice the even share is enough; a heavier lane gets the rest next
  -- time.
  v_share integer := case when p_queue.ordering = 'fair'
    then least(p_limit, 2 * ceil(p_limit::numeric / cardinality(p_accounts)) + 1)
    else p_limit end;
begin
  with owned as materialized (
    -- Lanes of other kinds, too: they are closed and get a new head with their account.
    select l.account_id, l.kind_id, u.step, u.running, u.concurrency, u.free,
      l.kind_id = any (p_kinds) as competes,
      max(l.head) over (partition by l.account_id) as head
    from (
      select a.account_id, penstock._fair_step(a.weight) as step, a.running, a.concurrency,
        greatest(0, least(v_share,
          coalesce(a.concurrency - a.running, p_limit) -- guard: account limit
        )) as free
      from unnest(p_accounts, p_running, p_limits, p_weights)
        a (account_id, running, concurrency, weight)
    ) u
    join penstock.lane l on l.account_id = u.account_id and l.queue_id = p_queue.id
      and l.waiting > 0
  ),
  candidate as materialized (
    -- One more of each lane than may start: the next job becomes its head.
    select j.id, l.account_id, l.kind_id, j.rank, l.free, l.head, l.step,
      row_number() over (partition by l.account_id order by j.rank) as nth
    from owned l
    cross join lateral (
      select j.id, j.rank from penstock.job j
      where j.queue_id = p_queue.id and j.kind_id = l.kind_id and j.lane = l.account_id
        and j.status = 'queued' -- guard: queued
      order by j.rank limit l.free + 1
    ) j
    where l.competes
  ),
  ordered as materialized (
    select n.*, n.may_start
      and row_number() over (partition by n.may_start order by n.tag, n.nth)
        <= p_limit as chosen -- guard: limit
    from (
      select c.id, c.account_id, c.kind_id, c.rank, c.nth, c.nth <= c.free as may_start,
        case when p_queue.ordering = 'fair' then c.head + (c.nth - 1) * c.step else c.rank end
          as tag
      from candidate c
      union all
      select u.id, null, null, u.rank, 1, true, u.rank
      from unnest(p_plain, p_plain_ranks) u (id, rank)
    ) n
  ),
  taken as materialized (
    select o.account_id, o.kind_id, o.head, o.step, o.running, o.concurrency,
      count(*) filter (where p.chosen) as n,
      min(p.rank) filter (where not p.chosen) as next_rank,
      sum(count(*) filter (where p.chosen)) over (partition by o.account_id) as total
    from owned o
    left join ordered p on p.account_id = o.account_id and p.kind_id = o.kind_id
    group by o.account_id, o.kind_id, o.head, o.step, o.running, o.concurrency
  ),
  moved_lanes as (
    update penstock.lane l set
      waiting = l.waiting - t.n,
      head = case when p_queue.ordering = 'fair'
          then t.head + (t.total * t.step)::bigint
        else coalesce(t.next_rank, l.head) end,
      open = t.concurrency is null
        or t.running + t.total < t.concurrency -- guard: closes
    from taken t
    where l.account_id = t.account_id and l.queue_id = p_queue.id and l.kind_id = t.kind_id
      and (t.n > 0 or (t.total > 0 and p_queue.ordering = 'fair')
        or t.running + t.total >= t.concurrency) -- guard: full
  ),
  counted as (
    update penstock.account a set running = a.running + t.total
    from (select distinct t.account_id, t.total from taken t where t.total > 0) t
    where a.id = t.account_id
  )
  select array_agg(p.id order by p.tag, p.nth) into v_chosen from ordered p where p.chosen;
  return v_chosen;
end
$$;

-- Chooses one job by its id and takes a slot of its account; null: it may not start now.
create or replace function penstock._choose_one(
  p_queue integer, p_kinds integer[], p_job uuid
) returns uuid[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_stray boolean;
  v_lane bigint;
  v_full boolean;
begin
  -- The job is in no lane, although its account has a limit by now: it belongs in one.
  select penstock._enlane_strays(array[j.id], array[j.account_id]) is not null
  into v_stray
  from penstock.job j where j.id = p_job and j.lane = -1 and j.account_id <> 0;
  -- Lock the account before the job, as everywhere.
  select j.lane into v_lane from penstock.job j
  where j.id = p_job and j.queue_id = p_queue and j.kind_id = any (p_kinds);
  if v_stray and v_lane = -1 then -- guard: stray
    return null;
  end if;
  if v_lane >= 0 then
    update penstock.account a set running = a.running + 1
    where a.id = (
        select s.id from penstock.account s where s.id = v_lane for no key update skip locked)
      and (a.concurrency is null or a.running < a.concurrency) -- guard: account limit
    returning a.running >= a.concurrency into v_full;
    if not found then
      return null;
    end if;
  end if;
  perform from penstock.job j
  where j.id = p_job and j.lane = v_lane
    and j.status = 'queued' -- guard: waits
    -- As in _hold_plain: while its account is locked, nobody can expire it.
    and (j.expires_at is null or j.expires_at > penstock.clock()) -- guard: in time
  for no key update skip locked;
  if not found then
    -- Not due, expired, or claimed by another worker meanwhile: release the slot.
    update penstock.account a set running = a.running - 1 where a.id = v_lane and v_lane >= 0;
    return null;
  end if;
  if v_lane >= 0 then
    update penstock.lane l set open = l.open and v_full is not true
    where l.account_id = v_lane and l.queue_id = p_queue;
  end if;
  return array[p_job];
end
$$;

-- Returns the owners of p_jobs (jobs in no lane) that have a limit; null: none. Moves their jobs
-- into lanes if the account can be locked at once, else leaves them to the next claim.
create or replace function penstock._enlane_strays(p_jobs uuid[], p_owners bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_limited bigint[];
  v_locked bigint[];
begin
  select array_agg(a.id) into v_limited
  from (select distinct u.id from unnest(p_owners) u (id)) o
  join penstock.account a on a.id = o.id
  where a.concurrency is not null;
  if v_limited is not null then
    select array_agg(l.id) into v_locked from (
      select a.id from penstock.account a where a.id = any (v_limited)
      order by a.id for no key update skip locked
    ) l;
    perform penstock._enlane_jobs(array(
      select j.id from unnest(p_jobs) u (id) join penstock.job j on j.id = u.id
      where j.account_id = any (v_locked))); -- guard: account held
  end if;
  return v_limited;
end
$$;
