-- Starting jobs: the smallest rank first, within every limit, each by exactly one claimer.
--
-- A job in no lane is taken with SKIP LOCKED from the index. A lane is taken by its account's row,
-- with SKIP LOCKED; holding that, nobody else can touch the lane or its queued jobs. Lanes are
-- walked by head; the first jobs of each, up to the account's free slots, compete by rank with the
-- others. A queue with a limit begins with its gate row, so its claims come one after the other
-- and its order is exact; so does one whose provider is away (circuit.sql).

-- How many starts the queue's limits and its circuit allow now, at most p_limit, under its gate.
create or replace function penstock._pass_gate(
  p_queue penstock.queue, p_limit integer, p_now timestamptz,
  out free integer, out probe boolean
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_gate penstock.gate;
  v_free integer := p_limit;
  v_step interval := p_queue.rate_period / p_queue.rate_count;
begin
  -- A look without the lock first: an idle poll of a full queue waits for nobody.
  perform from penstock.gate g
  where g.queue_id = p_queue.id
    and (p_queue.concurrency is null or g.running < p_queue.concurrency);
  if not found then
    free := 0;
    return;
  end if;
  select * into v_gate from penstock.gate g
  where g.queue_id = p_queue.id for no key update; -- guard: gate locked - for no key update
  if p_queue.concurrency is not null then
    v_free := least(v_free, p_queue.concurrency - v_gate.running); -- guard: queue limit
  end if;
  if v_step is not null then
    -- GCRA: rate_next_at is when the next start would be due at the even pace; it may lie ahead
    -- of now by the burst. In any window there are at most window / step + burst starts.
    v_free := least(v_free, floor(date_part('epoch', -- guard: rate
      p_now + v_step * p_queue.rate_burst - greatest(v_gate.rate_next_at, p_now))
      / date_part('epoch', v_step) + 1e-6)::integer);
  end if;
  select * into free, probe from penstock._pass_circuit(p_queue.id, v_free, p_now);
  free := greatest(free, 0); -- guard: not negative
end
$$;

-- Chooses up to p_limit jobs among the lanes of p_accounts (locked) and p_plain (jobs in no lane,
-- locked), and moves lanes and accounts on. Every chosen job of a lane takes one slot of its
-- account. A lane whose account is full after all (a cap shared by two queues may have been filled
-- from the other one) is closed: left open it would stand in front for ever.
create or replace function penstock._choose(
  p_queue penstock.queue, p_limit integer, p_accounts bigint[], p_heads bigint[],
  p_running integer[], p_limits integer[], p_weights integer[], p_plain uuid[],
  p_plain_ranks bigint[]
) returns uuid[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_chosen uuid[];
  -- Under `fair` many lanes without a limit may compete: reading a whole batch from each would
  -- cost the square of it. Twice its even share is enough; a heavier lane gets the rest next time.
  v_share integer := case when p_queue.ordering = 'fair'
    then least(p_limit, 2 * ceil(p_limit::numeric / cardinality(p_accounts)) + 1)
    else p_limit end;
begin
  with candidate as materialized (
    -- One more than may start: the next in line becomes the lane's head.
    select j.id, l.account_id, j.rank, j.nth, l.step, l.running, l.concurrency,
      j.nth <= l.free as may_start,
      case when p_queue.ordering = 'fair' then l.head + (j.nth - 1) * l.step else j.rank end as tag
    from (
      select u.account_id, u.head, penstock._fair_step(u.weight) as step, u.running,
        u.concurrency,
        greatest(0, least(v_share,
          coalesce(u.concurrency - u.running, p_limit) -- guard: account limit => p_limit
        )) as free
      from unnest(p_accounts, p_heads, p_running, p_limits, p_weights)
        u (account_id, head, running, concurrency, weight)
    ) l
    cross join lateral (
      select f.id, f.rank, row_number() over () as nth
      from (
        select j.id, j.rank from penstock.job j
        where j.queue_id = p_queue.id and j.lane = l.account_id
          and j.status = 'queued' -- guard: queued
        order by j.rank limit l.free + 1
      ) f
    ) j
    union all
    select u.id, null, u.rank, 1, null, null, null, true, u.rank
    from unnest(p_plain, p_plain_ranks) u (id, rank)
  ),
  placed as materialized (
    select c.*, c.may_start
      and row_number() over (partition by c.may_start order by c.tag, c.nth)
        <= p_limit as chosen -- guard: limit => > 0 as chosen
    from candidate c
  ),
  taken as materialized (
    select c.account_id, count(*) filter (where c.chosen) as n,
      min(c.rank) filter (where not c.chosen) as next_rank,
      min(c.step) as step, min(c.running) as running, min(c.concurrency) as concurrency
    from placed c where c.account_id is not null
    group by c.account_id
    having bool_or(c.chosen)
      or min(c.running) >= min(c.concurrency) -- guard: full
  ),
  moved_lanes as (
    update penstock.lane l set
      waiting = l.waiting - t.n,
      head = case when p_queue.ordering = 'fair' then l.head + t.n * t.step
        else coalesce(t.next_rank, l.head) end,
      open = t.concurrency is null
        or t.running + t.n < t.concurrency -- guard: closes => or true
    from taken t
    where l.account_id = t.account_id and l.queue_id = p_queue.id
  ),
  counted as (
    update penstock.account a set running = a.running + t.n
    from taken t where a.id = t.account_id
  )
  select array_agg(c.id order by c.tag, c.nth) into v_chosen from placed c where c.chosen;
  return v_chosen;
end
$$;

-- Starts up to p_limit jobs of a queue for a worker, which has that many free slots.
-- p_wait: where every open lane is busy (sixteen submitters on one account can keep a claim that
-- skips locked rows empty-handed for long), wait for the first account before anything else.
-- p_job: this one and no other, if it may start now. p_offered: the worker has made an offer.
create or replace function penstock.claim_jobs(
  p_worker bigint, p_queue text, p_limit integer, p_wait boolean default false,
  p_job uuid default null, p_offered boolean default false
) returns table (
  id uuid, attempt integer, kind text, account text, slot_account bigint, topic text,
  batch_id uuid, payload jsonb,
  metadata jsonb, priority integer, failures integer, deferrals integer, crashes integer,
  losses integer, max_attempts integer, created_at timestamptz, started_at timestamptz,
  timeout_at timestamptz, deadline_at timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_id integer;
  v_locked text;
  v_queue penstock.queue;
  v_look record;
  v_gated boolean;
  v_limit integer := p_limit;
  v_probe boolean := false;
  v_jobs uuid[];
  v_ranks bigint[];
  v_held record;
  v_chosen uuid[];
  v_owners bigint[];
  v_strays bigint[] := '{}';
  v_found bigint[];
  v_started integer;
begin
  -- Limits do not change under a claim: declare.sql takes this lock alone. Read under it.
  select q.id,
    pg_advisory_xact_lock_shared(1886413171, q.id)::text -- guard: limits locked => null
  into v_id, v_locked from penstock.queue q where q.name = p_queue;
  if v_id is null then
    v_queue := penstock._find_queue(p_queue); -- says that there is none
  end if;
  -- All that is looked at in one statement: each of its own costs a single claim a twentieth.
  select q as queue,
    exists (
      select from penstock.worker w where w.id = p_worker
        and w.lost_at is null and w.stopped_at is null -- guard: worker lives
    ) as alive,
    exists (
      select from penstock.job j where j.queue_id = q.id and j.expires_at <= v_now
        and j.status in ('scheduled', 'queued')) as expired,
    exists (
      select from penstock.job j where j.queue_id = q.id and j.run_at <= v_now
        and j.status = 'scheduled' and not j.parked) as due,
    exists (
      select from penstock.lane l where l.queue_id = q.id and l.open and l.waiting > 0) as lanes,
    c.state <> 'closed' as troubled,
    c.state = 'open' and (c.next_at > v_now or c.class is null) as stopped
  into v_look from penstock.queue q join penstock.circuit c on c.queue_id = q.id where q.id = v_id;
  v_queue := v_look.queue;
  v_gated := v_queue.concurrency is not null or v_queue.rate_count is not null
    or v_look.troubled;
  if v_queue.paused_at is not null -- guard: paused => if false
    or v_look.stopped or p_limit < 1 or (p_wait and not v_look.lanes)
  then
    return;
  end if;
  if not v_look.alive then
    perform penstock._refuse(409, 'worker_lost',
      format('worker %s is not registered, or was given up for lost', p_worker), 'worker',
      p_hint => 'Drop what it runs and register again.');
  end if;
  if v_look.expired then -- guard: expired => if false then
    -- So many that some are left: nothing is started before they are gone.
    if penstock.expire_jobs(v_queue.id, 1000) = 1000 then
      return; -- guard: all expired
    end if;
  end if;
  if v_look.due then
    perform penstock.stage_due_jobs(v_queue.id);
  end if;

  if p_wait then
    perform penstock._await_lane(v_queue.id);
  end if;
  if v_gated then
    select g.free, g.probe into v_limit, v_probe
    from penstock._pass_gate(v_queue, p_limit, v_now) g;
    if v_limit = 0 then
      return;
    end if;
    if v_probe and not exists (
      select from penstock.job j where j.queue_id = v_queue.id and j.status = 'queued')
    then
      -- All have tried, and there is nobody to try before them.
      perform penstock._unbench(v_queue.id, v_now, 1);
      perform penstock.stage_due_jobs(v_queue.id, 1);
    end if;
  end if;

  if p_job is not null then
    v_jobs := penstock._choose_one(v_queue.id, p_job);
  end if;
  for v_round in 1 .. 100 loop
    exit when p_job is not null;
    select array_agg(n.id), array_agg(n.rank),
      array_agg(n.account_id) filter (where n.account_id <> 0)
    into v_jobs, v_ranks, v_owners from (
      select j.id, j.rank, j.account_id from penstock.job j
      where j.queue_id = v_queue.id and j.lane = -1
        and j.status = 'queued' -- guard: waits
        and j.account_id <> all (v_strays) -- guard: stray
        -- Its account is held, or it would be gone: it must not start too late.
        and (j.expires_at is null or j.expires_at > v_now) -- guard: in time
      order by j.rank limit v_limit for no key update skip locked
    ) n;
    exit when v_owners is null;
    -- A submit may have begun before its account got a limit: such a job belongs into a lane. One
    -- whose account an app's open transaction holds must not stand in front of everyone else.
    v_found := penstock._enlane_strays(v_jobs, v_owners);
    exit when v_found is null;
    v_strays := v_strays || v_found;
    v_jobs := null;
    v_ranks := null;
  end loop;
  -- Rounds: one that finds only full accounts has closed their lanes and looks further.
  for v_round in 1 .. 100 loop
    exit when p_job is not null or not (v_look.lanes or v_look.due or v_strays <> '{}');
    select array_agg(h.account_id) as accounts, array_agg(h.head) as heads,
      array_agg(h.running) as running, array_agg(h.concurrency) as limits,
      array_agg(h.weight) as weights
    into v_held from (
      -- What is read of the account is what it is under the lock, however old the snapshot.
      select l.account_id, l.head, a.running, a.concurrency, a.weight
      from penstock.lane l join penstock.account a on a.id = l.account_id
      where l.queue_id = v_queue.id and l.open and l.waiting > 0
      order by l.head limit v_limit
      for no key update of a skip locked -- guard: locked - for no key update of a skip locked
    ) h;
    exit when v_held.accounts is null;
    v_chosen := penstock._choose(v_queue, v_limit, v_held.accounts, v_held.heads, v_held.running,
      v_held.limits, v_held.weights, v_jobs, v_ranks);
    exit when v_chosen is not null;
  end loop;
  v_jobs := coalesce(v_chosen, v_jobs);
  if v_jobs is null then
    return;
  end if;
  if p_offered then -- guard: offer back => if false then
    -- It has something to do now. One that a submit is taking at this moment is too late.
    delete from penstock.offer o where o.worker_id = (
      select s.worker_id from penstock.offer s
      where s.worker_id = p_worker and s.job_id is null for update skip locked);
  end if;

  return query
  update penstock.job j set
    status = 'running', attempt = j.attempt + 1, version = j.version + 1, worker_id = p_worker,
    holds = v_gated::integer + case when j.lane >= 0 then 2 else 0 end,
    started_at = v_now, updated_at = v_now, progressed_at = null, expires_at = null,
    timeout_at = v_now + coalesce(j.timeout, k.timeout, v_queue.timeout),
    -- The worker itself stops what is over its time; upkeep comes a little later.
    deadline_at = v_now + least(
      coalesce(j.timeout, k.timeout, v_queue.timeout) + interval '5 seconds',
      v_queue.stuck_after),
    stage = null, stage_label = null, stage_at = null, progress = null, units = null,
    alone = false
  from unnest(v_jobs) u (id), penstock.kind k
  where j.id = u.id and k.id = j.kind_id
    and j.status = 'queued' -- guard: queued
  returning j.id, j.attempt, k.name,
    case when j.account_id <> 0
      then (select a.name from penstock.account a where a.id = j.account_id) end,
    case when j.lane >= 0 then j.lane when j.reserved > 0 then j.account_id end, j.topic,
    j.batch_id, j.payload, j.metadata,
    j.priority, j.failures, j.deferrals, j.crashes, j.losses, j.max_attempts, j.created_at,
    j.started_at, j.timeout_at, j.deadline_at;
  get diagnostics v_started = row_count;
  if p_job is not null then
    perform penstock._leave_lanes(array[j.queue_id], array[j.lane]) from penstock.job j
    where j.id = p_job and j.lane >= 0;
  end if;
  if v_started <> cardinality(v_jobs) then -- guard: all started => if false then
    raise exception 'penstock: chose % jobs but started %', cardinality(v_jobs), v_started;
  end if;
  if v_probe then
    perform penstock._begin_probe(v_queue.id, v_jobs[1]);
  end if;
  if v_gated then
    update penstock.gate g set
      running = g.running + v_started,
      rate_next_at = case when v_queue.rate_count is null then g.rate_next_at
        else greatest(g.rate_next_at, v_now)
          + v_queue.rate_period / v_queue.rate_count * v_started end
    where g.queue_id = v_queue.id;
  end if;
end
$$;

-- One job by its id, out of its lane and with a slot of its account; null: it may not start now.
create or replace function penstock._choose_one(p_queue integer, p_job uuid) returns uuid[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_stray boolean;
  v_lane bigint;
  v_full boolean;
begin
  -- In no lane although its account has a limit by now: it belongs into one.
  select penstock._enlane_strays(array[j.id], array[j.account_id]) is not null
  into v_stray
  from penstock.job j where j.id = p_job and j.lane = -1 and j.account_id <> 0;
  -- The account before the job, as everywhere.
  select j.lane into v_lane from penstock.job j where j.id = p_job and j.queue_id = p_queue;
  if v_stray and v_lane = -1 then -- guard: stray => if false then
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
  for no key update skip locked;
  if not found then
    -- Not due, or somebody else's meanwhile: the slot goes back.
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

-- Which of the owners of p_jobs, which are in no lane, have a limit; null: none. Puts their jobs
-- into lanes where it can have the account at once, else leaves them to the next claim.
create or replace function penstock._enlane_strays(p_jobs uuid[], p_owners bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_limited bigint[];
  v_held bigint[];
begin
  select array_agg(a.id) into v_limited
  from (select distinct u.id from unnest(p_owners) u (id)) o
  join penstock.account a on a.id = o.id
  where a.concurrency is not null;
  if v_limited is not null then
    select array_agg(l.id) into v_held from (
      select a.id from penstock.account a where a.id = any (v_limited)
      order by a.id for no key update skip locked
    ) l;
    perform penstock._enlane_jobs(array(
      select j.id from unnest(p_jobs) u (id) join penstock.job j on j.id = u.id
      where j.account_id = any (v_held))); -- guard: account held
  end if;
  return v_limited;
end
$$;
