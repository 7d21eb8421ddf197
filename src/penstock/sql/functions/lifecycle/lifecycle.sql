-- The life of a job. Its status is set here and in insert.sql, claim.sql, finish.sql, finished.sql
-- and recover.sql, nowhere else.
--
--   submit_many              claim_jobs               finish_jobs, resolve_callbacks
--  ------------->  queued  ------------->  running  ---------------------------------> succeeded
--  |                ^  |                    |  |  |
--  | stage_due_jobs |  |                    |  |  +-- finish_jobs: failed, or retry with none
--  v                |  |                    |  |      left; recover_jobs: none left -----> failed
--  scheduled -------+  |                    |  |
--   ^    |             |                    |  +-- hand_over_jobs -->  awaiting
--   |    |             |                    |                             |
--   +----|-------------|--------------------+-----------------------------+
--   |    |             |   finish_jobs: retry, deferred, snoozed, released (also to queued)
--   |    |             |   resolve_callbacks, release_job: likewise
--   |    |             |   recover_jobs: timed out, stuck, lost
--   |    v             v
--   |   cancel_job --------------------------------------------------------------> cancelled
--   |   expire_jobs ------------------------------------------------------------->  failed
--   cancel_job of a running or awaiting job only requests it: finish_jobs or recover_jobs cancels.
--   retry_job of a finished job submits a new one (retry_of) and leaves the old one as it is.
--
-- Invariants. Code and tests cite these by number; penstock.check() searches for violations of
-- each.
--   L1  A job is live (in job) or finished (in finished), never both. A finished job never changes
--       its status again.
--   L2  A running job has a worker, an awaiting job has a callback; both have a deadline.
--   L3  job.attempt counts attempts and only grows. It is the fence: a write by a worker or a
--       callback names job, attempt, and worker or token, and changes nothing unless all match a
--       job that is still running or awaiting. A result that comes too late is kept in late_result.
--   L4  Every settled attempt has one row in the view attempts, every attempt at most one.
--   L5  A queue with a limit counts its running and awaiting jobs in gate.running, a limited
--       account counts them in account.running. Both equal the live jobs that hold such a slot
--       (job.slots_held), and no claim takes a slot beyond the limit. An awaiting job keeps its
--       slots.
--   L6  A lane's waiting and head are those of its queued jobs. While jobs wait in it, it is open
--       exactly when the account has a free slot, with one exception: the claim of another queue
--       may have filled the account since. Then the next claim that reads the lane closes it.
--   L7  failures < max_attempts while a job is live: no job is out of attempts and yet not
--       finished.
--   L8  One live job per (kind, account, dedupe key).
--
-- Locks, in this order, ids ascending: account, lane, job, gate. Only claim_jobs begins with the
-- gate, and after it takes only locks that it need not wait for. Upkeep and workers (finish,
-- recover, stage, expire) skip accounts that are locked, because an app's own transaction may keep
-- one locked for as long as it likes after a submit. Functions that an app calls never lock a gate.

-- The order of claims as one number. Microseconds since 2020 fit in 50 bits until 2055.
-- strict: priority, then arrival.  aging: arrival, each priority point worth one step of waiting.
-- fair: as strict, but only among the jobs of one lane.
create or replace function penstock._rank(
  p_ordering text, p_priority integer, p_step interval, p_due_at timestamptz, p_ordinal bigint
) returns bigint
language sql stable parallel safe
as $$
  select ((date_part('epoch', p_due_at) - 1577836800) * 1e6)::bigint + p_ordinal
    + case p_ordering
        when 'aging' then (p_priority * date_part('epoch', p_step) * 1e6)::bigint
        else p_priority::bigint * 1125899906842624 end
$$;

-- The delay after failure number p_failures. In seconds: a day doubled 27 times is no interval.
create or replace function penstock._backoff(
  p_policy text, p_delay interval, p_max interval, p_failures integer
) returns interval
language sql immutable parallel safe
as $$
  select make_interval(secs => least(date_part('epoch', p_max),
    date_part('epoch', p_delay) * case p_policy
      when 'constant' then 1
      when 'linear' then p_failures
      else 2 ^ least(p_failures - 1, 30) end))
$$;

-- The delay after crash number p_crashes: 0 s, 10 s, then 60 s.
create or replace function penstock._recovery_wait(p_crashes integer) returns interval
language sql immutable parallel safe
as $$
  select case when p_crashes <= 1 then interval '0' when p_crashes = 2 then interval '10 seconds'
    else interval '60 seconds' end
$$;

-- Finishes queued and scheduled jobs and returns their ids. p_outcome: 'failed', 'cancelled', or
-- 'retry' for jobs that are out of attempts. p_error: null keeps the error of each job. p_accounts:
-- accounts that the caller has locked; a job in the lane of another account is left alone. A caller
-- that finishes several jobs has locked them, in order.
create or replace function penstock._finish_waiting(
  p_jobs uuid[], p_outcome text, p_error jsonb, p_accounts bigint[]
) returns setof uuid
language plpgsql set search_path = pg_catalog, pg_temp
  -- Plan for these jobs: a plan that was made for few jobs may read all that were added since.
  set enable_seqscan = off set plan_cache_mode = force_custom_plan set jit = off
as $$
declare
  v_jobs record;
begin
  select array_agg(w.id) as ids, array_agg(w.attempt) as attempts,
    array_agg(p_outcome) as outcomes, array_agg(coalesce(p_error, w.error)) as errors,
    array_agg(w.queue_id) filter (where w.lane >= 0 and w.status = 'queued') as queues,
    array_agg(w.lane) filter (where w.lane >= 0 and w.status = 'queued') as lanes,
    array_agg(w.kind_id) filter (where w.lane >= 0 and w.status = 'queued') as kinds
  into v_jobs from (
    select j.* from penstock.job j
    where j.id = any (p_jobs)
      and j.status in ('scheduled', 'queued') -- guard: waits
      and ((j.lane = -1 and j.reserved = 0)
        or j.account_id = any (p_accounts)) -- guard: lane locked
    for update
  ) w;
  if v_jobs.ids is not null then
    perform penstock._move_to_finished(null, null, v_jobs.ids, v_jobs.attempts,
      v_jobs.outcomes, null, v_jobs.errors, null, null, p_accounts, penstock.clock(), v_jobs.ids,
      '{scheduled, queued}');
  end if;
  if v_jobs.queues is not null then
    perform penstock._leave_lanes(v_jobs.queues, v_jobs.lanes, v_jobs.kinds);
  end if;
  return query select unnest(v_jobs.ids);
end
$$;

-- Requests the cancellation of running and awaiting jobs, and returns their ids. Their workers
-- receive a NOTIFY, or poll.
create or replace function penstock._request_cancel(p_jobs uuid[]) returns setof uuid
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  with asked as (
    update penstock.job j set
      cancel_requested_at = coalesce(j.cancel_requested_at, penstock.clock()),
      updated_at = penstock.clock(), version = j.version + 1
    where j.id = any (p_jobs)
      and j.status in ('running', 'awaiting') -- guard: still runs
    returning j.id
  )
  select a.id from asked a cross join lateral pg_notify('penstock_cancel', a.id::text)
$$;

-- Cancels a queued or scheduled job; requests the cancellation of a running or awaiting one. A
-- finished job is left alone.
create or replace function penstock.cancel_job(id uuid) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_job penstock.job;
  v_error jsonb := '{"class": "cancelled", "message": "cancelled while it waited",
                     "retryable": false}';
begin
  -- Several rounds: between read and write the job may be claimed, finish or change lanes.
  for v_round in 1 .. 10 loop
    select * into v_job from penstock.job j where j.id = cancel_job.id;
    if not found then
      perform penstock._await_standbys();
      return penstock.read_job(cancel_job.id);
    end if;
    -- Lock the account first, also for a running job: while we wait for that job, it may be
    -- released. We would then lock a queued job that a claim, which has locked its account, wants
    -- to start.
    perform a.id from penstock.account a -- guard: account locked
    where a.id = case when v_job.lane >= 0 or v_job.reserved > 0 then v_job.account_id end
    for no key update;
    if v_job.status in ('running', 'awaiting') then
      perform penstock._request_cancel(array[v_job.id]);
    else
      perform penstock._finish_waiting(
        array[v_job.id], 'cancelled', v_error,
        array[case when v_job.lane >= 0 or v_job.reserved > 0 then v_job.account_id end]);
    end if;
    if found then
      return penstock.read_job(cancel_job.id);
    end if;
  end loop;
  perform penstock._refuse(409, 'job_contended', 'the job changes too fast to cancel', 'id',
    p_hint => 'Try again.');
end
$$;

-- Locks an account unless another transaction has locked it; returns whether it is locked by us.
create or replace function penstock._try_lock_account(p_account bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
  perform from penstock.account a
  where a.id = p_account for no key update skip locked; -- guard: locked
  return found;
end
$$;

-- Moves due jobs of a queue from scheduled to queued, at most p_limit, or p_job alone. Their rank
-- was fixed at the submit, from the time at which they are due. Jobs of locked accounts are skipped
-- before they count towards p_limit, or they would fill every pass.
create or replace function penstock.stage_due_jobs(
  p_queue integer, p_limit integer default 1000, p_job uuid default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
  v_staged record;
begin
  -- Lock the account's row before the job's, both only if they are not locked: a claim that has
  -- locked the account may want to start the job, and would wait for us.
  with due as materialized (
    select j.id from penstock.job j
    where j.queue_id = p_queue and (p_job is null or j.id = p_job)
      and j.status = 'scheduled' -- guard: scheduled
      and not j.failure_pending -- guard: last failure
      and j.run_at <= v_now -- guard: due
      and (j.lane = -1 or penstock._try_lock_account(j.lane)) -- guard: lane held
    order by j.run_at limit p_limit for update skip locked
  ),
  staged as (
    update penstock.job j set status = 'queued', updated_at = v_now, version = j.version + 1
    from due d where j.id = d.id
    returning j.queue_id, j.lane, j.kind_id, j.rank
  )
  select count(*) as n,
    array_agg(s.queue_id) filter (where s.lane >= 0) as queues,
    array_agg(s.lane) filter (where s.lane >= 0) as lanes,
    array_agg(s.kind_id) filter (where s.lane >= 0) as kinds,
    array_agg(s.rank) filter (where s.lane >= 0) as ranks
  into v_staged
  from staged s;
  if v_staged.lanes is not null then
    perform penstock._join_lanes(
      v_staged.queues, v_staged.lanes, v_staged.kinds, v_staged.ranks);
  end if;
  return v_staged.n;
end
$$;

-- Fails jobs of a queue that have not started before their `expires_at`, at most p_limit.
create or replace function penstock.expire_jobs(p_queue integer, p_limit integer default 1000)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_due record;
begin
  select array_agg(d.id) as ids, array_agg(distinct d.account_id) as accounts into v_due from (
    select j.id, j.account_id from penstock.job j
    where j.queue_id = p_queue and j.status in ('scheduled', 'queued')
      and j.expires_at <= penstock.clock() -- guard: expired
      and ((j.lane = -1 and j.reserved = 0)
        or penstock._try_lock_account(j.account_id)) -- guard: lane held
    order by j.expires_at limit p_limit for update skip locked
  ) d;
  return (select count(*) from penstock._finish_waiting(v_due.ids, 'failed',
    '{"class": "expired", "reason": "expired", "message": "not started in time",
      "retryable": false}',
    v_due.accounts));
end
$$;

-- Records that attempts continue in an outside function: the worker is free, and the slots stay
-- taken until the callback comes, the deadline passes or somebody cancels. Workers call this before
-- they send the request, so that no callback can come too early.
create or replace function penstock.hand_over_jobs(
  p_worker bigint, p_jobs uuid[], p_attempts integer[], p_tokens text[]
) returns table (job_id uuid, verdict text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
begin
  if exists (
    select from unnest(p_tokens) t
    where t is null or length(t) < 16) -- guard: token is long
  then
    perform penstock._refuse(422, 'invalid_token', 'a token needs 16 characters or more', 'token');
  end if;
  -- Like finish_jobs, this does not wait for an app that has asked to cancel one of them: locked.
  return query
  with locked as materialized (
    select j.id, t.token from unnest(p_jobs, p_attempts, p_tokens) t (id, attempt, token)
    join penstock.job j on j.id = t.id
    where j.attempt = t.attempt -- guard: fence
      and j.worker_id = p_worker -- guard: owner
    order by j.id for no key update of j skip locked
  ),
  handed_over as (
    update penstock.job j set
      status = 'awaiting', worker_id = null, callback_hash = sha256(convert_to(h.token, 'UTF8')),
      deadline_at = penstock._deadline('awaiting', j.timeout_at, q.stuck_after, penstock.clock()),
      progressed_at = penstock.clock(), updated_at = penstock.clock(), version = j.version + 1
    from locked h, penstock.queue q
    where j.id = h.id and q.id = j.queue_id
    returning j.id
  )
  select t.id, case when g.id is not null then 'done'
    when j.attempt = t.attempt -- guard: locked, fence
      and j.worker_id = p_worker -- guard: locked, owner
      then 'locked'
    else 'stale' end
  from unnest(p_jobs, p_attempts) t (id, attempt)
  left join handed_over g on g.id = t.id left join penstock.job j on j.id = t.id;
end
$$;
