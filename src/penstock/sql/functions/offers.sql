-- Workers that run nothing offer to start the next job. A submit that finds nobody before its own
-- job takes such an offer (submit_plain.sql), and the job is born running: one commit instead of
-- two, and nobody has to come and ask for it.
--
-- One offer per worker, whatever its queues: what it gets next may keep it busy. For the same
-- reason a claim that starts something for a worker takes its offer back in the same transaction.
--
-- The worker hears of its start on a channel of its own, payload and all: the channel's name is a
-- secret, since whoever may connect may listen. (Who reads the statements of others, in the
-- server's log or as pg_monitor, can learn it.) What it did not hear of is told with its next
-- offer, a poll interval later; until then it is a start like any other, with lease and fence.

-- The worker would start one job of these queues now, and hears of it on the channel; null: it
-- takes its offer back. Answers the start that it got for its last one and that still runs, since
-- it may not have heard of it: then there is no new offer. Or false: a submit is taking it now, and
-- it stays as it is.
create or replace function penstock.offer_start(
  p_worker bigint, p_queues text[], p_channel text
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := penstock.clock();
  v_queues integer[] := array(
    select q.id from penstock.queue q where q.name = any (p_queues));
  v_given uuid;
  v_start jsonb;
begin
  -- Not waited for: that submit may wait for its disk.
  select o.job_id into v_given from penstock.offer o
  where o.worker_id = p_worker for update skip locked;
  if not found then
    if exists (select from penstock.offer o where o.worker_id = p_worker) then
      return to_jsonb(false);
    end if;
    insert into penstock.offer (worker_id, queue_ids, channel, offered_at)
    select p_worker, v_queues, p_channel, v_now
    where p_channel is not null
    on conflict do nothing;
    return null;
  end if;
  select penstock._start_json(j.worker_id, j.id, j.attempt, k.name, j.topic, j.payload, j.metadata,
    j.max_attempts, j.started_at, j.timeout_at, j.deadline_at)
  into v_start
  from penstock.job j join penstock.kind k on k.id = j.kind_id
  where j.id = v_given and j.status = 'running'
    and j.attempt = 1 and j.worker_id = p_worker; -- guard: the start
  if v_start is not null then
    return v_start; -- guard: no other => null;
  end if;
  if p_channel is null then
    delete from penstock.offer o where o.worker_id = p_worker;
  else
    update penstock.offer o set job_id = null, channel = p_channel, offered_at = v_now,
      queue_ids = v_queues
    where o.worker_id = p_worker;
  end if;
  return null;
end
$$;

-- A start as its worker hears of it.
create or replace function penstock._start_json(
  p_worker bigint, p_job uuid, p_attempt integer, p_kind text, p_topic text, p_payload jsonb,
  p_metadata jsonb, p_max_attempts integer, p_started_at timestamptz, p_timeout_at timestamptz,
  p_deadline_at timestamptz
) returns jsonb
language sql stable
as $$
  select jsonb_build_object('worker', p_worker, 'id', p_job, 'attempt', p_attempt, 'kind', p_kind,
    'topic', p_topic, 'payload', p_payload, 'metadata', p_metadata,
    'max_attempts', p_max_attempts, 'started_at', p_started_at, 'timeout_at', p_timeout_at,
    'deadline_at', p_deadline_at)
$$;
