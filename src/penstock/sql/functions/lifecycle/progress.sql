-- Stage, progress, chunks and kept steps that a running attempt reports. Each write is fenced
-- like finish_jobs (L3) and postpones the time at which upkeep takes the attempt for stuck. None of
-- them waits for a locked row. Verdicts as in finish.sql: done, stale, locked.

-- The deadline at which upkeep recovers an attempt that reports now. A worker has five seconds to
-- report a timeout itself.
create or replace function penstock._deadline(
  p_status penstock.job_status, p_timeout_at timestamptz, p_stuck_after interval,
  p_now timestamptz
) returns timestamptz
language sql stable parallel safe
as $$
  select least(p_timeout_at + case p_status when 'running' then interval '5 seconds'
    else interval '0' end, p_now + p_stuck_after)
$$;

-- Records the latest stage and progress of attempts: those of a worker, or those of outside
-- functions whose tokens have these hashes (p_callbacks). Null leaves a field as it is; the stage
-- '' removes the stage. `cancel`: the cancellation of the job is requested.
create or replace function penstock.report_progress(
  p_worker bigint, p_jobs uuid[], p_attempts integer[], p_stages text[], p_labels text[],
  p_progress jsonb[], p_units bigint[] default null, p_callbacks bytea[] default null
) returns table (job_id uuid, verdict text, cancel boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
begin
  if exists (select from unnest(p_units) u where u < 0) then -- guard: units
    perform penstock._refuse(422, 'invalid_progress', 'units must be 0 or more', 'units');
  end if;
  return query
  with reported as materialized (
    select * from unnest(p_jobs, p_attempts, p_stages, p_labels, p_progress, p_units, p_callbacks)
      t (id, attempt, stage, label, progress, units, callback)
  ),
  locked as materialized (
    select t.* from reported t join penstock.job j on j.id = t.id
    where j.attempt = t.attempt -- guard: fence
      and (j.worker_id = p_worker -- guard: owner
        or j.callback_hash = t.callback) -- guard: token
    order by j.id for no key update of j skip locked
  ),
  moved as (
    update penstock.job j set
      stage = case when h.stage is null then j.stage else nullif(h.stage, '') end,
      stage_label = case when h.stage is null then j.stage_label else h.label end,
      stage_at = case when h.stage is null or nullif(h.stage, '') is not distinct from j.stage
        then j.stage_at when h.stage = '' then null else v_now end,
      progress = coalesce(h.progress, j.progress), units = coalesce(h.units, j.units),
      progressed_at = v_now, updated_at = v_now, version = j.version + 1,
      deadline_at = penstock._deadline(j.status, j.timeout_at, q.stuck_after, v_now)
    from locked h, penstock.queue q
    where j.id = h.id and q.id = j.queue_id
    returning j.id, j.attempt, j.cancel_requested_at is not null as cancel
  )
  select t.id, case when m.id is not null then 'done'
    when j.attempt = t.attempt and (j.worker_id = p_worker or j.callback_hash = t.callback)
      then 'locked'
    else 'stale' end,
    coalesce(m.cancel, false)
  from reported t
  left join moved m on m.id = t.id and m.attempt = t.attempt
  left join penstock.job j on j.id = t.id;
end
$$;

-- Keeps the result of a step for later attempts of the job; the first result stays.
create or replace function penstock.keep_step(
  p_worker bigint, p_job uuid, p_attempt integer, p_name text, p_result jsonb
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_verdict text;
begin
  if p_name is null or length(p_name) not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_step',
      'the name of a step must be a text of 1 to 200 characters', 'name');
  end if;
  select r.verdict into v_verdict
  from penstock.report_progress(p_worker, array[p_job], array[p_attempt], null, null, null) r;
  if v_verdict = 'done' then -- guard: owner
    insert into penstock.step (job_id, name, attempt, kept_at, result)
    values (p_job, p_name, p_attempt, penstock.clock(), p_result)
    on conflict do nothing;
  end if;
  return v_verdict;
end
$$;

create or replace function penstock.read_steps(p_job uuid)
returns table (name text, result jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select s.name, s.result from penstock.step s where s.job_id = p_job $$;

-- Appends chunks of running attempts. Safe to repeat: an existing number stays as it is. Needs no
-- lock: a chunk names its attempt, so a late chunk is stored among those of its own attempt.
create or replace function penstock.append_chunks(
  p_worker bigint, p_jobs uuid[], p_attempts integer[], p_seqs integer[], p_data jsonb[]
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_added integer;
begin
  insert into penstock.chunk (job_id, attempt, seq, data)
  select t.id, t.attempt, t.seq, t.data
  from unnest(p_jobs, p_attempts, p_seqs, p_data) t (id, attempt, seq, data)
  join penstock.job j on j.id = t.id
  where j.attempt = t.attempt -- guard: fence
    and j.worker_id = p_worker -- guard: owner
  on conflict do nothing;
  get diagnostics v_added = row_count;
  return v_added;
end
$$;

-- The chunks of all attempts of a job after a position in the stream, the last attempt's at the
-- end.
create or replace function penstock.read_chunks(
  p_job uuid, p_attempt integer default 0, p_seq integer default 0, p_limit integer default 1000
) returns table (attempt integer, seq integer, data jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select c.attempt, c.seq, c.data from penstock.chunk c
  where c.job_id = p_job
    and (c.attempt > p_attempt or (c.attempt = p_attempt and c.seq > p_seq))
  order by c.attempt, c.seq limit p_limit
$$;

-- The attempts of a worker whose cancellation is requested.
create or replace function penstock.read_cancels(p_worker bigint)
returns table (job_id uuid, attempt integer)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select j.id, j.attempt from penstock.job j
  where j.cancel_requested_at is not null and j.worker_id = p_worker
$$;

-- The attempts that a worker has been running for longer than p_older, according to the database. A
-- claim whose answer was lost leaves attempts that their worker does not know of: the worker
-- compares them with its own and releases the others.
create or replace function penstock.read_running_attempts(p_worker bigint, p_older interval)
returns table (job_id uuid, attempt integer, slot_account bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select j.id, j.attempt, case when j.slots_held >= 2 then j.account_id end
  from penstock.job j
  where j.deadline_at is not null and j.worker_id = p_worker
    and j.started_at < penstock.clock() - p_older -- guard: older
$$;

-- Marks a suspect as the only suspect that its worker runs: if that worker dies now, the crash
-- counts for this job. Returns false if the worker runs another one.
create or replace function penstock.mark_only_suspect(
  p_worker bigint, p_job uuid, p_attempt integer
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_worker_is_locked boolean := not pg_try_advisory_xact_lock(
    1886413175, (p_worker & 2147483647)::integer);
begin
  -- Two attempts of the worker may ask at the same moment: the second one asks again later. The
  -- worker's row is not locked for that, because its heartbeat and upkeep need it; the job's row
  -- only if it is not locked.
  if v_worker_is_locked -- guard: one by one
    or exists (
      select from penstock.job j where j.deadline_at is not null
        and j.worker_id = p_worker and j.only_suspect) -- guard: only one
  then
    return false;
  end if;
  update penstock.job j set only_suspect = true
  where j.id = any (array(
    select s.id from penstock.job s
    where s.id = p_job
      and s.attempt = p_attempt -- guard: fence
      and s.worker_id = p_worker -- guard: owner
    for no key update skip locked));
  return found;
end
$$;
