-- Submits one job that names no account, no dedupe key and no price, if it is plain (insert.sql)
-- and its values are valid; _submit_jobs would take twice as long. Otherwise id stays null, and
-- _submit_jobs accepts the job or says what is wrong. is_known: whether queue_position, eta_seconds
-- and waiting_for are known, too; without p_position they never are.
create or replace function penstock._submit_plain(
  p_job penstock.new_job, p_position boolean, out id uuid, out status penstock.job_status,
  out queue_position bigint, out eta_seconds double precision, out waiting_for text,
  out is_known boolean
)
language plpgsql set search_path = pg_catalog, pg_temp
  -- To plan its statements at each call would take longer than to run them.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := penstock.clock();
  v_plain record;
  v_rank bigint;
  v_queue record;
begin
  -- The insert checks the queue, too, which takes as long to read as the kind.
  select k.queue_id, k.topic_field, s.payload_max_depth into v_plain
  from penstock.kind k cross join penstock.setting s
  where k.name = p_job.kind and penstock._is_plain_kind(k);
  if not found then
    return;
  end if;
  perform penstock._share_queue_lock(1886413172, v_plain.queue_id); -- guard: order locked
  -- Nothing can be wrong with a job that is only a small payload; the full check took a tenth of
  -- the whole (2026-11). The payload's text comes last: it may be far longer.
  if jsonb_typeof(p_job.payload) = 'object' -- guard: an object
    and (p_job.topic, p_job.priority, p_job.run_at, p_job.delay, p_job.max_attempts, p_job.timeout,
         p_job.expires, p_job.metadata, p_job.webhook_url) is null
    and v_plain.topic_field is null
    and pg_column_size(p_job.payload) <= 64
    and octet_length(p_job.payload::text) <= 2 * v_plain.payload_max_depth -- guard: short
  then
    null;
  elsif exists (
    select from penstock._job_faults(array[p_job], v_now, false) f where f.fault is not null)
  then
    return; -- guard: in order
  end if;
  select i.id, i.status, i.rank into id, status, v_rank
  from penstock._insert_jobs(penstock.new_id(v_now), v_now, array[p_job], array[p_job.kind],
    v_plain.queue_id) i;
  if id is null then
    return; -- its queue is fair, or something has changed in this moment
  end if;
  if p_job.webhook_url is not null then
    insert into penstock.job_webhook (job_id, url) values (id, p_job.webhook_url);
  end if;
  if not p_position then
    return;
  end if;
  -- The two common cases in few statements: an idle worker starts it at once, or there is none.
  select s.alive, s.handled, q.paused_at is not null as paused,
    q.concurrency is not null or q.rate_count is not null as limited
  into v_queue
  from penstock.queue q cross join lateral penstock._service(q.name, p_job.kind, v_now) s
  where q.id = v_plain.queue_id;
  if status = 'queued' and not v_queue.alive then
    select 1 + nullif(count(*), penstock._counted_at_submit() + 1) into queue_position from (
      select from penstock.queue_kind k cross join lateral (
        select from penstock.job j
        where j.queue_id = v_plain.queue_id and j.kind_id = k.kind_id and j.lane = -1
          and j.status = 'queued' and j.rank < v_rank
        order by j.rank limit penstock._counted_at_submit() + 1) o
      where k.queue_id = v_plain.queue_id
      limit penstock._counted_at_submit() + 1) f;
    waiting_for := case when v_queue.paused then 'paused' else 'no_worker' end;
    is_known := not exists (select from penstock.lane l where l.queue_id = v_plain.queue_id)
      and (queue_position is not null
        or not exists (select from penstock.snapshot s where s.queue_id = v_plain.queue_id));
  elsif status = 'queued' and v_queue.handled
    and not v_queue.limited and not v_queue.paused
    and (select count(*) from (
           select from penstock.job j
           where j.queue_id = v_plain.queue_id and j.status = 'queued'
           order by j.kind_id, j.lane, j.rank limit 2) f) = 1
    and exists (
      select from penstock.circuit c where c.queue_id = v_plain.queue_id and c.state = 'closed')
  then
    queue_position := 1;
    eta_seconds := 0;
    is_known := true;
  end if;
end
$$;
