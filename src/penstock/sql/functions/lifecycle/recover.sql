-- Recover attempts that no worker settles, because the worker is lost, the time is over,
-- there is no progress, or a cancellation was not noticed. Recovery reads an attempt and settles
-- it. If a live worker settles it first, that outcome stands; two recoveries at once do not count
-- twice (L3).
--
-- Budgets: a timeout is a failure. An attempt that is stuck, or was lost alone, is a crash; after
-- queue.recovery of them the next one fails the job with stuck_exhausted. The jobs of a worker that
-- dies with several are released without a failure. But a job to which this happened twice is a
-- suspect: it runs as the only suspect of its worker, and a loss counts as if it had been alone.
--
-- While a handler blocks the event loop of its worker (blocked_loop.sql), the other attempts there
-- are released without a failure when they are past their deadlines, and all of them after 30
-- seconds: a loop that is blocked for ever must not keep them for ever. The attempt that blocks has
-- its deadline like any other. If the blocking attempt is not known, each of them may be it, as
-- among the jobs of a dead worker.

-- Workers that should hold advisory locks but hold none: they are dead, which shows in
-- milliseconds. Two sessions of a worker share its lock, so that the loss of one of them means
-- nothing.
create or replace function penstock._unlocked_workers() returns bigint[]
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select array_agg(w.id) from penstock.worker w
  where w.cleared_at is null and w.locks and w.lost_at is null and w.stopped_at is null
    and w.id <> all (array(
      select (l.classid::bigint << 32) | l.objid::bigint
      from pg_locks l
      where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database())))
$$;

create or replace function penstock._expire_leases(p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_unlocked bigint[] := penstock._unlocked_workers();
begin
  update penstock.worker w set lost_at = p_now
  where w.id = any (array(
    select s.id from penstock.worker s
    where s.cleared_at is null
      and s.lost_at is null and s.stopped_at is null -- guard: once
      and (s.beat_at + s.lease < p_now or s.id = any (v_unlocked)) -- guard: lease over
    -- A worker whose row is locked sends a heartbeat at this moment.
    for no key update skip locked));
  update penstock.worker w set lost_jobs = (
    select count(*) from penstock.job j where j.deadline_at is not null and j.worker_id = w.id)
  where w.cleared_at is null
    and w.lost_jobs is null -- guard: counted once
    and (w.lost_at is not null or w.stopped_at is not null); -- guard: gone
end
$$;

-- Whether a lease has expired, for an upkeep that may not expire leases yet.
create or replace function penstock.any_lease_expired() returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from penstock.worker w
    where w.cleared_at is null and w.lost_at is null and w.stopped_at is null
      and (w.beat_at + w.lease < penstock.clock() or w.id = any (penstock._unlocked_workers())))
$$;

-- Attempts to settle, with their outcomes. Jobs of locked accounts are skipped before they count
-- towards p_limit, or they would fill every pass.
create or replace function penstock._recoverable(p_now timestamptz, p_limit integer)
returns table (id uuid, attempt integer, outcome text, error jsonb)
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with blocked as materialized (select * from penstock._blocked_loops(p_now))
  select c.id, c.attempt, c.outcome, jsonb_build_object('class', c.class, 'message', c.message,
    'retryable', c.outcome <> 'cancelled')
  from (
    select j.id, j.attempt, j.slots_held, j.reserved, j.account_id, 'cancelled' as outcome,
      'cancelled' as class,
      'cancelled while it ran' as message
    from penstock.job j
    where j.cancel_requested_at is not null -- guard: cancel asked
      and (j.status = 'awaiting' -- guard: grace
        -- Its worker had enough time to stop it cleanly.
        or (j.status = 'running' and j.cancel_requested_at <= p_now - interval '10 seconds'))
    union all
    select j.id, j.attempt, j.slots_held, j.reserved, j.account_id,
      case
        when w.stopped_at is not null then 'released' -- guard: in good order
        when w.lost_jobs > 1 -- guard: alone
          and not j.only_suspect then 'lost_with_others' -- guard: suspect
        else 'lost' end,
      'worker_lost', format('worker %s was lost', w.name)
    from penstock.worker w join penstock.job j on j.worker_id = w.id
    where w.cleared_at is null and j.deadline_at is not null
      and (w.lost_at is not null or w.stopped_at is not null) -- guard: gone
    union all
    select j.id, j.attempt, j.slots_held, j.reserved, j.account_id,
      case
        when l.blocker = 'known' then 'released' -- guard: blocker known
        when l.blocker = 'unknown'
          and not j.only_suspect then 'lost_with_others' -- guard: alone in loop
        when l.blocker is null and j.timeout_at <= p_now then 'timed_out'
        else 'stuck' end,
      case when l.blocker is not null then 'worker_lost' when j.timeout_at > p_now then 'stalled'
        when j.status = 'awaiting' then 'no_callback' else 'timeout' end,
      case when l.blocker is not null then 'the event loop of its worker was blocked'
        when j.timeout_at > p_now then 'no progress for too long'
        when j.status = 'awaiting' then 'no callback came in time' else 'over its time' end
    from penstock.job j cross join lateral (
      select case
        when (j.id, j.attempt) in (select b.job_id, b.attempt from blocked b) then null
        when j.worker_id = any (array(select b.worker_id from blocked b where b.job_id is not null))
          then 'known'
        when j.worker_id = any (array(select b.worker_id from blocked b)) then 'unknown'
      end as blocker
    ) l
    where j.deadline_at <= p_now -- guard: over its deadline
    union all
    select j.id, j.attempt, j.slots_held, j.reserved, j.account_id,
      case when b.job_id is null and j.only_suspect then 'stuck'
        when b.job_id is null then 'lost_with_others' else 'released' end,
      'worker_lost', 'the event loop of its worker was blocked'
    from blocked b join penstock.job j on j.worker_id = b.worker_id
    where j.deadline_at > p_now
      and b.began_at <= p_now - interval '30 seconds' -- guard: loop stands for long
      and (j.id, j.attempt) is distinct from (b.job_id, b.attempt) -- guard: not the blocker
  ) c
  where (c.slots_held < 2 and c.reserved = 0)
    or penstock._try_lock_account(c.account_id) -- guard: passed over
  limit p_limit
$$;

-- Fails jobs whose last failure may have been the provider's, when their minute is over: no circuit
-- has opened, so it was the job's own failure.
create or replace function penstock._fail_pending(p_now timestamptz, p_limit integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_due record;
begin
  select array_agg(d.id) as ids, array_agg(distinct d.account_id) as accounts into v_due from (
    select j.id, j.account_id from penstock.job j
    where j.failure_pending -- guard: last failure
      and j.status = 'scheduled' and j.run_at <= p_now -- guard: its minute
      and ((j.lane = -1 and j.reserved = 0)
        or penstock._try_lock_account(j.account_id)) -- guard: lane held
    order by j.run_at limit p_limit for update skip locked
  ) d;
  perform penstock._finish_waiting(v_due.ids, 'retry', null, v_due.accounts);
end
$$;

-- Closes circuits that are ramping, when no job was refused for a minute and none starts any more.
create or replace function penstock._close_ramps(p_now timestamptz) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select penstock._write_circuit(penstock._closed(s.ramp, p_now)),
    penstock._publish_circuit(q.name, penstock._closed(s.ramp, p_now), p_now)
  from (
    select c as ramp, c.queue_id from penstock.circuit c
    where c.state = 'ramping' and penstock._is_steady(c, p_now)
    order by c.queue_id for no key update skip locked
  ) s
  join penstock.queue q on q.id = s.queue_id
$$;

-- Runs one bounded pass of recovery and returns its outcome. The next pass retries `locked` jobs.
-- p_grace: do nothing in a session younger than this. A restarted server has lost every lock, and
-- live workers need a moment to reconnect, to send a heartbeat and to report finished attempts.
-- p_alone: do nothing while another pass runs. p_judge: whether to expire the leases of silent
-- workers.
create or replace function penstock.recover_jobs(
  p_limit integer default 500, p_grace interval default '0', p_alone boolean default false,
  p_judge boolean default true
)
returns table (job_id uuid, outcome text, verdict text, status penstock.job_status)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_attempts record;
begin
  if (p_grace > interval '0' and penstock._session_age() < p_grace) -- guard: grace
    or (p_alone and not pg_try_advisory_xact_lock(1886413173, 1))
  then
    return;
  end if;
  if p_judge then
    perform penstock._expire_leases(v_now);
  end if;
  -- A job may be due for two reasons (lost, and past its deadline): the first one counts.
  select array_agg(r.id) as ids, array_agg(r.attempt) as attempts,
    array_agg(r.outcome) as outcomes, array_agg(r.error) as errors
  into v_attempts
  from (
    select distinct on (f.id) f.id, f.attempt, f.outcome, f.error
    from penstock._recoverable(v_now, p_limit) with ordinality f (id, attempt, outcome, error, o)
    order by f.id, f.o
  ) r;
  if v_attempts.ids is not null then
    -- Before the job can start again.
    perform penstock._mark_blocker(b.job_id, b.attempt,
      extract(epoch from v_now - b.began_at)::double precision)
    from penstock._blocked_loops(v_now) b where b.job_id is not null;
    return query
    select s.job_id, u.outcome, s.verdict, s.status
    from penstock._settle_jobs(null, null, v_attempts.ids, v_attempts.attempts,
                               v_attempts.outcomes, null, v_attempts.errors, null, null) s
    join unnest(v_attempts.ids, v_attempts.outcomes) u (id, outcome) on u.id = s.job_id;
  end if;
  -- Failures of jobs that were locked when the circuit opened. This comes before _fail_pending,
  -- which would fail such jobs.
  perform penstock._uncount_failures(c.queue_id, c.changed_at, v_now, null)
  from penstock.circuit c
  where c.state = 'open' and penstock._is_outage(c.class);
  perform penstock._fail_pending(v_now, p_limit);
  perform penstock._close_ramps(v_now);
  -- Claims do this too, but nothing is claimed from a queue that is stopped.
  perform penstock.expire_jobs(q.id) from penstock.queue q
  where exists (
    select from penstock.job j where j.queue_id = q.id and j.expires_at <= v_now
      and j.status in ('scheduled', 'queued'));
  -- Only after a while: a claim that began before the worker was lost may commit afterwards.
  update penstock.worker w set cleared_at = v_now
  where w.cleared_at is null
    and coalesce(w.lost_at, w.stopped_at) < v_now - interval '10 minutes' -- guard: after a while
    and not exists ( -- guard: holds nothing
      select from penstock.job j where j.deadline_at is not null and j.worker_id = w.id);
end
$$;
