-- Retries a job because a person asks for it. A finished job is never started again: the retry is a
-- new job that refers to the old one (retry_of). So the history stays true and the new job has its
-- own budget of attempts.
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
    -- The rank of a job that was delayed by days is that of the later day.
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

  -- Locked, so that the second of two clicks sees the job that the first has submitted.
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
    -- At its old price: a share of a request, or a price that the caller gave, is in no
    -- declaration.
    p_prices => array[v_old.reserved],
    p_retry_of => v_old.id,
    -- The webhook of the old job also receives the outcome of the new one.
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
