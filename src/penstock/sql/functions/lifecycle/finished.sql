-- The only insert into `finished`. Two functions call it: _settle_jobs for attempts that finish
-- their job, and _finish_waiting for jobs that are cancelled or fail before they start.

-- Moves jobs whose outcome is final from `job` to `finished`, and returns the slots that they held.
-- p_worker, p_callback: who must own the attempt, as in finish.sql; a queued or scheduled job has
-- no owner. p_from: the states that the jobs may have. p_accounts: accounts that the caller has
-- locked. p_locked: jobs that the caller has locked, and no others are moved; null: jobs that
-- nobody has locked. The row's xmax shows whether somebody changes or locks it, at no cost (to lock
-- each beforehand took 2 us a job, a tenth of claim and finish; 2026-11). xmax = xmin is the claim
-- that locked and then started the job, long committed.
create or replace function penstock._move_to_finished(
  p_worker bigint, p_callback bytea, p_jobs uuid[], p_attempts integer[], p_outcomes text[],
  p_results jsonb[], p_errors jsonb[], p_usages jsonb[], p_units bigint[], p_accounts bigint[],
  p_now timestamptz, p_locked uuid[],
  p_from penstock.job_status[] default '{running, awaiting}',
  out ids uuid[], out attempts integer[], out statuses penstock.job_status[],
  out queues integer[], out started timestamptz[], out gates integer[], out accounts bigint[]
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_priced uuid[];
  v_payers bigint[];
  v_reserved bigint[];
  v_charged bigint[];
begin
  with reported as materialized (
    select * from unnest(p_jobs, p_attempts, p_outcomes, p_results, p_errors, p_usages, p_units)
      t (id, attempt, outcome, result, error, usage, units)
    order by t.id
  ),
  gone as (
    delete from penstock.job j using reported t, penstock.queue q
    where j.id = t.id and q.id = j.queue_id
      and j.attempt = t.attempt -- guard: fence
      and j.status = any (p_from) -- guard: expected status
      and (p_worker is null or j.worker_id is not distinct from p_worker) -- guard: owner
      and (p_callback is null or j.callback_hash is not distinct from p_callback) -- guard: token
      and ((j.slots_held < 2 and j.reserved = 0)
        or j.account_id = any (p_accounts)) -- guard: account locked
      and (case when p_locked is null then j.xmax = '0' or j.xmax = j.xmin -- guard: job not locked
        else j.id = any (p_locked) end)
      and penstock._final_status( -- guard: final
        t.outcome, j.failures, j.max_attempts, j.crashes, q.recovery,
        j.cancel_requested_at is not null) is not null
    returning j.*, t.outcome, t.result, t.error as reported_error, t.usage,
      coalesce(t.units, j.units) as delivered, j.deadline_at is not null as started,
      q.succeeded_class, q.failed_class,
      penstock._final_status(t.outcome, j.failures, j.max_attempts, j.crashes, q.recovery,
        j.cancel_requested_at is not null) as final
  ),
  moved as (
    insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority,
      attempt, failures, deferrals, crashes, max_attempts, version, worker_id, created_at, run_at,
      started_at, timeout_at, finished_at, recovered_at, timeout, finished_by_attempt, batch_id,
      retry_of, dedupe_key, topic, stage, progress, error, metadata, payload, result, losses, usage,
      units, reserved, first_job, priority_given)
    select e.id, case e.final when 'failed' then e.failed_class else e.succeeded_class end,
      e.final, e.account_id, e.queue_id, e.kind_id, e.priority, e.attempt,
      e.failures + case when e.outcome in ('failed', 'retry', 'timed_out')
        and (e.started or e.failure_pending) then 1 else 0 end,
      e.deferrals, e.crashes, e.max_attempts, e.version + 1, e.worker_id, e.created_at, e.run_at,
      e.started_at, null, p_now, e.recovered_at, e.timeout, e.started, e.batch_id, e.retry_of,
      e.dedupe_key, e.topic, e.stage, e.progress,
      penstock._final_error(e.final, e.outcome, e.reported_error),
      e.metadata, e.payload, case when e.final = 'succeeded' then e.result end, e.losses, e.usage,
      e.delivered, e.reserved, e.first_job, e.priority_given
    from gone e
  )
  select array_agg(e.id), array_agg(e.attempt), array_agg(e.final), array_agg(e.queue_id),
    array_agg(e.started_at), array_agg(e.queue_id) filter (where e.slots_held & 1 = 1),
    array_agg(e.account_id) filter (where e.slots_held >= 2),
    array_agg(e.id) filter (where e.reserved > 0),
    array_agg(e.account_id) filter (where e.reserved > 0),
    array_agg(e.reserved) filter (where e.reserved > 0),
    -- The units that the last attempt of a waiting job delivered are charged, too.
    array_agg(penstock._charged(e.final, e.reserved, e.units_total, e.delivered))
      filter (where e.reserved > 0)
  into ids, attempts, statuses, queues, started, gates, accounts, v_priced, v_payers, v_reserved,
    v_charged
  from gone e;
  if v_priced is not null then
    perform penstock._resolve(v_priced, v_payers, v_reserved, v_charged);
  end if;
  if ids is not null then
    -- Most installations have no such kind: they pay one read of a small table.
    if exists (select from penstock.kind k where k.has_on_finish) then
      insert into penstock.pending_on_finish (job_id, kind_id, next_at)
      select f.id, f.kind_id, p_now
      from unnest(ids) u (id)
      join penstock.finished f on f.id = u.id
      join penstock.kind k on k.id = f.kind_id
      where k.has_on_finish; -- guard: callback wanted
    end if;
    perform penstock._record_deliveries(ids);
  end if;
end
$$;
