-- Asked by a person. A finished job is never revived: retrying makes a new one that says so, so
-- history stays what happened and the new one has its own budget.
create or replace function penstock.retry_job(id uuid) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_old penstock.finished;
  v_new record;
begin
  -- A job that backs off, or was delayed, runs now.
  update penstock.job j set run_at = penstock.clock(), updated_at = penstock.clock(),
    version = version + 1, failure_pending = false, deferred_probe = false,
    provisional_at = null,
    -- One that was delayed by days has the rank of that day.
    rank = least(j.rank,
      penstock._rank(q.ordering, j.priority, q.aging_step, penstock.clock(), 0))
  from penstock.queue q
  where j.id = retry_job.id and q.id = j.queue_id
    and j.status = 'scheduled'; -- guard: scheduled
  if found then
    perform penstock.stage_due_jobs(j.queue_id, 1, j.id)
    from penstock.job j where j.id = retry_job.id;
    return penstock.read_job(retry_job.id) || '{"deduplicated": false}';
  end if;

  -- Locked: of two clicks the second sees what the first has made.
  select * into v_old from penstock.finished f
  where f.id = retry_job.id for no key update; -- guard: one click
  if not found then
    if exists (select from penstock.job j where j.id = retry_job.id) then
      perform penstock._refuse(409, 'job_not_finished',
        'the job has not finished; only a finished or scheduled one can be retried', 'id');
    end if;
    perform penstock._refuse_unknown_job(retry_job.id);
  end if;
  if exists (select from penstock.job j where j.id = v_old.retried_by) -- guard: once
  then
    return penstock.read_job(v_old.retried_by) || '{"deduplicated": true}';
  end if;
  select s.id, s.deduplicated into v_new
  from penstock.submit_many(
    array[(select k.name from penstock.kind k where k.id = v_old.kind_id)],
    array[v_old.payload],
    array[(select a.name from penstock.account a where a.id = v_old.account_id)],
    array[v_old.dedupe_key], array[v_old.topic],
    case when v_old.priority_given then array[v_old.priority] end,
    p_max_attempts => array[v_old.max_attempts], p_timeouts => array[v_old.timeout],
    p_metadata => array[v_old.metadata],
    -- At the price it had: a share of a request, or what its caller said, is in no declaration.
    p_prices => array[v_old.reserved],
    p_retry_of => v_old.id,
    -- Who wanted to be told of the old one's end is told of the new one's.
    p_webhook_urls => array[(
      select d.url from penstock.delivery d where d.job_id = v_old.id and not d.trusted limit 1
    )]) s;
  if not v_new.deduplicated then -- guard: its own
    update penstock.finished f set retried_by = v_new.id
    where f.class = v_old.class and f.id = v_old.id;
  end if;
  return penstock.read_job(v_new.id) || jsonb_build_object('deduplicated', v_new.deduplicated);
end
$$;
