-- Corrections after the server's clock was set. That clock decides which leases and deadlines are
-- over, so a step would expire live workers and jobs, or keep dead ones. Every worker's upkeep
-- compares it with a clock that cannot be set, and calls these functions when the two differ
-- (worker/membership/clocks.py).

-- Not least(): that returns the other value if one is null.
create or replace function penstock._not_after(p_at timestamptz, p_now timestamptz)
returns timestamptz
language sql immutable parallel safe
as $$ select case when p_at > p_now then p_now else p_at end $$;

-- Corrects times after the clock went back. Times that were written before are in the future:
-- leases, deadlines and delays would last longer by the whole step. They are set again from now,
-- with as much time left as they had. Locked rows are skipped; upkeep calls this several times. A
-- time that a caller has given (run_at, expires) stays as it is.
create or replace function penstock.clock_went_back() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
begin
  update penstock.worker w set beat_at = v_now
  where w.id = any (array(
    select s.id from penstock.worker s
    where s.cleared_at is null and s.beat_at > v_now -- guard: beat ahead
    for no key update skip locked));
  update penstock.job j set
    deadline_at = j.deadline_at - (j.updated_at - v_now),
    timeout_at = j.timeout_at - (j.updated_at - v_now),
    run_at = case when j.deadline_at is null and j.run_at > v_now
      then j.run_at - (j.updated_at - v_now) else j.run_at end,
    started_at = penstock._not_after(j.started_at, v_now),
    progressed_at = penstock._not_after(j.progressed_at, v_now),
    cancel_requested_at = penstock._not_after(j.cancel_requested_at, v_now), updated_at = v_now
  where j.id = any (array(
    select s.id from penstock.job s
    where s.updated_at > v_now -- guard: updated ahead
      -- A job that never started waits for a time that its caller has given.
      and (s.deadline_at is not null or s.attempt > 0) -- guard: begun
    for no key update skip locked));
  update penstock.gate g set rate_next_at = v_now
  where g.queue_id = any (array(
    select s.queue_id from penstock.gate s join penstock.queue q on q.id = s.queue_id
    where s.rate_next_at > v_now + q.rate_period / q.rate_count * (q.rate_burst + 1)
    for no key update of s skip locked));
  -- An early probe costs one job, or one message; and failures before changed_at would not count.
  update penstock.circuit c set
    next_at = case when c.changed_at > v_now or c.checked_at > v_now
      then penstock._not_after(c.next_at, v_now) else c.next_at end,
    changed_at = least(c.changed_at, v_now), checked_at = least(c.checked_at, v_now),
    answered_at = least(c.answered_at, v_now), answered_start = least(c.answered_start, v_now),
    eased_at = least(c.eased_at, v_now)
  where c.queue_id = any (array(
    select s.queue_id from penstock.circuit s
    where greatest(s.changed_at, s.checked_at, s.answered_at, s.answered_start, s.eased_at) > v_now
    for no key update skip locked));
  update penstock.pending_on_finish h set next_at = v_now
  where h.job_id = any (array(
    select s.job_id from penstock.pending_on_finish s where s.next_at > v_now
    for no key update skip locked));
  update penstock.delivery d set next_at = v_now, sending_until = null,
    last_at = penstock._not_after(d.last_at, v_now)
  where d.id = any (array(
    select s.id from penstock.delivery s
    where s.next_at > v_now
      and coalesce(s.last_at, s.created_at) > v_now -- guard: tried ahead
    for no key update skip locked));
end
$$;

-- Postpones deadlines after the clock went forward by p_by, after p_before: the attempts of this
-- worker have used nothing of that time. Nor have awaiting jobs, which belong to no worker
-- (p_worker null: only these). The upkeep of every worker calls this for the same step. The first
-- call postpones the awaiting jobs; later calls see that because updated_at is then after the step.
-- A job that was handed over or reported progress between the step and this call also has such an
-- updated_at; but its deadline was already over at that time, so it is postponed, too. A locked
-- awaiting job is being settled, or another worker postpones it.
create or replace function penstock.postpone_deadlines(
  p_worker bigint, p_by interval, p_before timestamptz
) returns integer
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with postponed as (
    update penstock.job j set deadline_at = j.deadline_at + p_by,
      timeout_at = j.timeout_at + p_by, updated_at = penstock.clock()
    where j.id = any (array(
      select s.id from penstock.job s
      where s.deadline_at is not null
        and s.worker_id = p_worker -- guard: its own
        and s.started_at <= p_before -- guard: from before
      order by s.id for no key update)
    || array(
      select s.id from penstock.job s
      where s.deadline_at > p_before -- guard: not over
        and s.status = 'awaiting' -- guard: outside
        and s.started_at <= p_before -- guard: outside, from before
        and (s.updated_at <= p_before or s.deadline_at <= s.updated_at) -- guard: once
      order by s.id for no key update skip locked))
    returning j.id
  )
  select count(*)::integer from postponed
$$;
