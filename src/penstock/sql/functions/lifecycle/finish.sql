-- Settle attempts and free the slots that they held. Their jobs are finished, or wait again.
--
-- Reports of workers, callbacks and recovery all go through _settle_jobs, so that one function
-- alone settles attempts and frees slots. Verdicts:
--   done    it took effect; `status` is the new status of the job
--   stale   the job or the attempt is no longer the caller's: nothing changed (L3)
--   locked  an app's open transaction locks the account: nothing changed, try again
-- Outcomes that a caller may give: succeeded, failed, cancelled, retry (a failure that may be tried
-- again), provisional (a failure that the provider may have caused, see circuit.sql), deferred (the
-- provider's fault: no failure), snoozed (the handler asked for it: no failure), released (not
-- begun, or returned: no failure), timed_out (a failure), stuck (a crash); from recover.sql also
-- lost (a crash) and lost_with_others (no failure: which of a dead worker's jobs killed it is not
-- known).

-- The final status of a job whose attempt has this outcome; null: the job is not finished.
create or replace function penstock._final_status(
  p_outcome text, p_failures integer, p_max_attempts integer, p_crashes integer,
  p_recovery integer, p_cancel_requested boolean
) returns penstock.job_status
language sql immutable parallel safe
as $$
  -- Each branch is a literal of the enum: a cast of text would keep this from being inlined.
  select case
    when p_outcome = 'succeeded' then 'succeeded'::penstock.job_status
    when p_outcome = 'failed' then 'failed'::penstock.job_status
    when p_outcome = 'cancelled'
      or p_cancel_requested -- guard: cancel asked
      then 'cancelled'::penstock.job_status
    -- The last provisional failure is held (failure_pending) for a minute before it is final.
    when p_outcome in ('retry', 'timed_out') -- guard: the rest is free
      and p_failures + 1 >= p_max_attempts -- guard: attempts left
      then 'failed'::penstock.job_status
    when p_outcome in ('stuck', 'lost') -- guard: no crash is free
      and p_crashes >= p_recovery -- guard: recoveries left
      then 'failed'::penstock.job_status
    end
$$;

-- Settles attempts. p_worker, p_callback: who must own the attempt; upkeep gives neither, and is
-- fenced by the attempt number that it has read. p_delays: when to try again; null follows the
-- queue's policy. p_accounts: the accounts whose slots these attempts hold, if the caller knows
-- them from the claim; this saves reading the jobs. p_update_circuits: false if the caller updates
-- the circuits after all attempts are settled.
--
-- Nothing here waits for a job or an account: an app's transaction may lock either (it submitted
-- for the account, or asked to cancel the job) for as long as it likes, and one such transaction
-- must not block everyone else. Jobs that are finished and not locked come first: nearly always,
-- these are all. Then come the others, under locks: jobs that go on, jobs that somebody locked for
-- a moment, and jobs with a slot that the worker does not know of because the limit is younger than
-- the attempt.
create or replace function penstock._settle_jobs(
  p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[],
  p_results jsonb[], p_errors jsonb[], p_delays interval[], p_accounts bigint[],
  p_usages jsonb[] default null, p_units bigint[] default null,
  p_update_circuits boolean default true, p_wait interval default null,
  p_effects text[] default null, p_retry_afters interval[] default null,
  p_addresses text[] default null
) returns table (job_id uuid, verdict text, status penstock.job_status)
language plpgsql set search_path = pg_catalog, pg_temp
  -- Use the primary key whatever the statistics say: a partial index on running rows once had lower
  -- estimated costs, read dead entries and took three times as long.
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_accounts bigint[] := penstock._lock_slots(p_jobs, p_accounts, p_wait);
  v_settled record;
  v_locked uuid[];
  v_finished record;
  v_requeued record;
  v_all boolean;
begin
  if p_outcomes && array['timed_out', 'stuck']
    and exists (select from penstock.circuit c where c.state = 'open')
  then
    select * into p_outcomes, p_errors, p_effects
    from penstock._of_probes(p_jobs, p_attempts, p_outcomes, p_errors, p_effects);
  end if;
  select * into v_settled from penstock._move_to_finished(p_worker, p_callback, p_jobs,
    p_attempts, p_outcomes, p_results, p_errors, p_usages, p_units, v_accounts, v_now, null);
  v_all := cardinality(v_settled.ids) is not distinct from cardinality(p_jobs);
  if not v_all then
    if p_accounts is not null then
      v_accounts := penstock._lock_slots(p_jobs, null);
    end if;
    v_locked := array(
      select j.id from unnest(p_jobs, p_attempts) t (id, attempt)
      join penstock.job j on j.id = t.id
      where j.attempt = t.attempt and j.status in ('running', 'awaiting') -- guard: theirs
        -- Not a job whose account we have not locked: it may be queued again before we lock it. A
        -- claim that has locked its account and the gate would then wait for us, and we for the
        -- gate.
        and ((j.slots_held < 2 and j.reserved = 0)
          or j.account_id = any (v_accounts)) -- guard: account locked
      order by j.id for update of j skip locked);
    select * into v_finished from penstock._move_to_finished(p_worker, p_callback, p_jobs,
      p_attempts, p_outcomes, p_results, p_errors, p_usages, p_units, v_accounts, v_now, v_locked);
    select g.* into v_requeued from penstock._requeue_jobs(p_worker, p_callback, p_jobs, p_attempts,
      p_outcomes, p_errors, p_delays, p_usages, p_effects, p_retry_afters, v_accounts, v_now,
      v_locked) g
    -- Not called when all of them are finished.
    where coalesce(cardinality(v_finished.ids), 0) < cardinality(v_locked);
    v_settled.ids := v_settled.ids || v_finished.ids || v_requeued.ids;
    v_settled.attempts := v_settled.attempts || v_finished.attempts || v_requeued.attempts;
    v_settled.statuses := v_settled.statuses || v_finished.statuses || v_requeued.statuses;
    v_settled.queues := v_settled.queues || v_finished.queues || v_requeued.queues;
    v_settled.started := v_settled.started || v_finished.started || v_requeued.started;
    v_settled.gates := v_settled.gates || v_finished.gates || v_requeued.gates;
    v_settled.accounts := v_settled.accounts || v_finished.accounts || v_requeued.accounts;
    v_all := cardinality(v_settled.ids) is not distinct from cardinality(p_jobs);
    if coalesce(cardinality(v_settled.ids), 0) = 0 then
      -- A worker that gets `stale` drops its result.
      perform penstock._await_standbys();
    end if;
    -- When all took effect, there is no late result and no verdict to look up: both take time that
    -- grows with the square of the number of jobs (20 ms for 250; 2026-11).
    if not v_all then
      -- A late result is kept for people, with its cost: once for each attempt that had another
      -- outcome. Repeated reports are not kept, nor reports of attempts that never started: anyone
      -- may send a callback with an invented job and token, and must not fill a table.
      with late as materialized (
        select distinct on (t.id, t.attempt) t.id, t.attempt, t.outcome, t.result, t.error, t.usage
        from unnest(p_jobs, p_attempts, p_outcomes, p_results, p_errors, p_usages)
          t (id, attempt, outcome, result, error, usage)
        where t.outcome = 'succeeded' -- guard: a result
          -- These took effect just now, with the reported outcome; this saves a read of history.
          and not exists (
            select from unnest(v_settled.ids, v_settled.attempts) d (id, attempt)
            where d.id = t.id and d.attempt = t.attempt)
          -- Nor attempts that still run and are only locked.
          and not exists (
            select from penstock.job j
            where j.id = t.id and j.attempt = t.attempt and j.status in ('running', 'awaiting'))
      )
      insert into penstock.late_result (job_id, attempt, worker_id, arrived_at, outcome, result,
        error, usage)
      select t.id, t.attempt, p_worker, v_now, t.outcome, t.result, t.error, t.usage
      from late t
      -- By the primary key of each table: as a semi-join with the view, the whole history was read
      -- for every job (3.3 s for 250 jobs after 30,000; 2026-11).
      cross join lateral (
        select from penstock.attempts s
        where s.job_id = t.id and s.attempt = t.attempt
          and s.outcome <> 'succeeded' -- guard: otherwise
        limit 1
      ) s
      where not exists ( -- guard: once
        select from penstock.late_result o where o.job_id = t.id and o.attempt = t.attempt);
    end if;
  end if;
  perform penstock._free_slots(v_settled.gates, v_settled.accounts);
  if p_update_circuits then
    perform penstock._update_circuits(p_jobs, p_attempts, p_outcomes, p_errors, p_effects,
      p_retry_afters, p_addresses, v_settled.ids, v_settled.attempts, v_settled.queues,
      v_settled.started, v_now);
  end if;
  if v_all then
    return query
    select u.id, 'done', u.status from unnest(v_settled.ids, v_settled.statuses) u (id, status);
    return;
  end if;
  return query
  select u.id,
    case when d.id is not null then 'done'
      when j.attempt = u.attempt -- guard: locked, fence
        and j.status in ('running', 'awaiting') -- guard: locked, started
        and (p_worker is null or j.worker_id is not distinct from p_worker) -- guard: locked, owner
        and (p_callback is null -- guard: locked, token
          or j.callback_hash is not distinct from p_callback)
        then 'locked'
      else 'stale' end,
    coalesce(d.status, j.status)
  from unnest(p_jobs, p_attempts) u (id, attempt)
  left join unnest(v_settled.ids, v_settled.attempts, v_settled.statuses) d (id, attempt, status)
    on d.id = u.id
    and d.attempt = u.attempt -- guard: done, fence
  left join penstock.job j on j.id = u.id;
end
$$;

-- Settles attempts whose jobs are not finished: the jobs are scheduled, or queued if due at once.
create or replace function penstock._requeue_jobs(
  p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[],
  p_errors jsonb[], p_delays interval[], p_usages jsonb[], p_effects text[],
  p_retry_afters interval[], p_accounts bigint[], p_now timestamptz, p_locked uuid[],
  out ids uuid[], out attempts integer[], out statuses penstock.job_status[],
  out queues integer[], out started timestamptz[], out gates integer[], out accounts bigint[]
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_queues integer[];
  v_lanes bigint[];
  v_kinds integer[];
  v_ranks bigint[];
begin
  with locked as materialized (
    select j.id, j.attempt, j.worker_id, j.started_at, j.slots_held, j.queue_id, j.account_id,
      t.outcome, penstock._plain_error(t.error) as error, t.usage,
      j.failures + case when t.outcome in ('retry', 'timed_out', 'provisional')
        and not p.failure_pending then 1 else 0 end as failures,
      p.failure_pending,
      j.deferrals + case when t.outcome = 'deferred' then 1 else 0 end as deferrals,
      j.crashes + case when t.outcome in ('stuck', 'lost') then 1 else 0 end as crashes,
      p_now + coalesce(case
        when p.failure_pending -- guard: last failure
          then interval '1 minute' end, penstock._elapsed(t.delay), case
        when t.outcome in ('retry', 'timed_out', 'provisional')
          then penstock._backoff(q.backoff, q.backoff_delay, q.backoff_max, j.failures + 1)
        when t.outcome in ('stuck', 'lost') then penstock._recovery_wait(j.crashes + 1)
        -- From the fourth time on, a job that the provider asks to wait lets others go first.
        when t.effect = 'pauses' then case when j.deferrals < 3
          then interval '0' else penstock._probe_wait('pauses', 0, t.retry_after)
            + make_interval(secs => 2 ^ least(j.deferrals, 12)) end
        -- No failure: 1, 2, 4 ... 60 s, or the wait that the provider asked for; no wait while an
        -- open circuit stops the queue anyway.
        when t.outcome = 'deferred' and c.state <> 'open'
          then penstock._probe_wait(null, j.deferrals,
            case t.effect when 'opens' then t.retry_after end)
        else interval '0' end) as run_at,
      coalesce(t.outcome = 'deferred' and c.state = 'open' and c.class is not null
        and j.started_at > c.changed_at, false) as deferred_probe,
      penstock._probe_wait(t.effect, c.tries + 1, t.retry_after) as probe_wait
    from unnest(p_jobs, p_attempts, p_outcomes, p_errors, p_delays, p_usages, p_effects,
        p_retry_afters)
      t (id, attempt, outcome, error, delay, usage, effect, retry_after)
    join penstock.job j on j.id = t.id
    join penstock.queue q on q.id = j.queue_id
    left join penstock.circuit c on c.queue_id = j.queue_id
    cross join lateral (
      select t.outcome = 'provisional' and j.failures + 1 >= j.max_attempts as failure_pending
    ) p
    where j.id = any (p_locked)
      and j.attempt = t.attempt -- guard: fence
      and j.status in ('running', 'awaiting') -- guard: started
      and (p_worker is null or j.worker_id is not distinct from p_worker) -- guard: owner
      and (p_callback is null or j.callback_hash is not distinct from p_callback) -- guard: token
      and (j.slots_held < 2 or j.account_id = any (p_accounts)) -- guard: account locked
      and penstock._final_status( -- guard: goes on
        t.outcome, j.failures, j.max_attempts, j.crashes, q.recovery,
        j.cancel_requested_at is not null) is null
    order by j.id for no key update of j
  ),
  requeued as (
    update penstock.job j set
      status = case when h.run_at <= p_now and not h.deferred_probe
        then 'queued'::penstock.job_status else 'scheduled'::penstock.job_status end,
      -- A failed probe lets other jobs try first, for longer each time. When none is left to try,
      -- _release_deferred_probes ends its wait.
      run_at = case when h.deferred_probe then greatest(h.run_at, p_now + h.probe_wait
          + make_interval(secs => 2 ^ least(h.deferrals, 12))) else h.run_at end,
      deferred_probe = h.deferred_probe, failures = h.failures, deferrals = h.deferrals,
      crashes = h.crashes,
      losses = j.losses + (h.outcome = 'lost_with_others')::integer, only_suspect = false,
      recovered_at = case when h.outcome in ('stuck', 'lost', 'lost_with_others') then p_now
        else j.recovered_at end,
      provisional_at = case when h.outcome = 'provisional' then p_now
        when h.outcome in ('retry', 'timed_out') then null else j.provisional_at end,
      provisional = case h.outcome
        when 'provisional' then 1 + case when j.provisional_at > p_now - interval '1 minute'
          then j.provisional else 0 end
        when 'retry' then 0 when 'timed_out' then 0 else j.provisional end,
      failure_pending = h.failure_pending, error = coalesce(h.error, j.error), worker_id = null,
      callback_hash = null, slots_held = 0,
      timeout_at = null, deadline_at = null, updated_at = p_now, version = j.version + 1
    from locked h where j.id = h.id
    returning j.id, j.status, j.lane, j.rank, j.queue_id, j.kind_id
  ),
  logged as (
    insert into penstock.attempt (job_id, attempt, worker_id, started_at, ended_at, outcome, error,
      usage)
    select h.id, h.attempt, h.worker_id, h.started_at, p_now,
      case h.outcome when 'retry' then 'retried' when 'provisional' then 'retried'
        when 'lost_with_others' then 'lost'
        else h.outcome end,
      h.error, h.usage
    from locked h
  )
  select array_agg(g.id), array_agg(h.attempt), array_agg(g.status), array_agg(h.queue_id),
    array_agg(h.started_at), array_agg(h.queue_id) filter (where h.slots_held & 1 = 1),
    array_agg(h.account_id) filter (where h.slots_held >= 2),
    array_agg(g.queue_id) filter (where g.lane >= 0 and g.status = 'queued'),
    array_agg(g.lane) filter (where g.lane >= 0 and g.status = 'queued'),
    array_agg(g.kind_id) filter (where g.lane >= 0 and g.status = 'queued'),
    array_agg(g.rank) filter (where g.lane >= 0 and g.status = 'queued')
  into ids, attempts, statuses, queues, started, gates, accounts, v_queues, v_lanes, v_kinds,
    v_ranks
  from requeued g join locked h on h.id = g.id;
  if v_lanes is not null then
    perform penstock._join_lanes(v_queues, v_lanes, v_kinds, v_ranks);
  end if;
end
$$;

-- Settles attempts as their worker reports. Safe to repeat: a report that took effect before is
-- stale now. p_wait: how long to wait for each account, for attempts that were locked before.
-- p_effects, p_retry_afters, p_addresses: what a failure means for the circuit, see circuit.sql.
create or replace function penstock.finish_jobs(
  p_worker bigint, p_jobs uuid[], p_attempts integer[], p_outcomes text[],
  p_results jsonb[] default null, p_errors jsonb[] default null,
  p_delays interval[] default null, p_accounts bigint[] default null,
  p_usages jsonb[] default null, p_units bigint[] default null, p_wait interval default null,
  p_effects text[] default null, p_retry_afters interval[] default null,
  p_addresses text[] default null
) returns table (job_id uuid, verdict text, status penstock.job_status)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_bad text;
begin
  if p_worker is null then -- guard: worker named
    perform penstock._refuse(422, 'invalid_finish', 'worker is required', 'worker');
  end if;
  select o into v_bad from unnest(p_outcomes) o
  where o is null or o not in ('succeeded', 'failed', 'cancelled', 'retry', 'provisional',
                               'deferred', 'snoozed', 'released', 'timed_out', 'stuck') limit 1;
  if found then
    perform penstock._refuse(422, 'invalid_finish',
      format('outcome must be succeeded, failed, cancelled, retry, provisional, deferred, '
             'snoozed, released, timed_out or stuck, not %s', coalesce(v_bad, 'null')), 'outcome');
  end if;
  if p_delays is not null and exists (
    select from unnest(p_delays) d where d < interval '0' or d > interval '3650 days') then
    perform penstock._refuse(422, 'invalid_finish',
      'a delay must be 0 or more and at most ten years', 'delay_seconds');
  end if;
  if exists (select from unnest(p_units) u where u < 0) then -- guard: units
    perform penstock._refuse(422, 'invalid_finish', 'units must be 0 or more', 'units');
  end if;
  return query
  select s.job_id, s.verdict, s.status
  from penstock._settle_jobs(p_worker, null, p_jobs, p_attempts, p_outcomes, p_results, p_errors,
                             p_delays, p_accounts, p_usages, p_units, true, p_wait, p_effects,
                             p_retry_afters, p_addresses) s;
end
$$;
