-- Accepts plain jobs that several callers submitted to one queue at the same moment, in one
-- statement and one commit. Each job gets the answer that accept_job would give.
--
-- _is_plain (insert.sql) says which jobs are plain. They lock no account, have no twin and join no
-- lane, so the order of their locks does not matter, and one caller's job cannot affect another's.
-- A job that is not plain, or has a wrong value, gets no row: the caller then passes it to
-- accept_job, which accepts it or says what is wrong.

-- p_wake: notify the queue's idle workers at the commit.
create or replace function penstock.accept_jobs(
  p_queue text, p_kinds text[], p_payloads jsonb[], p_topics text[] default null,
  p_priorities integer[] default null, p_run_ats timestamptz[] default null,
  p_delays interval[] default null, p_max_attempts integer[] default null,
  p_timeouts interval[] default null, p_expires interval[] default null,
  p_metadata jsonb[] default null, p_wake boolean default false
) returns table (ordinal bigint, job jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- As submit_many. Without seqscans because a session may have planned while the table was empty.
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_most constant integer := penstock._counted_at_submit();
  v_now timestamptz := penstock.clock();
  v_seed uuid := penstock.new_id(v_now);
  v_queue penstock.queue;
  v_jobs penstock.new_job[] := penstock._new_jobs(p_kinds, p_payloads, null, null, p_topics,
    p_priorities, p_run_ats, p_delays, p_max_attempts, p_timeouts, p_expires, p_metadata, null,
    null);
  v_todo boolean[]; -- by ordinal: the job has no fault
  v_ids uuid[];
  v_any_due boolean;
  v_state record; -- of the queue as a whole
  v_served integer[]; -- kinds that some worker has a handler for
  v_heads bigint[]; -- the ranks of the jobs that start first
  v_row record;
  v_job penstock.job;
  v_position bigint;
  v_eta_seconds double precision;
  v_waiting_for text;
  v_priority integer; -- of the last job with more than v_most jobs before it
begin
  select q.* into v_queue from penstock.queue q where q.name = p_queue;
  if not found then
    return;
  end if;
  perform penstock._share_queue_lock(1886413172, v_queue.id); -- guard: order locked
  select q.* into v_queue from penstock.queue q where q.id = v_queue.id;
  select array_agg(f.fault is null order by f.ordinal) into v_todo
  from penstock._job_faults(v_jobs, v_now, false) f;
  select array_agg(i.id), bool_or(i.status = 'queued') into v_ids, v_any_due
  from penstock._insert_jobs(v_seed, v_now, v_jobs, p_kinds, v_queue.id,
    v_todo) i; -- guard: in order
  if v_ids is null then
    return;
  end if;
  if p_wake and v_any_due then
    perform pg_notify('penstock_job', p_queue);
  end if;

  select s.stop, c.state = 'closed' and v_queue.rate_count is null
      and (v_queue.concurrency is null or g.running < v_queue.concurrency) as free,
    exists (select from penstock.lane l where l.queue_id = v_queue.id) as laned,
    exists (
      select from penstock.snapshot n where n.queue_id = v_queue.id and n.lane = -2) as counted
  into v_state
  from penstock.gate g join penstock.circuit c on c.queue_id = g.queue_id
  cross join lateral penstock._stop(v_queue, null, v_now) s (stop)
  where g.queue_id = v_queue.id;
  -- One query for all jobs: a query per job would count the same rows each time.
  v_served := penstock._served_kinds(v_queue.id, v_now);
  v_heads := array(
    select f.rank
    from unnest(v_served) k (id) cross join lateral (
      select j.rank from penstock.job j
      where j.queue_id = v_queue.id and j.kind_id = k.id and j.lane = -1 and j.status = 'queued'
      order by j.rank limit v_most + 1
    ) f
    order by f.rank limit v_most + 1);
  for v_row in
    select penstock._n_of_id(v_seed, j.id) as ordinal, width_bucket(j.rank - 1, v_heads) as ahead,
      j as job
    from unnest(v_ids) u (id) join penstock.job j on j.id = u.id
    order by j.status, j.priority, j.id
  loop
    v_job := v_row.job;
    if v_job.status = 'queued' and v_row.ahead > v_most and v_job.priority = v_priority
      and v_job.kind_id = any (v_served)
    then
      -- It has the next rank; only the job of the previous round lies between.
      v_eta_seconds := round((v_eta_seconds * v_position / (v_position - 1))::numeric, 1);
      v_position := v_position + 1;
    else
      v_position := null;
      v_eta_seconds := null;
      v_waiting_for := null;
      v_priority := null;
      if v_job.status = 'scheduled' then
        null; -- as its caller wanted
      elsif v_state.stop is not null and not v_state.laned and v_job.kind_id = any (v_served)
        and (v_row.ahead <= v_most or not v_state.counted)
      then
        v_position := case when v_row.ahead <= v_most then v_row.ahead + 1 end;
        v_waiting_for := v_state.stop;
      elsif v_row.ahead = 0 and v_state.free and not v_state.laned
        and v_job.kind_id = any (v_served)
      then
        v_position := 1;
        v_eta_seconds := 0;
      else
        select w.queue_position, w.eta_seconds, w.waiting_for
        into v_position, v_eta_seconds, v_waiting_for
        from penstock._waiting(v_job, v_most) w (queue_position, eta_seconds, waiting_for);
        v_priority := case when v_row.ahead > v_most and v_job.kind_id = any (v_served)
          then v_job.priority end;
      end if;
    end if;
    ordinal := v_row.ordinal;
    job := penstock._job_json(v_job, null, p_kinds[ordinal], v_queue.name, v_queue.recovery,
        null, null, null, null, null, v_position, v_eta_seconds, v_waiting_for, true)
      || jsonb_build_object('deduplicated', false, 'replayed', false, 'balance', null);
    return next;
  end loop;
end
$$;
