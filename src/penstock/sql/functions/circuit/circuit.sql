-- The circuit of a queue: whether the provider behind it answers. An outage is not a failure.
--
--   closed --- too many failures in a row, or rate_limited -----------------------------> open
--     ^                                                                                 |  ^
--     +-- as many may run as the queue allows --- ramping <-- a probe was answered -----+  |
--                                                    +------ the same -----------------------+
--
-- closed: jobs start as the limits allow. open: only probes start. ramping: `allowed` jobs may run
-- at once: one more with each answer, an eighth fewer for a round of calls with a refusal in it.
--
-- How many failures in a row open the circuit depends on the share of calls that were refused
-- before them (`refused`). For a healthy provider, two failures of two jobs are enough. A provider
-- that refuses every second call often refuses two in a row, so there it takes seven (_opens). So a
-- provider that works half of the time keeps its calls, and one that is down gets few.
--   - Provisional failures: at least three, of two jobs.
--   - Failures of one account alone say less: it takes one more, and with provisional ones three.
--   - If a call fails although a later one was answered, the failure says nothing: the provider
--     answered while the call hung.
-- If a quarter of the calls is refused, a failure says nothing about its job either: provisional
-- failures do not count then, and deferrals do not mark the job as the only one that fails.
--
-- An open circuit lets one job start at a time, as a probe, when next_at has come. If a probe has
-- no answer for long, another may start beside it. Each probe is of another account than the one
-- before, if one has waiting jobs. So a job that hangs each time does not keep the circuit open for
-- others. A probe whose worker dies is no longer running, so it needs no lease of its own; a probe
-- that failed is deferred behind other jobs (deferred_probe). A call that began after the circuit
-- opened is a probe. A provider that only asked to wait (rate_limited) needs no probe: half of the
-- jobs that ran may run after the wait.
-- The columns beside an outcome's error say what it means for the circuit:
--   effect        opens, counts (provisional), pauses (for `retry_after`), stops (an operator has
--                 to act), none; null: the outcome says nothing about the provider
--   retry_after   how long the provider asked to wait
--   address       host:port that was called
--
-- Its row is the last lock of all (after the gate). A transaction that opens a circuit uncounts
-- failures only of jobs that are not locked. A finish that holds a job waits for this row, sees it
-- open, and uncounts its own; upkeep later does the same for jobs that a claim held.

-- Whether a circuit opened by this class means that the provider is unavailable.
create or replace function penstock._is_outage(p_class text) returns boolean
language sql immutable parallel safe
as $$
  select p_class in ('unavailable', 'overloaded', 'provider_error', 'interrupted', 'stalled')
$$;

-- The kind of trouble: all classes of an outage are one.
create or replace function penstock._trouble(p_class text) returns text
language sql immutable parallel safe
as $$ select case when penstock._is_outage(p_class) then 'outage' else p_class end $$;

-- Applies outcomes to the circuits of their queues, in order; called if any outcome has an effect,
-- or a circuit is troubled. p_queues: null for outcomes that did not take effect.
create or replace function penstock._apply_outcomes_to_circuits(
  p_jobs uuid[], p_attempts integer[], p_queues integer[], p_started_ats timestamptz[],
  p_outcomes text[], p_errors jsonb[], p_effects text[], p_retry_afters interval[],
  p_addresses text[], p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue;
  v_old penstock.circuit;
  v_new penstock.circuit;
  v_outcome record;
  v_provisional uuid[];
  v_deferred uuid[];
  v_running integer;
begin
  -- In the order of the queues, because every caller locks several circuits. Untroubled circuits
  -- only if an outcome has an effect, or all finishes of a busy queue would wait for each other.
  for v_queue in
    select q.* from penstock.queue q
    where q.id = any (p_queues)
      and (exists (select from penstock.circuit c
                   where c.queue_id = q.id and penstock._is_troubled(c))
        or exists (select from unnest(p_queues, p_effects) u (queue_id, effect)
                   where u.queue_id = q.id and u.effect is not null))
    order by q.id
  loop
    select * into v_old from penstock.circuit c
    where c.queue_id = v_queue.id for no key update; -- guard: circuit locked
    v_new := v_old;
    v_provisional := '{}';
    v_deferred := '{}';
    v_running := null;
    for v_outcome in
      select u.* from unnest(p_jobs, p_attempts, p_queues, p_started_ats, p_outcomes, p_errors,
          p_effects, p_retry_afters, p_addresses)
        with ordinality u (job, attempt, queue_id, started_at, outcome, error, effect,
          retry_after, address, o)
      where u.queue_id = v_queue.id order by u.o
    loop
      if v_running is null and v_outcome.effect is not null and v_old.state <> 'open' then
        -- Counts the jobs that finish here, too.
        select count(*) + cardinality(array_positions(p_queues, v_queue.id)) into v_running
        from penstock.job j where j.deadline_at is not null and j.queue_id = v_queue.id;
      end if;
      v_new := penstock._circuit_after(v_new, v_outcome.job, v_outcome.attempt,
        v_outcome.started_at, v_outcome.outcome, v_outcome.error ->> 'class', v_outcome.effect,
        v_outcome.retry_after, v_outcome.address,
        coalesce(v_queue.concurrency, 256), v_running, p_now,
        case when v_outcome.effect is not null then coalesce(
          (select j.account_id from penstock.job j where j.id = v_outcome.job),
          (select f.account_id from penstock.finished f where f.id = v_outcome.job), 0) end);
      if v_outcome.outcome = 'provisional' then
        v_provisional := v_provisional || v_outcome.job;
      elsif v_outcome.outcome = 'deferred' then
        v_deferred := v_deferred || v_outcome.job;
      end if;
    end loop;
    if v_new.state <> 'open' and v_deferred <> '{}' then
      perform penstock._count_isolated(v_deferred, p_now,
        case when penstock._is_half_up(v_old.refused) then 100 else 10 end); -- guard: odd
    end if;
    continue when v_new is not distinct from v_old;
    perform penstock._write_circuit(v_new);
    -- A circuit that was opened by hand counts as an outage that an operator knew of.
    if v_new.state = 'open'
      and coalesce(penstock._is_outage(v_new.class), true) -- guard: an outage
    then
      if v_old.state <> 'open' or not penstock._is_outage(v_old.class) then
        perform penstock._uncount_failures(v_queue.id, p_now, p_now, null);
      elsif v_provisional <> '{}' then
        perform penstock._uncount_failures(v_queue.id, p_now, p_now, v_provisional);
      end if;
    elsif v_provisional <> '{}' and v_new.state <> 'open'
      and penstock._is_half_up(v_old.refused) -- guard: half up
    then
      perform penstock._uncount_failures(v_queue.id, p_now, p_now, v_provisional);
    end if;
    if v_new.state <> 'open' and v_old.state = 'open' then
      perform penstock._release_deferred_probes(v_queue.id, p_now, null);
    end if;
    if v_new.state <> v_old.state
      or penstock._trouble(v_new.class) <> penstock._trouble(v_old.class) -- guard: other trouble
    then
      perform penstock._publish_circuit(v_queue.name, v_new, p_now);
    end if;
  end loop;
end
$$;

-- Whether a circuit has to be updated by answers.
create or replace function penstock._is_troubled(p_circuit penstock.circuit) returns boolean
language sql immutable
as $$
  select p_circuit.state <> 'closed' or p_circuit.in_row > 0 or p_circuit.refused > 0
$$;

-- Applies the reported outcomes to their circuits, as far as they took effect (p_done). Nearly
-- always no circuit is troubled and no outcome has an effect: then this returns at once.
create or replace function penstock._update_circuits(
  p_jobs uuid[], p_attempts integer[], p_outcomes text[], p_errors jsonb[], p_effects text[],
  p_retry_afters interval[], p_addresses text[], p_done uuid[], p_done_attempts integer[],
  p_queues integer[], p_started_ats timestamptz[], p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_reported record;
  v_circuits record;
  v_idle boolean;
begin
  select bool_or(penstock._is_troubled(c)) as troubled,
    bool_or(c.answered_at < p_now - interval '5 seconds') as stale
  into v_circuits from penstock.circuit c where c.queue_id = any (p_queues);
  v_idle := v_circuits.troubled is not true
    and not exists (select from unnest(p_effects) e where e is not null);
  if v_idle and v_circuits.stale is not true then
    return;
  end if;
  select array_agg(d.queue_id order by u.o) as queues, array_agg(d.started_at order by u.o)
    as started_ats
  into v_reported
  from unnest(p_jobs, p_attempts) with ordinality u (id, attempt, o)
  left join unnest(p_done, p_done_attempts, p_queues, p_started_ats)
    d (id, attempt, queue_id, started_at)
    on d.id = u.id
    and d.attempt = u.attempt; -- guard: fence
  if v_idle then
    -- Every few seconds a closed circuit records an answer, so that a call that hung meanwhile is
    -- recognised as the exception.
    with answered as materialized (
      select u.queue_id, max(u.started_at) as started_at
      from unnest(v_reported.queues, v_reported.started_ats, p_outcomes)
        u (queue_id, started_at, outcome)
      where u.outcome = 'succeeded' and u.queue_id is not null
      group by u.queue_id
    ),
    locked as materialized (
      select c.queue_id from penstock.circuit c
      where c.queue_id in (select a.queue_id from answered a)
      order by c.queue_id for no key update skip locked -- guard: nobody waits
    )
    update penstock.circuit c set answered_at = p_now,
      answered_start = greatest(c.answered_start, a.started_at)
    from locked l join answered a on a.queue_id = l.queue_id
    where c.queue_id = l.queue_id;
    return;
  end if;
  perform penstock._apply_outcomes_to_circuits(p_jobs, p_attempts, v_reported.queues,
    v_reported.started_ats, p_outcomes, p_errors, p_effects, p_retry_afters, p_addresses, p_now);
end
$$;

-- Counts deferrals of jobs while calls of other jobs are answered. The first ten are free, or the
-- first hundred if many calls are refused; each further one counts as a failure. So a single job
-- that the provider never answers (a prompt longer than some proxy waits) fails in the end.
create or replace function penstock._count_isolated(
  p_jobs uuid[], p_now timestamptz, p_free integer default 10
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with counted as materialized (
    select j.id,
      j.isolated >= p_free as charged, -- guard: ten times
      j.isolated >= p_free and j.failures + 1 >= j.max_attempts and j.status = 'scheduled' as last
    from penstock.job j where j.id = any (p_jobs)
  )
  update penstock.job j set isolated = least(j.isolated + 1, 1000),
    failures = j.failures + (c.charged and j.failures + 1 < j.max_attempts)::integer,
    -- No attempts are left: the next pass of upkeep fails the job.
    failure_pending = c.last, run_at = case when c.last then p_now else j.run_at end
  from counted c where j.id = c.id
$$;

-- Lets deferred probes start again: all of a queue, or the first p_most.
create or replace function penstock._release_deferred_probes(
  p_queue integer, p_now timestamptz, p_most integer
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with locked as materialized (
    select j.id from penstock.job j
    where j.queue_id = p_queue and j.deferred_probe
    order by j.run_at limit p_most for no key update skip locked
  )
  update penstock.job j set deferred_probe = false, run_at = least(j.run_at, p_now)
  from locked h where j.id = h.id
$$;

create or replace function penstock._write_circuit(p_circuit penstock.circuit) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  -- All columns, in the order of the table.
  update penstock.circuit c set (queue_id, state, class, reason, changed_at, next_at, tries,
    probe_job, probe_attempt, suspect, allowed, resume, eased_at, in_row, row_trouble, row_job,
    row_mixed, row_account, row_shared, refused, row_refused, answered_at, answered_start, address,
    reachable, checked_at) = row(p_circuit.*)
  where c.queue_id = p_circuit.queue_id
$$;

-- Failures of the minute before the circuit opened may have been the outage, and are uncounted.
-- p_jobs: only those of these jobs, which failed while the outage was known. A prompt that crashes
-- the model looks like an outage each time. So the failure of a job that has opened the circuit
-- three times counts, and a job that met an outage before keeps its delay, so that other jobs are
-- tried; after a hundred failures in an outage (days, mostly) its failures count too.
create or replace function penstock._uncount_failures(
  p_queue integer, p_opened_at timestamptz, p_now timestamptz, p_jobs uuid[]
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with locked as materialized (
    select j.id, j.status = 'scheduled' and j.withdrawn_failures = 0 and p_jobs is null as at_once
    from penstock.job j
    where j.queue_id = p_queue
      and j.provisional_at is not null
      and j.provisional_at > p_opened_at - interval '1 minute' -- guard: of the last minute
      and (p_jobs is not null or j.withdrawn_failures < 3) -- guard: three times
      and (p_jobs is null or j.uncounted_failures < 100) -- guard: a hundred times
      and (p_jobs is null or j.id = any (p_jobs)) -- guard: these
    order by j.id for no key update skip locked
  )
  update penstock.job j set
    -- A failure that is held for its minute was not counted yet.
    failures = j.failures - greatest(0, j.provisional - j.failure_pending::integer),
    provisional = 0, deferrals = j.deferrals + 1,
    withdrawn_failures = j.withdrawn_failures + (p_jobs is null)::integer,
    uncounted_failures = j.uncounted_failures + (p_jobs is not null)::integer,
    provisional_at = null, failure_pending = false,
    run_at = case when h.at_once then p_now else j.run_at end,
    updated_at = p_now, version = j.version + 1
  from locked h where j.id = h.id
$$;

-- Why a queue's circuit keeps its jobs from starting: paused (an operator has to act),
-- circuit_open, rate_limit (the provider asked to wait), or null.
create or replace function penstock._stopped_by(p_queue integer, p_now timestamptz)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._stop_word(false, true, true, c.state, c.class)
  from penstock.circuit c where c.queue_id = p_queue and c.state = 'open'
$$;
