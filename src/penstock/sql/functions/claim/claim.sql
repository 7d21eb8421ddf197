-- Start jobs within every limit, the smallest rank first, each by exactly one claim.
--
-- A worker starts only kinds that it has a handler for. The index of queued jobs and the lanes are
-- ordered by kind, so jobs of other kinds cost nothing, however many are in front. A job in no lane
-- is locked with SKIP LOCKED from the index. A lane is locked by its account's row, with SKIP
-- LOCKED; nobody else can then change the lane or its queued jobs. Lanes are read in the order of
-- their heads; the first jobs of each, up to the account's free slots, compete by rank with the
-- others. A claim from a queue with a limit begins with the gate row, so the claims run one after
-- the other and their order is exact; the same holds while its provider is unavailable
-- (circuit.sql).

-- How many jobs may start now by the queue's limits and its circuit, at most p_limit. Locks the
-- gate.
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
  -- Read without the lock first, so that a poll of a full queue waits for nobody.
  perform from penstock.gate g
  where g.queue_id = p_queue.id
    and (p_queue.concurrency is null or g.running < p_queue.concurrency);
  if not found then
    free := 0;
    return;
  end if;
  select * into v_gate from penstock.gate g
  where g.queue_id = p_queue.id for no key update; -- guard: gate locked
  if p_queue.concurrency is not null then
    v_free := least(v_free, p_queue.concurrency - v_gate.running); -- guard: queue limit
  end if;
  if v_step is not null then
    -- GCRA: rate_next_at is the time at which the next job would start at an even rate; it may be
    -- ahead of now by the burst. In any window at most window / step + burst jobs start.
    v_free := least(v_free, floor(date_part('epoch', -- guard: rate
      p_now + v_step * p_queue.rate_burst - greatest(v_gate.rate_next_at, p_now))
      / date_part('epoch', v_step) + 1e-6)::integer);
  end if;
  select * into free, probe from penstock._pass_circuit(p_queue.id, v_free, p_now);
  free := greatest(free, 0); -- guard: not negative
end
$$;

-- Starts up to p_limit jobs of a queue for a worker, which has that many free slots.
-- p_wait: if the account of every open lane is locked, wait for the first account before anything
-- else: sixteen submitters on one account can lock it so often that a claim with SKIP LOCKED gets
-- nothing for long. p_job: start only this job, if it may start now.
create or replace function penstock.claim_jobs(
  p_worker bigint, p_queue text, p_limit integer, p_wait boolean default false,
  p_job uuid default null
) returns table (
  id uuid, attempt integer, kind text, account text, slot_account bigint, topic text,
  batch_id uuid, payload jsonb,
  metadata jsonb, priority integer, failures integer, deferrals integer, crashes integer,
  losses integer, max_attempts integer, created_at timestamptz, started_at timestamptz,
  timeout_at timestamptz, deadline_at timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
  -- If they were planned again for each array, the statements would take three times as long.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_id integer;
  v_locked text;
  v_queue penstock.queue; -- read where there are limits or lanes
  v_state record;
  v_gated boolean;
  v_limit integer := p_limit;
  v_probe boolean := false;
  v_job uuid;
  v_jobs uuid[];
  v_ranks bigint[];
  v_kinds integer[];
  v_plain integer[];
  v_held record;
  v_accounts record;
  v_chosen uuid[];
  v_owners bigint[];
  v_strays bigint[] := '{}';
  v_limited bigint[];
  v_started integer;
begin
  -- Limits do not change during a claim: declare.sql takes this lock exclusively. Read under the
  -- lock.
  select q.id,
    penstock._share_queue_lock(1886413171, q.id)::text -- guard: limits locked
  into v_id, v_locked from penstock.queue q where q.name = p_queue;
  if v_id is null then
    v_queue := penstock._find_queue(p_queue); -- raises unknown_queue
  end if;
  -- All that is looked at in one statement: each of its own costs a single claim a twentieth. So
  -- would the queue as a whole row.
  select q.paused_at is not null as paused, q.timeout, q.stuck_after,
    q.concurrency is not null or q.rate_count is not null as limited,
    w.id is not null as alive, w.kinds,
    array(
      select u.id from unnest(w.kinds) u (id)
      where exists (
        select from penstock.job j
        where j.queue_id = q.id and j.kind_id = u.id and j.lane = -1 and j.status = 'queued')
    ) as plain,
    exists (
      select from penstock.job j where j.queue_id = q.id and j.expires_at <= v_now
        and j.status in ('scheduled', 'queued')) as expired,
    exists (
      select from penstock.job j where j.queue_id = q.id and j.run_at <= v_now
        and j.status = 'scheduled' and not j.failure_pending) as due,
    exists (
      select from penstock.lane l
      where l.queue_id = q.id and l.kind_id = any (w.kinds) and l.open and l.waiting > 0) as lanes,
    c.state <> 'closed' as troubled,
    c.state = 'open' and (c.next_at > v_now or c.class is null) as stopped
  into v_state
  from penstock.queue q join penstock.circuit c on c.queue_id = q.id
  left join lateral (
    select w.id, array(
      select qk.kind_id from penstock.queue_kind qk join penstock.kind k on k.id = qk.kind_id
      where qk.queue_id = v_id
        and (w.kinds is null or k.name = any (w.kinds)) -- guard: has a handler
    ) as kinds
    from penstock.worker w
    where w.id = p_worker
      and w.lost_at is null and w.stopped_at is null -- guard: worker lives
  ) w on true
  where q.id = v_id;
  v_kinds := v_state.kinds;
  v_gated := v_state.limited or v_state.troubled;
  if v_state.paused -- guard: paused
    or v_state.stopped or p_limit < 1
  then
    return;
  end if;
  if not v_state.alive then
    perform penstock._refuse(409, 'worker_lost',
      format('worker %s is not registered, or was marked as lost', p_worker), 'worker',
      p_hint => 'Drop its attempts and register again.');
  end if;
  if v_kinds = '{}' or (p_wait and not v_state.lanes) then
    return;
  end if;
  if v_state.expired then -- guard: expired
    -- So many that some are left: nothing is started before they are gone.
    if penstock.expire_jobs(v_id, 1000) = 1000 then
      return; -- guard: all expired
    end if;
  end if;
  if v_state.due then
    perform penstock.stage_due_jobs(v_id);
  end if;

  if p_wait then
    perform penstock._await_lane(v_id, v_kinds);
  end if;
  if v_gated or v_state.lanes or v_state.due then
    select q.* into v_queue from penstock.queue q where q.id = v_id;
  end if;
  if v_gated then
    select g.free, g.probe into v_limit, v_probe
    from penstock._pass_gate(v_queue, p_limit, v_now) g;
    if v_limit = 0 then
      return;
    end if;
    if v_probe and not exists (
      select from penstock.job j
      where j.queue_id = v_id and j.kind_id = any (v_kinds) and j.status = 'queued')
    then
      -- All have tried, and there is nobody to try before them.
      perform penstock._release_deferred_probes(v_id, v_now, 1);
      perform penstock.stage_due_jobs(v_id, 1);
    end if;
  end if;

  v_job := coalesce(p_job,
    case when v_probe then penstock._other_probe(v_id, v_kinds) end);
  if v_job is not null then
    v_jobs := penstock._choose_one(v_id, v_kinds, v_job);
    -- Somebody else has it at this moment: any job will do.
    v_job := coalesce(v_jobs[1], p_job);
  end if;
  -- Jobs that were staged since are not in the answer of the first statement.
  v_plain := case when v_state.due or v_probe then v_kinds else v_state.plain end;
  for v_round in 1 .. 100 loop
    exit when v_job is not null or v_plain = '{}';
    -- Assigned, which is quicker than a select of its columns.
    v_held := penstock._hold_plain(v_id, v_plain, v_limit, v_strays, v_now);
    v_jobs := v_held.jobs;
    v_ranks := v_held.ranks;
    v_owners := v_held.owners;
    exit when v_owners is null;
    -- A submit may have begun before its account got a limit: such a job belongs in a lane. If an
    -- app's open transaction locks the account, the job must not block everyone behind it.
    v_limited := penstock._enlane_strays(v_jobs, v_owners);
    exit when v_limited is null;
    select q.* into v_queue from penstock.queue q where q.id = v_id;
    v_strays := v_strays || v_limited;
    v_jobs := null;
    v_ranks := null;
  end loop;
  -- Several rounds: a round that finds only full accounts closes their lanes, and the next one goes
  -- on.
  for v_round in 1 .. 100 loop
    exit when v_job is not null or not (v_state.lanes or v_state.due or v_strays <> '{}');
    select * into v_accounts from penstock._hold_accounts(v_id, v_kinds, v_limit);
    exit when v_accounts.accounts is null;
    v_chosen := penstock._choose(v_queue, v_kinds, v_limit, v_accounts.accounts, v_accounts.running,
      v_accounts.limits, v_accounts.weights, v_jobs, v_ranks);
    exit when v_chosen is not null;
  end loop;
  v_jobs := coalesce(v_chosen, v_jobs);
  if v_jobs is null then
    return;
  end if;

  return query
  update penstock.job j set
    status = 'running', attempt = j.attempt + 1, version = j.version + 1, worker_id = p_worker,
    slots_held = v_gated::integer + case when j.lane >= 0 then 2 else 0 end,
    started_at = v_now, updated_at = v_now, progressed_at = null, expires_at = null,
    timeout_at = v_now + coalesce(j.timeout, k.timeout, v_state.timeout),
    -- The worker itself stops what is over its time; upkeep comes a little later.
    deadline_at = v_now + least(
      coalesce(j.timeout, k.timeout, v_state.timeout) + interval '5 seconds',
      v_state.stuck_after),
    stage = null, stage_label = null, stage_at = null, progress = null, units = null,
    only_suspect = false
  from unnest(v_jobs) u (id), penstock.kind k
  where j.id = u.id and k.id = j.kind_id
    and j.status = 'queued' -- guard: queued
  returning j.id, j.attempt, k.name,
    case when j.account_id <> 0
      then (select a.name from penstock.account a where a.id = j.account_id) end,
    case when j.lane >= 0 then j.lane when j.reserved > 0 then j.account_id end, j.topic,
    j.batch_id, j.payload, j.metadata,
    j.priority, j.failures, j.deferrals, j.crashes,
    -- A job that blocked its worker's event loop starts like a suspect.
    case when j.blocks then greatest(j.losses, 2) else j.losses end, j.max_attempts, j.created_at,
    j.started_at, j.timeout_at, j.deadline_at;
  get diagnostics v_started = row_count;
  if v_job is not null then
    perform penstock._leave_lanes(array[j.queue_id], array[j.lane], array[j.kind_id])
    from penstock.job j where j.id = v_job and j.lane >= 0;
  end if;
  if v_started <> cardinality(v_jobs) then -- guard: all started
    raise exception 'penstock: chose % jobs but started %', cardinality(v_jobs), v_started;
  end if;
  if v_probe then
    perform penstock._begin_probe(v_id, v_jobs[1]);
  end if;
  if v_gated then
    update penstock.gate g set
      running = g.running + v_started,
      rate_next_at = case when v_queue.rate_count is null then g.rate_next_at
        else greatest(g.rate_next_at, v_now)
          + v_queue.rate_period / v_queue.rate_count * v_started end
    where g.queue_id = v_id;
  end if;
end
$$;
