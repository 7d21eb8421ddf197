-- Submits one job that names no account, no dedupe key and no price, if it is plain (insert.sql)
-- and its values are in order; _submit_jobs would take twice as long. Otherwise id stays null, and
-- _submit_jobs accepts the job or says what is wrong. is_known: whether place, eta_seconds and
-- waiting_for are known, too.
create or replace function penstock._submit_plain(
  p_job penstock.new_job, out id uuid, out status penstock.job_status, out place bigint,
  out eta_seconds double precision, out waiting_for text, out is_known boolean
)
language plpgsql set search_path = pg_catalog, pg_temp
  -- Planned anew, each of its statements would take longer than all of them.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_row record; -- read by one statement, since each one takes about 5 us
  v_kind penstock.kind;
  v_queue penstock.queue;
  v_setting penstock.setting;
  v_rank bigint;
  v_alive boolean;
  v_handled boolean;
begin
  select k as kind, q as queue, s as setting into v_row
  from penstock.kind k join penstock.queue q on q.id = k.queue_id cross join penstock.setting s
  where k.name = p_job.kind and penstock._is_plain(k, q);
  if not found then
    return;
  end if;
  v_kind := v_row.kind;
  v_queue := v_row.queue;
  v_setting := v_row.setting;
  perform penstock._share_queue_lock(1886413172, v_kind.queue_id); -- guard: order locked
  -- Nothing can be wrong with a job that is only a small payload; the full check took a tenth of
  -- the whole (2026-11). The payload's text comes last: it may be far longer.
  if jsonb_typeof(p_job.payload) = 'object' -- guard: an object
    and (p_job.topic, p_job.priority, p_job.run_at, p_job.delay, p_job.max_attempts, p_job.timeout,
         p_job.expires, p_job.metadata, p_job.webhook_url) is null
    and v_kind.topic_field is null
    and pg_column_size(p_job.payload) <= 64
    and octet_length(p_job.payload::text) <= 2 * v_setting.payload_max_depth -- guard: short
  then
    null;
  elsif penstock._job_fault(p_job, v_kind, v_now, v_setting, false) is not null then
    return; -- guard: in order
  end if;
  select i.id, i.status, i.rank into id, status, v_rank
  from penstock._insert_jobs(penstock.new_id(v_now), v_now, array[p_job], array[p_job.kind],
    v_kind.queue_id) i;
  if id is null then
    return; -- its kind or queue has changed in this moment
  end if;
  if p_job.webhook_url is not null then
    insert into penstock.job_webhook (job_id, url) values (id, p_job.webhook_url);
  end if;
  -- The two common cases in few statements: an idle worker starts it at once, or there is none.
  select s.alive, s.handled into v_alive, v_handled
  from penstock._service(v_queue.name, v_kind.name, v_now) s;
  if status = 'queued' and not v_alive then
    select 1 + nullif(count(*), penstock._counted_at_submit() + 1) into place from (
      select from penstock.queue_kind k cross join lateral (
        select from penstock.job j
        where j.queue_id = v_queue.id and j.kind_id = k.kind_id and j.lane = -1
          and j.status = 'queued' and j.rank < v_rank
        order by j.rank limit penstock._counted_at_submit() + 1) o
      where k.queue_id = v_queue.id
      limit penstock._counted_at_submit() + 1) f;
    waiting_for := case when v_queue.paused_at is null then 'no_worker' else 'paused' end;
    is_known := not exists (select from penstock.lane l where l.queue_id = v_queue.id)
      and (place is not null
        or not exists (select from penstock.snapshot s where s.queue_id = v_queue.id));
  elsif status = 'queued' and v_handled
    and v_queue.concurrency is null and v_queue.rate_count is null
    and v_queue.paused_at is null
    and (select count(*) from (
           select from penstock.job j
           where j.queue_id = v_queue.id and j.status = 'queued'
           order by j.kind_id, j.lane, j.rank limit 2) f) = 1
    and exists (
      select from penstock.circuit c where c.queue_id = v_queue.id and c.state = 'closed')
  then
    place := 1;
    eta_seconds := 0;
    is_known := true;
  end if;
end
$$;
