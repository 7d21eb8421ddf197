-- Lists and totals: jobs newest first, queues, workers, the status of the system. Nothing here
-- decides anything, and only today's failures are counted in history without a bound.

-- Finds a kind by its name, or raises unknown_kind: a filter with an unknown name is a typing
-- error, and an empty list would suggest that all is well.
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

create or replace function penstock._check_limit(p_limit integer) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    perform penstock._refuse(422, 'invalid_filter', 'limit must be 1 to 1000', 'limit');
  end if;
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

-- Jobs, live and finished, newest first, in the short form that tables show. The next page begins
-- before the last id of this one. A page is full unless there are no more jobs.
create or replace function penstock.list_jobs(
  p_status text default null, p_kind text default null, p_queue text default null,
  p_account text default null, p_topic text default null, p_limit integer default 50,
  p_before uuid default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[] := '{}';
  v_page record;
begin
  perform penstock._check_limit(p_limit);
  loop
    v_page := penstock._page_ids(p_status, p_kind, p_queue, p_account, p_topic, null,
      p_limit - cardinality(v_ids), p_before);
    v_ids := v_ids || v_page.ids;
    exit when not v_page.seen;
    p_before := v_page.after;
  end loop;
  return query select r from penstock._job_rows(v_ids) r;
end
$$;

-- All queues, or the one with this name, with the options in force and the number of jobs.
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

-- Workers that are running, or were lost in the last day; those alive first.
create or replace function penstock.list_workers() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('worker_id', w.name, 'alive', s.alive,
    'running', coalesce(r.jobs, 0), 'started_at', penstock._rfc3339(w.started_at),
    'last_heartbeat', penstock._rfc3339(w.beat_at), 'lost_at', penstock._rfc3339(w.lost_at),
    'blocked_since', penstock._rfc3339((
      select b.began_at from penstock._blocked_loops(n.now) b where b.worker_id = w.id)))
  from (select penstock.clock() as now) n
  cross join penstock.worker w
  cross join lateral (select w.lost_at is null and w.beat_at + w.lease >= n.now as alive) s
  left join (
    select j.worker_id, count(*) as jobs from penstock.job j
    where j.deadline_at is not null group by j.worker_id
  ) r on r.worker_id = w.id
  where w.stopped_at is null and (w.lost_at is null or w.lost_at > n.now - interval '1 day')
  order by s.alive desc, w.name, w.started_at
$$;

-- The status of the system. The averages are of the succeeded jobs among the last 1,000 finished
-- ones: enough for a meaningful value, and few enough to be read every second. Today began at
-- midnight UTC.
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

-- How far ahead the partitions of history are made; rows of later times would go to the default
-- ones.
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
