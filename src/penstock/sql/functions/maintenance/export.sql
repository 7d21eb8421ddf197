-- Export live jobs from a schema that will be removed, and import them into a new one.

create or replace function penstock.export_jobs() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('kind', k.name, 'kind_declared', k.declared, 'queue', q.name,
    'queue_declared', q.declared, 'account', a.name, 'plan', a.plan, 'plan_declared', p.declared,
    'webhook_url', (select w.url from penstock.job_webhook w where w.job_id = j.id),
    'job', to_jsonb(j) - 'queue_id' - 'kind_id' - 'account_id' - 'worker_id')
  from penstock.job j
  join penstock.kind k on k.id = j.kind_id join penstock.queue q on q.id = j.queue_id
  join penstock.account a on a.id = j.account_id left join penstock.plan p on p.name = a.plan
  order by j.rank
$$;

-- Imports one exported job under its own id, waiting; a job that was running starts again. False if
-- the id exists already, so that a file can be imported twice.
create or replace function penstock.import_job(p_line jsonb) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_job penstock.job := jsonb_populate_record(null::penstock.job, p_line -> 'job');
  v_plan text := p_line ->> 'plan';
  v_account text := p_line ->> 'account';
  v_new uuid;
begin
  if penstock._status_of(v_job.id) is not null then
    return false;
  end if;
  perform penstock.declare_queue(p_line ->> 'queue', p_line -> 'queue_declared')
  where not exists (select from penstock.queue q where q.name = p_line ->> 'queue');
  perform penstock.declare_kind(p_line ->> 'kind', p_line ->> 'queue',
    (p_line -> 'kind_declared') - 'queue')
  where not exists (select from penstock.kind k where k.name = p_line ->> 'kind');
  perform penstock.declare_plan(v_plan, p_line -> 'plan_declared')
  where v_plan is not null
    and not exists (select from penstock.plan p where p.name = v_plan);
  perform penstock.create_account(v_account, v_plan)
  where v_account is not null
    and not exists (select from penstock.account a where a.name = v_account);
  select s.id into v_new
  from penstock.submit_many(array[p_line ->> 'kind'], array[v_job.payload], array[v_account],
    array[v_job.dedupe_key], array[v_job.topic], array[v_job.priority],
    case when v_job.status = 'scheduled' and v_job.run_at > penstock.clock()
      then array[v_job.run_at] end,
    p_max_attempts => array[v_job.max_attempts], p_timeouts => array[v_job.timeout],
    -- Without a price: the ledger that it was paid from is not in the file.
    p_metadata => array[v_job.metadata], p_prices => array[0],
    p_retry_of => v_job.retry_of, p_is_new => false) s
  where not s.deduplicated;
  if not found then
    return false;
  end if;
  -- The identity and the counters that it had before.
  update penstock.job j set id = v_job.id, failures = v_job.failures,
    deferrals = v_job.deferrals, crashes = v_job.crashes, losses = coalesce(v_job.losses, 0),
    created_at = v_job.created_at, expires_at = v_job.expires_at, error = v_job.error,
    priority_given = coalesce(v_job.priority_given, false),
    first_job = coalesce(v_job.first_job, false)
  where j.id = v_new;
  insert into penstock.job_webhook (job_id, url)
  select v_job.id, p_line ->> 'webhook_url' where p_line ->> 'webhook_url' is not null;
  return true;
end
$$;
