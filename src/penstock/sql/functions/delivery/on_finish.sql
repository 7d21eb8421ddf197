-- Call an app's on_finish callback when a job has finished. The transaction that finishes the job
-- writes a row for the callback, whether a worker, a callback, upkeep or a cancel finishes it.
-- The process that calls the app deletes the row in the transaction in which the app writes: so the
-- callback takes effect once, and is called again later if its writes fail. A worker that finishes
-- such a job does both in one transaction.

-- Returns the job as it will be after this outcome, if the outcome finishes it and the attempt is
-- the worker's; locks it until the transaction ends. So the app can write first, and finish_jobs
-- locks rows that others need (the account's, the queue's) afterwards, for a moment only.
create or replace function penstock.preview_finish(
  p_worker bigint, p_job uuid, p_attempt integer, p_outcome text, p_result jsonb, p_error jsonb
) returns table (
  id uuid, kind text, account text, topic text, status text, attempt integer, payload jsonb,
  metadata jsonb, result jsonb, error jsonb, created_at timestamptz, finished_at timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select j.id, k.name, a.name, j.topic, e.final::text, j.attempt, j.payload, j.metadata,
    case when e.final = 'succeeded' then p_result end,
    penstock._error_json(penstock._final_error(e.final, p_outcome, p_error)),
    j.created_at, penstock.clock()
  from penstock.job j
  join penstock.queue q on q.id = j.queue_id
  join penstock.kind k on k.id = j.kind_id
  left join penstock.account a on a.id = j.account_id
  cross join lateral (select penstock._final_status(p_outcome, j.failures, j.max_attempts,
    j.crashes, q.recovery, j.cancel_requested_at is not null)) e (final)
  where j.id = p_job
    and j.attempt = p_attempt -- guard: fence
    and j.worker_id = p_worker -- guard: owner
    and e.final is not null -- guard: ends
  for update of j skip locked;
end
$$;

-- Takes one due callback of these kinds, or that of p_job, for the rest of the transaction.
create or replace function penstock.take_on_finish(p_kinds text[], p_job uuid default null)
returns table (
  id uuid, kind text, account text, topic text, status text, attempt integer, payload jsonb,
  metadata jsonb, result jsonb, error jsonb, created_at timestamptz, finished_at timestamptz
)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  with taken as (
    delete from penstock.pending_on_finish h
    where h.job_id = (
      select o.job_id from penstock.pending_on_finish o join penstock.kind k on k.id = o.kind_id
      where k.name = any (p_kinds)
        and (p_job is null or o.job_id = p_job)
        and (p_job is not null or o.next_at <= penstock.clock()) -- guard: due
      order by o.next_at limit 1
      for update of o skip locked) -- guard: taken once
    returning h.job_id
  )
  select f.id, k.name, a.name, f.topic, f.status::text, f.attempt, f.payload, f.metadata,
    f.result, penstock._error_json(f.error), f.created_at, f.finished_at
  from taken t join penstock.finished f on f.id = t.job_id
  join penstock.kind k on k.id = f.kind_id left join penstock.account a on a.id = f.account_id
$$;

-- Postpones a callback that failed: it is called again after 1, 2, 4 … seconds, an hour at most.
create or replace function penstock.postpone_on_finish(p_job uuid) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  update penstock.pending_on_finish h set tries = h.tries + 1,
    next_at = penstock.clock() + make_interval(secs => least(3600, 2 ^ least(h.tries, 12)))
  where h.job_id = p_job
$$;
