-- Queues that no worker stands by: calls of /v1/queues/{name}/process run their jobs, each for a
-- bounded time, one at a time, and each starts the next while work is due. Nothing here is needed
-- for safety: a call that dies is a worker that dies. A lost chain is begun again by the next
-- submit, by any call, and by every server that stands (due_drives).

-- Makes this session the one that drives the queue, until it ends or lets go; false: another is.
create or replace function penstock.begin_drive(p_queue text) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_try_advisory_lock(1886413178, (penstock._find_queue(p_queue)).id) $$;

create or replace function penstock.end_drive(p_queue text) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select pg_advisory_unlock(1886413178, (penstock._find_queue(p_queue)).id) $$;

-- paused: by an operator. held: a call could start nothing before somebody else acts: an operator,
-- or functions outside that have all the slots, whose callbacks begin a new call.
create or replace function penstock._drive_stops(
  p_queue penstock.queue, out paused boolean, out held boolean
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select p.paused, p.paused or (
    c.state = 'closed'
    -- What has started has a deadline, and an index of its own.
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

-- What is left to do. due: jobs that wait for a start. soon_seconds: until the next job that waits
-- for its time is due. p_kinds: of these kinds only, which the caller has handlers for.
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

-- How long starts of each kind of the queue may take: nine of ten of the newest took less. Null
-- where none has ended yet; its time-out is beside it.
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

-- The kind of the job that starts next: of the smallest rank, in no lane or in an open one, among
-- p_kinds, which the caller has handlers for.
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

-- Driven queues with work that could start now, and that nobody drives. p_kinds: see drive_state.
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
    -- Not drive_state, which counts them all: every server asks every few seconds.
    and not (select s.held from penstock._drive_stops(q) s)
  order by q.name
$$;

-- Whether somebody has to be told that one of these kinds has work: the driven queues among theirs.
create or replace function penstock.driven_queues(p_kinds text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select distinct q.name from penstock.kind k join penstock.queue q on q.id = k.queue_id
  where q.drive = 'http' and (p_kinds is null or k.name = any (p_kinds))
$$;
