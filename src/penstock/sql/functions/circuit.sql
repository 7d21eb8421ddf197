-- The circuit of a queue: whether the provider behind it answers. An outage is not a failure.
--
--   closed --- unavailable, overloaded, auth, quota, config: twice in a row of two jobs, or
--     ^        thrice; three provisional failures in a row of two jobs; rate_limited ---> open
--     |                                                                                 |  ^
--     +-- as many may run as the queue allows --- ramping <-- its probe was answered ---+  |
--                                                    +------ any of the above -------------+
--
-- Open, it lets no job start but one at a time, as a probe: when next_at has come, and no other
-- probe runs. A probe that dies with its worker is no longer running, so it needs no lease of its
-- own; one that failed lets others try before it (benched), or a single odd job could hold up all.
-- A provider that only asked to wait (rate_limited) needs no probe: half of what ran goes on then.
-- How a start's end bears on the circuit is told in its error, under the key `circuit`:
--   effect    opens, counts, pauses (until `after`), stops (an operator has to act), or none
--   after     seconds the provider asked for
--   address   host:port that was called
--
-- Its row is the last lock of all (after the gate). Who opens a circuit gives failures back only
-- where nobody holds the job: a finish that holds one waits for this row, sees it open, and gives
-- its own back; for what a claim held, upkeep comes back.

-- Whether a circuit opened by this class means that the provider is away.
create or replace function penstock._is_outage(p_class text) returns boolean
language sql immutable parallel safe
as $$
  select p_class in ('unavailable', 'overloaded', 'provider_error', 'interrupted', 'stalled')
$$;

-- What an operator would call it.
create or replace function penstock._trouble(p_class text) returns text
language sql immutable parallel safe
as $$ select case when penstock._is_outage(p_class) then 'outage' else p_class end $$;

-- The circuit after one more end. Pure; p_running: how many ran in its queue.
create or replace function penstock._circuit_after(
  p_circuit penstock.circuit, p_job uuid, p_attempt integer, p_started_at timestamptz,
  p_outcome text, p_error jsonb, p_full integer, p_running integer, p_now timestamptz
) returns penstock.circuit
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_next penstock.circuit := p_circuit;
  v_told jsonb := p_error -> 'circuit';
  v_effect text := nullif(v_told ->> 'effect', 'none');
  v_class text := p_error ->> 'class';
  v_after numeric := (v_told ->> 'after')::numeric;
  v_probe boolean := p_job = p_circuit.probe_job and p_attempt = p_circuit.probe_attempt;
  v_opens boolean;
begin
  if v_effect is null then
    if p_outcome not in ('succeeded', 'snoozed') and coalesce(v_class, '') not in (
      'invalid_request', 'refused', 'input_too_long', 'input_truncated', 'bad_output')
    then
      return v_next; -- says nothing about the provider
    end if;
    -- It has answered.
    v_next.in_row := 0;
    v_next.row_trouble := null;
    v_next.row_job := null;
    v_next.row_mixed := false;
    if v_next.state = 'open'
      and v_probe -- guard: by its probe
    then
      v_next.state := 'ramping';
      v_next.allowed := 1;
      v_next.changed_at := p_now;
    elsif v_next.state = 'ramping' then
      v_next.allowed := v_next.allowed + 1;
    end if;
    -- Nor does a queue with little to do ramp for ever.
    if v_next.state = 'ramping'
      and (v_next.allowed >= p_full or v_next.changed_at <= p_now - interval '1 minute')
    then
      v_next := penstock._closed(v_next, p_now);
    end if;
    return v_next;
  end if;
  if v_next.state = 'ramping'
    and p_started_at < v_next.changed_at -- guard: of now => and false
  then
    return v_next; -- it met the outage that is over
  end if;

  v_next.address := coalesce(v_told ->> 'address', v_next.address);
  if v_next.row_trouble is distinct from
    penstock._trouble(v_class) -- guard: of one sort => v_next.row_trouble
  then
    v_next.in_row := 0;
    v_next.row_job := null;
    v_next.row_mixed := false;
    v_next.row_trouble := penstock._trouble(v_class);
  end if;
  v_next.row_mixed := v_next.row_mixed or coalesce(v_next.row_job <> p_job, false);
  v_next.row_job := coalesce(v_next.row_job, p_job);
  v_next.in_row := v_next.in_row + 1;
  if v_next.state = 'open' then
    if v_next.class is null then -- by an operator: nothing that happens changes it
      return v_next;
    end if;
    if v_probe then
      v_next.tries := v_next.tries + 1;
      v_next.class := v_class;
      v_next.next_at := p_now + penstock._probe_wait(v_effect, v_next.tries, v_after);
    elsif v_effect = 'pauses' then
      -- Those that were under way may have been told to wait longer than the first.
      v_next.next_at := greatest(v_next.next_at,
        p_now + penstock._probe_wait(v_effect, 0, v_after));
    end if;
    return v_next;
  end if;

  v_opens := case v_effect
    when 'pauses' then true
    when 'counts' then v_next.row_mixed -- guard: from two jobs => when 'never' then true
      and v_next.in_row >= 3 -- guard: thrice
    -- Of one odd job alone it says nothing about the others, unless nothing else is answered.
    else v_next.in_row >= 3 -- guard: of two => else true
      or (v_next.in_row = 2 and v_next.row_mixed) end;
  if v_opens then
    if v_effect = 'pauses' then
      v_next.resume := greatest(1, coalesce(v_next.allowed, p_running) / 2);
    else
      v_next.tries := case when v_next.state = 'ramping' then v_next.tries + 1 else 0 end;
    end if;
    v_next.state := 'open';
    v_next.class := v_class;
    v_next.allowed := null;
    v_next.changed_at := p_now;
    v_next.probe_job := null;
    v_next.probe_attempt := null;
    v_next.reachable := false;
    v_next.reason := null;
    v_next.next_at := p_now + penstock._probe_wait(v_effect, v_next.tries, v_after);
  end if;
  return v_next;
end
$$;

create or replace function penstock._closed(p_circuit penstock.circuit, p_now timestamptz)
returns penstock.circuit
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  p_circuit.state := 'closed';
  p_circuit.class := null;
  p_circuit.reason := null;
  p_circuit.changed_at := p_now;
  p_circuit.next_at := null;
  p_circuit.tries := 0;
  p_circuit.probe_job := null;
  p_circuit.probe_attempt := null;
  p_circuit.allowed := null;
  p_circuit.resume := 1;
  p_circuit.in_row := 0;
  p_circuit.row_trouble := null;
  p_circuit.row_job := null;
  p_circuit.row_mixed := false;
  return p_circuit;
end
$$;

-- How many may run at once before a ramp is over, in a queue without a limit.
create or replace function penstock._full_ramp(p_queue penstock.queue) returns integer
language sql immutable
as $$ select coalesce(p_queue.concurrency, 256) $$;

-- What the ends of starts say about their providers, in their order; called when any of them says
-- something, or a circuit is not at rest. p_queues: null for what did not take effect.
create or replace function penstock._feel_ends(
  p_jobs uuid[], p_attempts integer[], p_queues integer[], p_starts timestamptz[],
  p_outcomes text[], p_errors jsonb[], p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue;
  v_was penstock.circuit;
  v_now penstock.circuit;
  v_one record;
  v_maybe uuid[];
  v_free uuid[];
  v_running integer;
begin
  -- Circuits in the order of their queues, as everyone takes several; those at rest only where an
  -- end tells something, or all finishes of a busy queue would wait in line.
  for v_queue in
    select q.* from penstock.queue q
    where q.id = any (p_queues)
      and (exists (select from penstock.circuit c
                   where c.queue_id = q.id and (c.state <> 'closed' or c.in_row > 0))
        or exists (select from unnest(p_queues, p_errors) u (queue_id, error)
                   where u.queue_id = q.id and u.error ? 'circuit'))
    order by q.id
  loop
    select * into v_was from penstock.circuit c
    where c.queue_id = v_queue.id for no key update; -- guard: circuit locked - for no key update
    v_now := v_was;
    v_maybe := '{}';
    v_free := '{}';
    v_running := null;
    for v_one in
      select u.* from unnest(p_jobs, p_attempts, p_queues, p_starts, p_outcomes, p_errors)
        with ordinality u (job, attempt, queue_id, started_at, outcome, error, o)
      where u.queue_id = v_queue.id order by u.o
    loop
      if v_running is null and v_one.error #>> '{circuit,effect}' = 'pauses' then
        -- With those that end here.
        select count(*) + cardinality(array_positions(p_queues, v_queue.id)) into v_running
        from penstock.job j where j.deadline_at is not null and j.queue_id = v_queue.id;
      end if;
      v_now := penstock._circuit_after(v_now, v_one.job, v_one.attempt, v_one.started_at,
        v_one.outcome, v_one.error, penstock._full_ramp(v_queue), v_running, p_now);
      if v_one.outcome = 'provisional' then
        v_maybe := v_maybe || v_one.job;
      elsif v_one.outcome = 'deferred' then
        v_free := v_free || v_one.job;
      end if;
    end loop;
    if v_now.state <> 'open' and v_free <> '{}' then
      perform penstock._count_isolated(v_free, p_now);
    end if;
    continue when v_now is not distinct from v_was;
    perform penstock._write_circuit(v_now);
    -- Stopped by hand, it is an outage that somebody knew of.
    if v_now.state = 'open'
      and coalesce(penstock._is_outage(v_now.class), true) -- guard: an outage
    then
      if v_was.state <> 'open' or not penstock._is_outage(v_was.class) then
        perform penstock._give_failures_back(v_queue.id, p_now, p_now, null);
      elsif v_maybe <> '{}' then
        perform penstock._give_failures_back(v_queue.id, p_now, p_now, v_maybe);
      end if;
    end if;
    if v_now.state <> 'open' and v_was.state = 'open' then
      perform penstock._unbench(v_queue.id, p_now, null);
    end if;
    if v_now.state <> v_was.state
      or penstock._trouble(v_now.class) <> penstock._trouble(v_was.class) -- guard: other news
    then
      perform penstock._tell_circuit(v_queue.name, v_now, p_now);
    end if;
  end loop;
end
$$;

-- Sees to the circuits of what was told, as far as it took effect (p_done): nearly always they are
-- at rest, and nothing tells of them.
create or replace function penstock._feel_told(
  p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_done uuid[],
  p_done_attempts integer[], p_queues integer[], p_starts timestamptz[], p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_told record;
begin
  if not exists (
      select from penstock.circuit c
      where (c.state <> 'closed' or c.in_row > 0) and c.queue_id = any (p_queues))
    and not exists (select from unnest(p_errors) e where e ? 'circuit')
  then
    return;
  end if;
  select array_agg(d.queue_id order by u.o) as queues, array_agg(d.started_at order by u.o)
    as starts
  into v_told
  from unnest(p_jobs, p_attempts) with ordinality u (id, attempt, o)
  left join unnest(p_done, p_done_attempts, p_queues, p_starts)
    d (id, attempt, queue_id, started_at)
    on d.id = u.id
    and d.attempt = u.attempt; -- guard: fence
  perform penstock._feel_ends(p_jobs, p_attempts, v_told.queues, v_told.starts, p_outcomes,
    p_errors, p_now);
end
$$;

-- Deferred while others are answered: ten times for nothing, then it costs an attempt each time. So
-- one job that the provider never takes (a prompt longer than some proxy waits) comes to its end.
create or replace function penstock._count_isolated(p_jobs uuid[], p_now timestamptz)
returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with counted as materialized (
    select j.id, j.isolated >= 10 as charged, -- guard: ten times => select j.id, true as charged,
      j.isolated >= 10 and j.failures + 1 >= j.max_attempts and j.status = 'scheduled' as last
    from penstock.job j where j.id = any (p_jobs)
  )
  update penstock.job j set isolated = least(j.isolated + 1, 1000),
    failures = j.failures + (c.charged and j.failures + 1 < j.max_attempts)::integer,
    -- Out of attempts: the next pass of upkeep fails it.
    parked = c.last, run_at = case when c.last then p_now else j.run_at end
  from counted c where j.id = c.id
$$;

-- Lets jobs that failed as probes start again: all of a queue, or the first p_most.
create or replace function penstock._unbench(
  p_queue integer, p_now timestamptz, p_most integer
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with held as materialized (
    select j.id from penstock.job j
    where j.queue_id = p_queue and j.benched
    order by j.run_at limit p_most for no key update skip locked
  )
  update penstock.job j set benched = false, run_at = least(j.run_at, p_now)
  from held h where j.id = h.id
$$;

create or replace function penstock._write_circuit(p_circuit penstock.circuit) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update penstock.circuit c set
    state = p_circuit.state, class = p_circuit.class, changed_at = p_circuit.changed_at,
    next_at = p_circuit.next_at, tries = p_circuit.tries, probe_job = p_circuit.probe_job,
    probe_attempt = p_circuit.probe_attempt, allowed = p_circuit.allowed,
    resume = p_circuit.resume, in_row = p_circuit.in_row, row_trouble = p_circuit.row_trouble,
    row_job = p_circuit.row_job, row_mixed = p_circuit.row_mixed,
    address = p_circuit.address, reachable = p_circuit.reachable, reason = p_circuit.reason
  where c.queue_id = p_circuit.queue_id
$$;

-- Failures of the minute before the circuit opened may have been the outage, and are none. p_jobs:
-- of these alone, which failed while it was known. A prompt that crashes the model looks like an
-- outage each time: a job whose failure has opened the circuit three times is charged, and one that
-- met an outage before keeps its wait, so that others have a try; after a hundred failures in an
-- outage (days, mostly) it is charged too.
create or replace function penstock._give_failures_back(
  p_queue integer, p_opened_at timestamptz, p_now timestamptz, p_jobs uuid[]
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with held as materialized (
    select j.id, j.status = 'scheduled' and j.refunds = 0 and p_jobs is null as at_once
    from penstock.job j
    where j.queue_id = p_queue
      and j.provisional_at is not null
      and j.provisional_at > p_opened_at - interval '1 minute' -- guard: of the last minute
      and (p_jobs is not null or j.refunds < 3) -- guard: three times
      and (p_jobs is null or j.spared < 100) -- guard: a hundred times
      and (p_jobs is null or j.id = any (p_jobs)) -- guard: these
    order by j.id for no key update skip locked
  )
  update penstock.job j set
    -- A parked one was not charged yet.
    failures = j.failures - greatest(0, j.provisional - j.parked::integer), provisional = 0,
    deferrals = j.deferrals + 1, refunds = j.refunds + (p_jobs is null)::integer,
    spared = j.spared + (p_jobs is not null)::integer,
    provisional_at = null, parked = false,
    run_at = case when h.at_once then p_now else j.run_at end,
    updated_at = p_now, version = j.version + 1
  from held h where j.id = h.id
$$;

-- What keeps jobs of a queue from starting: paused (an operator has to act), circuit_open,
-- rate_limit (the provider asked to wait), or nothing.
create or replace function penstock._stopped_by(p_queue integer, p_now timestamptz)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._stop_word(false, true, true, c.state, c.class)
  from penstock.circuit c where c.queue_id = p_queue and c.state = 'open'
$$;
