-- A lane holds the waiting jobs of one limited account and one kind in one queue. Lanes are
-- separate for each kind, because a worker starts only kinds that it has a handler for: its claims
-- skip the other lanes without reading them.
--
-- Claims read open lanes in the order of `head` and never read a closed one, so a million blocked
-- jobs cost them nothing. Callers of the functions of this file have locked the accounts' rows: the
-- count of running jobs, and so `open`, cannot change meanwhile. (A submit that read before it
-- locked would miss a finish in between and leave a closed lane beside a free slot for ever.) In a
-- fair queue, `head` is the lane's virtual time in nanoseconds: each attempt adds 10 us / weight.
-- At under 100,000 attempts a second it cannot run ahead of the wall clock. So a lane that begins
-- to wait in an idle queue starts at "now", and no shared row has to store the queue's virtual
-- time. That time belongs to the account: all its lanes in one queue have the same.

create or replace function penstock._fair_step(p_weight integer) returns bigint
language sql immutable parallel safe
as $$ select 10000 / greatest(coalesce(p_weight, 1), 1) $$;

-- The virtual time of a fair queue: the smallest head among the competing lanes, of kinds that some
-- worker serves. A lane that begins to compete, also again after its account was full, gets this
-- head: with an older one it would stay in front of all other accounts.
create or replace function penstock._fair_floor(p_queue integer) returns bigint
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select min(f.head)
  from unnest(penstock._served_kinds(p_queue, penstock.clock())) k (id)
  cross join lateral (
    select l.head from penstock.lane l
    where l.queue_id = p_queue and l.kind_id = k.id and l.open and l.waiting > 0
    order by l.head limit 1
  ) f
$$;

-- Adds jobs to the counters of their lanes, one array element per job.
create or replace function penstock._join_lanes(
  p_queues integer[], p_accounts bigint[], p_kinds integer[], p_ranks bigint[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_fair boolean;
begin
  with joined as (
    insert into penstock.lane as l (queue_id, account_id, kind_id, head, waiting, open)
    select g.queue_id, g.account_id, g.kind_id,
      case when q.ordering = 'fair'
        then coalesce(penstock._fair_floor(g.queue_id),
          (date_part('epoch', penstock.clock()) * 1e9)::bigint)
        else g.head end,
      g.waiting,
      coalesce(a.running < a.concurrency, true) -- guard: slot free
    from (
      select u.queue_id, u.account_id, u.kind_id, min(u.rank) as head, count(*) as waiting
      from unnest(p_queues, p_accounts, p_kinds, p_ranks) u (queue_id, account_id, kind_id, rank)
      group by u.queue_id, u.account_id, u.kind_id
    ) g
    join penstock.queue q on q.id = g.queue_id
    join penstock.account a on a.id = g.account_id
    order by g.account_id, g.queue_id, g.kind_id
    on conflict (account_id, queue_id, kind_id) do update set
      waiting = l.waiting + excluded.waiting,
      head = case
        when (select q.ordering = 'fair' from penstock.queue q where q.id = excluded.queue_id)
          then case when l.waiting = 0 then greatest(l.head, excluded.head) else l.head end
        when l.waiting = 0 then excluded.head
        else least(l.head, excluded.head) end,
      open = excluded.open
    returning l.queue_id
  )
  select bool_or(q.ordering = 'fair') into v_fair
  from joined j join penstock.queue q on q.id = j.queue_id;
  if v_fair then
    -- An account has one virtual time in a queue, whatever the number of its lanes there.
    update penstock.lane l set head = g.head
    from (
      select o.queue_id, o.account_id, max(o.head) as head
      from unnest(p_queues, p_accounts) u (queue_id, account_id)
      join penstock.queue q on q.id = u.queue_id and q.ordering = 'fair'
      join penstock.lane o on o.queue_id = u.queue_id and o.account_id = u.account_id
      group by o.queue_id, o.account_id
    ) g
    where l.queue_id = g.queue_id and l.account_id = g.account_id and l.head < g.head;
  end if;
end
$$;

-- Subtracts jobs from their lanes that are cancelled or expire before they start.
create or replace function penstock._leave_lanes(
  p_queues integer[], p_accounts bigint[], p_kinds integer[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  update penstock.lane l set
    waiting = l.waiting - g.gone,
    head = case when q.ordering = 'fair' then l.head
      else coalesce(
        (select j.rank from penstock.job j
         where j.queue_id = l.queue_id and j.kind_id = l.kind_id and j.lane = l.account_id
           and j.status = 'queued'
         order by j.rank limit 1),
        l.head) end
  from (
    select u.queue_id, u.account_id, u.kind_id, count(*) as gone
    from unnest(p_queues, p_accounts, p_kinds) u (queue_id, account_id, kind_id)
    group by u.queue_id, u.account_id, u.kind_id
  ) g
  join penstock.queue q on q.id = g.queue_id
  where l.queue_id = g.queue_id and l.account_id = g.account_id and l.kind_id = g.kind_id;
end
$$;

-- Opens the closed lanes, in all queues, of accounts that have a free slot.
create or replace function penstock._open_lanes(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  update penstock.lane l set open = true,
    head = case when q.ordering = 'fair' then greatest(l.head, penstock._fair_floor(l.queue_id))
      else l.head end
  from penstock.account a, penstock.queue q
  where a.id = any (p_accounts) and l.account_id = a.id and q.id = l.queue_id
    and not l.open and l.waiting > 0
    and (a.concurrency is null or a.running < a.concurrency); -- guard: slot free
end
$$;

-- Moves queued jobs that are in no lane into those of their accounts.
create or replace function penstock._enlane_jobs(p_jobs uuid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_moved record;
begin
  with moved as (
    update penstock.job j set lane = j.account_id
    where j.id = any (p_jobs)
      and j.status = 'queued' -- guard: queued
      and j.lane = -1 -- guard: in no lane
    returning j.queue_id, j.account_id, j.kind_id, j.rank
  )
  select array_agg(m.queue_id) as queues, array_agg(m.account_id) as accounts,
    array_agg(m.kind_id) as kinds, array_agg(m.rank) as ranks
  into v_moved from moved m;
  if v_moved.queues is not null then
    perform penstock._join_lanes(v_moved.queues, v_moved.accounts, v_moved.kinds, v_moved.ranks);
  end if;
end
$$;

-- Moves the waiting jobs of accounts that get their first limit into lanes. A locked job is left to
-- the claim.
create or replace function penstock._enlane_accounts(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._enlane_jobs(array(
    select j.id from penstock.job j
    where j.account_id = any (p_accounts) and j.account_id <> 0
      and j.status = 'queued' and j.lane = -1
    order by j.id for no key update skip locked));
  update penstock.job j set lane = j.account_id
  where j.id = any (array(
    select s.id from penstock.job s
    where s.account_id = any (p_accounts) and s.account_id <> 0
      and s.status = 'scheduled' and s.lane = -1
    order by s.id for no key update skip locked));
end
$$;

-- Makes the running jobs of such accounts take a slot from now on.
create or replace function penstock._count_running(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  with counted as (
    update penstock.job j set slots_held = j.slots_held | 2
    where j.account_id = any (p_accounts) and j.account_id <> 0
      and j.deadline_at is not null -- guard: runs
      and j.slots_held & 2 = 0 -- guard: once
    returning j.account_id
  )
  update penstock.account a set running = a.running + c.n
  from (select account_id, count(*) as n from counted group by account_id) c
  where a.id = c.account_id;
end
$$;

-- Waits briefly for the account of the first open lane of these kinds. Only before the gate is
-- locked: finish_jobs may have locked that account and wait for the gate.
create or replace function penstock._await_lane(p_queue integer, p_kinds integer[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
begin
  perform from penstock.account a
  where a.id = (
    select f.account_id
    from unnest(p_kinds) k (id) cross join lateral (
      select l.account_id, l.head from penstock.lane l
      where l.queue_id = p_queue and l.kind_id = k.id and l.open and l.waiting > 0
      order by l.head limit 1
    ) f
    order by f.head limit 1)
  for no key update;
exception when lock_not_available then
  null;
end
$$;
