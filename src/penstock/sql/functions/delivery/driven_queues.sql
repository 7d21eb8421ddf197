-- Run driven queues, which have no standing worker: calls of /v1/queues/{name}/process run their
-- jobs. Each call runs for a bounded time, one call at a time, and starts the next call while jobs
-- are due. Nothing here is needed for safety: a call that dies is like a worker that dies. If the
-- chain of calls breaks, the next submit, any call, and every running server starts it again
-- (due_drives).

-- Makes this session the one that drives the queue, until the session ends or calls end_drive;
-- false: another session drives it.
create or replace function penstock.begin_drive(p_queue text) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_try_advisory_lock(1886413178, (penstock._find_queue(p_queue)).id) $$;

create or replace function penstock.end_drive(p_queue text) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_advisory_unlock(1886413178, (penstock._find_queue(p_queue)).id) $$;

-- paused: by an operator. held: a call could start no job before somebody else acts: an operator,
-- or outside functions that have all the slots, whose callbacks start a new call.
create or replace function penstock._drive_stops(
  p_queue penstock.queue, out paused boolean, out held boolean
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p.paused, p.paused or (
    c.state = 'closed'
    -- Started jobs have a deadline, and an index of their own.
    and exists (
      select from penstock.job j
      where j.deadline_at is not null and j.queue_id = p_queue.id and j.status = 'awaiting')
    and not exists (
      select from penstock.job j
      where j.deadline_at is not null and j.queue_id = p_queue.id and j.status = 'running')
    and not exists (
      select from penstock.gate g where g.queue_id = p_queue.id
        and p_queue.rate_count is not null and g.rate_next_at > penstock.clock()))
  from penstock.circuit c
  cross join lateral penstock._stop_word(
    p_queue.paused_at is not null, true, true, c.state, c.class) s (word)
  cross join lateral (select s.word is not distinct from 'paused' as paused) p
  where c.queue_id = p_queue.id
$$;

-- The work that a driven queue has. due: jobs that may start. soon_seconds: until the next
-- scheduled job is due. p_kinds: only these kinds, which the caller has handlers for.
create or replace function penstock.drive_state(
  p_queue text, p_kinds text[] default null, out due bigint, out paused boolean, out held boolean,
  out soon_seconds double precision
)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select (
      select count(*) from penstock.job j
      where j.queue_id = q.id and j.kind_id = any (k.ids) and j.status = 'queued'
    ) + (
      select count(*) from penstock.job j
      where j.queue_id = q.id and j.kind_id = any (k.ids) and j.status = 'scheduled'
        and j.run_at <= penstock.clock() and not j.failure_pending),
    s.paused, s.held, (
      select date_part('epoch', min(j.run_at) - penstock.clock()) from penstock.job j
      where j.queue_id = q.id and j.kind_id = any (k.ids) and j.status = 'scheduled'
        and j.run_at > penstock.clock() and not j.failure_pending)
  from penstock._find_queue(p_queue) q
  cross join lateral penstock._kinds_named(q.id, p_kinds) k (ids)
  cross join lateral penstock._drive_stops(q) s
$$;

-- How long an attempt of each kind of the queue may take: nine of ten of the newest took less. Null
-- if none has finished yet. With the timeout of the kind.
create or replace function penstock.expected_seconds(p_queue text)
returns table (kind text, seconds double precision, timeout_seconds double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  with newest as materialized (
    select f.kind_id, f.status, f.finished_by_attempt, f.started_at, f.finished_at
    from penstock.finished f order by f.id desc limit 1000
  ),
  taken as (
    select n.kind_id, percentile_cont(0.9) within group (
      order by greatest(0, date_part('epoch', n.finished_at - n.started_at))) as seconds
    from newest n where n.finished_by_attempt and n.status <> 'cancelled'
    group by n.kind_id
  )
  select k.name, coalesce(t.seconds, p.seconds),
    date_part('epoch', coalesce(k.timeout, q.timeout))
  from penstock.queue q join penstock.kind k on k.queue_id = q.id
  left join taken t on t.kind_id = k.id
  left join penstock.pace p on p.kind_id = k.id
  where q.name = p_queue
$$;

-- Kinds of the queue among these names; null: all of them.
create or replace function penstock._kinds_named(p_queue integer, p_kinds text[])
returns integer[]
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(k.id), '{}')
  from penstock.queue_kind qk join penstock.kind k on k.id = qk.kind_id
  where qk.queue_id = p_queue and (p_kinds is null or k.name = any (p_kinds))
$$;

-- The kind of the job that starts next: the job of the smallest rank, in no lane or in an open one,
-- among p_kinds, which the caller has handlers for.
create or replace function penstock.next_kind(p_queue text, p_kinds text[] default null)
returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select n.name
  from penstock.queue q
  cross join lateral unnest(penstock._kinds_named(q.id, p_kinds)) m (id)
  join penstock.kind n on n.id = m.id
  cross join lateral (
    (select j.rank as tag, 0 as account_id, j.rank from penstock.job j
     where j.queue_id = q.id and j.kind_id = m.id and j.lane = -1 and j.status = 'queued'
     order by j.rank limit 1)
    union all
    (select case when q.ordering = 'fair' then l.head else j.rank end, l.account_id, j.rank
     from (
       select o.account_id, o.head from penstock.lane o
       where o.queue_id = q.id and o.kind_id = m.id and o.open and o.waiting > 0
       order by o.head limit 1
     ) l
     cross join lateral (
       select w.rank from penstock.job w
       where w.queue_id = q.id and w.kind_id = m.id and w.lane = l.account_id
         and w.status = 'queued'
       order by w.rank limit 1
     ) j)
  ) f
  where q.name = p_queue
  order by f.tag, f.account_id, f.rank limit 1
$$;

-- Driven queues with jobs that could start now, and that no session drives. p_kinds: see
-- drive_state.
create or replace function penstock.due_drives(p_kinds text[] default null) returns setof text
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select q.name
  from penstock.queue q
  cross join lateral penstock._kinds_named(q.id, p_kinds) k (ids)
  where q.drive = 'http'
    and not exists (
      select from pg_locks l
      where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
        and l.classid = 1886413178 and l.objid = q.id)
    and (
      exists (
        select from penstock.job j
        where j.queue_id = q.id and j.kind_id = any (k.ids) and j.status = 'queued')
      or exists (
        select from penstock.job j where j.queue_id = q.id and j.kind_id = any (k.ids)
          and j.status = 'scheduled' and j.run_at <= penstock.clock() and not j.failure_pending))
    -- Not drive_state, which counts all jobs: every server calls this every few seconds.
    and not (select s.held from penstock._drive_stops(q) s)
  order by q.name
$$;

-- The driven queues of these kinds, which have to be called when one of the kinds has work.
create or replace function penstock.driven_queues(p_kinds text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select distinct q.name from penstock.kind k join penstock.queue q on q.id = k.queue_id
  where q.drive = 'http' and (p_kinds is null or k.name = any (p_kinds))
$$;
