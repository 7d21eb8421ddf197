-- Lists and totals: jobs newest first, queues, workers, how things stand. Nothing here decides
-- anything, and nothing here counts history beyond a bound, except what failed today.

-- Where a filter names a queue or kind that is not there, somebody mistyped it: an empty list
-- would tell them that all is well.
create or replace function penstock._find_kind(p_name text) returns penstock.kind
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_kind penstock.kind;
begin
  select * into v_kind from penstock.kind where name = p_name;
  if not found then
    perform penstock._refuse(404, 'unknown_kind', format('there is no job kind %s', p_name), 'kind',
      jsonb_build_object('kind', p_name));
  end if;
  return v_kind;
end
$$;

create or replace function penstock._find_status(p_name text) returns penstock.job_status
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_name <> all (enum_range(null::penstock.job_status)::text[]) then
    perform penstock._refuse(422, 'invalid_filter', format('status must be one of %s, not %s',
      array_to_string(enum_range(null::penstock.job_status), ', '), quote_literal(p_name)),
      'status');
  end if;
  return p_name;
end
$$;

-- Jobs, live and finished, newest first, in a short form: what a table shows. The next page begins
-- before the last id of this one. Two scans in the order of ids, each with the limit: it costs what
-- it looks at, however long history is. Planned anew for each call, so that a filter that is not
-- given costs nothing and one that is finds its index.
create or replace function penstock.list_jobs(
  p_status text default null, p_kind text default null, p_queue text default null,
  p_account text default null, p_topic text default null, p_limit integer default 50,
  p_before uuid default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_status penstock.job_status := penstock._find_status(p_status);
  v_kind integer;
  v_queue integer;
  v_account bigint;
  v_started boolean := coalesce(v_status in ('running', 'awaiting'), false);
  v_live boolean := coalesce(v_status not in ('succeeded', 'failed', 'cancelled'), true);
  v_finished boolean := coalesce(v_status in ('succeeded', 'failed', 'cancelled'), true);
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform penstock._refuse(422, 'invalid_filter', 'limit must be 1 to 1000', 'limit');
  end if;
  if p_kind is not null then
    v_kind := (penstock._find_kind(p_kind)).id;
  end if;
  if p_queue is not null then
    v_queue := (penstock._find_queue(p_queue)).id;
  end if;
  if p_account is not null then
    select a.id into v_account from penstock.account a where a.name = p_account;
    if not found then
      return; -- an account is made by its first job
    end if;
  end if;
  return query
  select r
  from penstock._job_rows(array(
    select s.id from (
      (select j.id from penstock.job j
       where v_live
         and (p_before is null or j.id < p_before)
         and (v_status is null or j.status = v_status)
         -- Implied by the status; written out, it leads to the index of what has started.
         and (not v_started or j.deadline_at is not null)
         and (v_kind is null or j.kind_id = v_kind)
         and (v_queue is null or j.queue_id = v_queue)
         and (v_account is null or j.account_id = v_account)
         and (p_topic is null or j.topic = p_topic)
       order by j.id desc limit p_limit)
      union all
      (select f.id from penstock.finished f
       where v_finished
         and (p_before is null or f.id < p_before)
         and (v_status is null or f.status = v_status)
         and (v_kind is null or f.kind_id = v_kind)
         and (v_queue is null or f.queue_id = v_queue)
         and (v_account is null or f.account_id = v_account)
         and (p_topic is null or f.topic = p_topic)
       order by f.id desc limit p_limit)
    ) s
    order by s.id desc limit p_limit)) r;
end
$$;

-- Every queue, or the one that is named, with what is in force and what waits in it.
create or replace function penstock.list_queues(p_queue text default null) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if p_queue is not null then
    perform penstock._find_queue(p_queue);
  end if;
  return query
  select jsonb_build_object('name', q.name, 'concurrency', q.concurrency,
    'rate', (q.declared || q.overrides) -> 'rate', 'order', q.ordering,
    'timeout_seconds', extract(epoch from q.timeout), 'attempts', q.max_attempts,
    'paused', s.paused, 'paused_at', penstock._rfc3339(q.paused_at),
    'paused_reason', q.paused_reason,
    'circuit', jsonb_build_object('state', c.state, 'class', c.class,
      'since', case when c.state <> 'closed' then penstock._rfc3339(c.changed_at) end,
      'next_probe_at', case when c.state = 'open' then penstock._rfc3339(c.next_at) end,
      'failed_probes', c.tries, 'allowed', c.allowed,
      'refused', round(c.refused::numeric, 2),
      'message', case when c.state <> 'closed'
        then penstock._circuit_sentence(q.name, c, q.concurrency) end),
    'scheduled', s.scheduled, 'queued', s.queued,
    'running', s.running, 'awaiting', s.awaiting,
    'oldest_queued_at', penstock._rfc3339(s.oldest_queued_at), 'overrides', q.overrides,
    'declared_by', q.declared_by, 'drive', q.drive,
    'workers', (
      select count(*) from penstock._live_workers(penstock.clock()) w
      where w.queues is null or q.name = any (w.queues)))
  from penstock.queue q join penstock.queue_stats s on s.queue = q.name
  join penstock.circuit c on c.queue_id = q.id
  where p_queue is null or q.name = p_queue
  order by q.name;
end
$$;

-- Workers that are there, or were lost in the last day; those alive first.
create or replace function penstock.list_workers() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('worker_id', s.name, 'alive', s.alive, 'running', s.running,
    'started_at', penstock._rfc3339(s.started_at),
    'last_heartbeat', penstock._rfc3339(s.beat_at), 'lost_at', penstock._rfc3339(s.lost_at),
    'blocked_since', penstock._rfc3339((
      select b.began_at from penstock._blocked_loops(penstock.clock()) b
      where b.worker_id = s.id)))
  from (
    select w.*, w.lost_at is null and w.beat_at + w.lease >= penstock.clock() as alive,
      (select count(*) from penstock.job j
       where j.deadline_at is not null and j.worker_id = w.id) as running
    from penstock.worker w
    where w.stopped_at is null
      and (w.lost_at is null or w.lost_at > penstock.clock() - interval '1 day')
  ) s
  order by s.alive desc, s.name, s.started_at
$$;

-- How things stand. The averages are of what succeeded among the last 1,000 ended jobs: enough to
-- mean something, and few enough to be read every second. Today began at midnight UTC.
create or replace function penstock.read_status() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  with queues as materialized (select q as queue from penstock.list_queues() q),
  recent as materialized (
    select f.status, f.created_at, f.started_at, f.finished_at
    from penstock.finished f order by f.id desc limit 1000
  )
  select jsonb_build_object(
    'pending', coalesce(sum((queue ->> 'queued')::bigint), 0),
    'scheduled', coalesce(sum((queue ->> 'scheduled')::bigint), 0),
    'processing',
      coalesce(sum((queue ->> 'running')::bigint + (queue ->> 'awaiting')::bigint), 0),
    'failed_today', (
      select count(*) from penstock.finished f
      where f.status = 'failed'
        and f.finished_at >= date_trunc('day', penstock.clock(), 'UTC')),
    'avg_processing_seconds', (
      select round(avg(extract(epoch from r.finished_at - r.started_at)), 3)
      from recent r where r.status = 'succeeded'),
    'avg_turnaround_seconds', (
      select round(avg(extract(epoch from r.finished_at - r.created_at)), 3)
      from recent r where r.status = 'succeeded'),
    'queues', coalesce(jsonb_agg(queue), '[]'),
    'workers', (select coalesce(jsonb_agg(w), '[]') from penstock.list_workers() w),
    'alerts', (select coalesce(jsonb_agg(a), '[]') from penstock.list_alerts() a))
  from queues
$$;

-- For how long the partitions of history are made; later rows would go to the default ones.
create or replace function penstock.partitions_ahead() returns interval
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    to_timestamp(min(('x' || left(replace(s.high, '-', ''), 12))::bit(48)::bigint) / 1000.0)
      - penstock.clock(), interval '0')
  from (
    select max(r.high::text) as high
    from pg_partitioned_table p join pg_class c on c.oid = p.partrelid
    cross join lateral penstock._ranges(c.relname) r
    where p.partstrat = 'r' and c.relnamespace = 'penstock'::regnamespace
    group by c.oid
  ) s
$$;
