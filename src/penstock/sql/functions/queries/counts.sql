-- The number of live jobs by queue and status, as fast with a million jobs as with ten. Started
-- jobs are counted by their small index. Waiting jobs are counted up to a bound per queue; beyond
-- it they are estimated and marked as an estimate: by the snapshots that upkeep takes of deep
-- queues, or else from a sample of the table's pages.

-- The largest number of started jobs that are read.
create or replace function penstock._counted_attempts() returns integer
language sql immutable parallel safe
as $$ select 20000 $$;

-- The share of a table, in per cent, that has p_pages pages; 100 for a small table.
create or replace function penstock._share_of_pages(p_table regclass, p_pages integer)
returns double precision
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select least(100, 100.0 * p_pages * current_setting('block_size')::integer
    / greatest(1, pg_relation_size(p_table)))
$$;

-- The number of waiting jobs of each queue, up to p_most + 1 of each status. due: scheduled jobs
-- that are due, which the next claim would queue. oldest_at: since when the oldest has been due.
-- free: whether any may start by the limits of the accounts. handled: a live worker has a handler
-- for some. The oldest is searched for among the jobs next to start and among the oldest live jobs:
-- in a deep queue, one in a closed lane may be missed.
create or replace function penstock._count_waiting(p_most integer, p_now timestamptz)
returns table (
  queue_id integer, queued bigint, scheduled bigint, due bigint, oldest_at timestamptz,
  free boolean, handled boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set jit = off
as $$
#variable_conflict use_column
begin
  return query
  with old as materialized (
    select o.queue_id, min(o.run_at) as at
    from (
      select j.queue_id, j.run_at, j.status from penstock.job j order by j.id limit 1000
    ) o
    where o.status = 'queued'
    group by o.queue_id
  )
  select q.id, w.n, s.n, d.n, least(h.at, l.at, d.at, o.at),
    h.plain or l.at is not null or d.n > 0, h.handled or d.n > 0
  from penstock.queue q
  cross join lateral penstock._served_kinds(q.id, p_now) v (kinds)
  cross join lateral (
    -- From the end: at the beginning of the index are the dead entries of the latest claims.
    select count(*) as n from (
      select from penstock.job j where j.queue_id = q.id and j.status = 'queued'
      order by j.kind_id desc, j.lane desc, j.rank desc limit p_most + 1
    ) c
  ) w
  cross join lateral (
    select count(*) as n from (
      select from penstock.job j where j.queue_id = q.id and j.status = 'scheduled'
      order by j.run_at desc limit p_most + 1
    ) c
  ) s
  cross join lateral (
    select count(*) as n, min(f.run_at) as at from (
      select j.run_at, j.failure_pending from penstock.job j
      where j.queue_id = q.id and j.status = 'scheduled' and j.run_at <= p_now
      order by j.run_at limit p_most + 1
    ) f
    where not f.failure_pending
  ) d
  cross join lateral (
    select min(f.run_at) as at, coalesce(bool_or(k.served), false) as handled,
      coalesce(bool_or(f.lane = -1 and k.kind_id = any (v.kinds)), false) as plain
    from (
      select s.kind_id, s.served, count(*) over () as n
      from penstock._kinds_of_queue(q.id, p_now) s
    ) k
    cross join lateral (
      select j.run_at, j.lane from penstock.job j
      where j.queue_id = q.id and j.kind_id = k.kind_id and j.status = 'queued'
      order by j.lane, j.rank limit 1 + 100 / k.n
    ) f
  ) h
  cross join lateral (
    select min(f.run_at) as at
    from unnest(v.kinds) k (id)
    cross join lateral (
      select l.account_id from penstock.lane l
      where l.queue_id = q.id and l.kind_id = k.id and l.open and l.waiting > 0
      order by l.head limit 1 + 20 / cardinality(v.kinds)
    ) a
    cross join lateral (
      select j.run_at from penstock.job j
      where j.queue_id = q.id and j.kind_id = k.id and j.lane = a.account_id
        and j.status = 'queued'
      order by j.rank limit 1
    ) f
  ) l
  left join old o on o.queue_id = q.id;
end
$$;

-- Queued jobs of deep queues by the measurements of upkeep in the last minute: slices of jobs that
-- may start, and the waiting jobs of closed lanes. In a fair queue every job is in a lane. If there
-- are very many lanes, a sample of pages is read: 200,000 took 34 ms (2026-11).
create or replace function penstock._queued_by_snapshot(p_now timestamptz)
returns table (queue_id integer, jobs bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_percent double precision := penstock._share_of_pages('penstock.lane', 300);
begin
  return query
  with laned as materialized (
    select l.queue_id, round(sum(l.waiting) * 100 / v_percent)::bigint as jobs,
      round(coalesce(sum(l.waiting) filter (where not l.open), 0) * 100 / v_percent)::bigint
        as closed
    from penstock.lane l tablesample system (v_percent) repeatable (1)
    where l.waiting > 0 group by l.queue_id
  )
  select q.id, case when q.ordering = 'fair' then l.jobs
    else cardinality(s.ranks) * penstock._slice_size() + coalesce(l.closed, 0) end
  from penstock.queue q
  left join penstock.snapshot s on s.queue_id = q.id and s.lane = -2
  left join laned l on l.queue_id = q.id
  where case when q.ordering = 'fair' then l.jobs > 0 else s.ranks is not null
    and exists (select from penstock.measured m where m.at > p_now - interval '1 minute') end;
end
$$;

-- Live jobs by queue and status, from a thousand pages of the table, about 30 jobs each, in 10 ms
-- (2026-11): the same pages each time, so that an estimate does not jump while nothing changes.
-- If jobs of small queues are stored together, as after bulk submits, it is off by a quarter.
create or replace function penstock._sample_live()
returns table (queue_id integer, status text, jobs bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_percent double precision := penstock._share_of_pages('penstock.job', 1000);
begin
  return query
  select j.queue_id, j.status::text, round(count(*) * 100 / v_percent)::bigint
  from penstock.job j tablesample system (v_percent) repeatable (1)
  group by j.queue_id, j.status;
end
$$;

-- Started jobs, and how many of them are stale; at most _counted_attempts() + 1 are read.
create or replace function penstock._count_attempts(p_now timestamptz)
returns table (queue_id integer, status text, worker_id bigint, jobs bigint, stale bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select s.queue_id, s.status::text, s.worker_id, count(*),
    count(*) filter (where p_now - s.sign_at >= q.stale_after)
  from (
    select j.queue_id, j.status, j.worker_id, coalesce(j.progressed_at, j.started_at) as sign_at
    from penstock.job j where j.deadline_at is not null limit penstock._counted_attempts() + 1
  ) s
  join penstock.queue q on q.id = s.queue_id
  group by s.queue_id, s.status, s.worker_id;
end
$$;

-- Every queue with its waiting jobs and why they wait; workers; stuck jobs. `jobs` has no entry for
-- a status without jobs; `about` names the statuses whose number is an estimate. p_counted: how
-- many jobs of each status are counted in all queues together, but up to a thousand in each.
create or replace function penstock._overview_live(p_counted integer, p_now timestamptz)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_most integer := greatest(least(1000, p_counted),
    p_counted / greatest(1, (select count(*) from penstock.queue))::integer);
begin
  return (
    with waiting as materialized (select * from penstock._count_waiting(v_most, p_now)),
    started as materialized (select * from penstock._count_attempts(p_now)),
    bound as materialized (
      select coalesce(sum(s.jobs), 0) > penstock._counted_attempts() as passed from started s
    ),
    counted as materialized (
      select w.queue_id, 'queued' as status, w.queued as jobs, w.queued > v_most as about
      from waiting w where w.queued > 0
      union all
      select w.queue_id, 'scheduled', w.scheduled, w.scheduled > v_most
      from waiting w where w.scheduled > 0
      union all
      select s.queue_id, s.status, sum(s.jobs), b.passed
      from started s cross join bound b group by s.queue_id, s.status, b.passed
      union all
      -- The jobs that were not read may be in any queue.
      select q.id, t.status, 0, true
      from bound b cross join penstock.queue q
      cross join (values ('running'), ('awaiting')) t (status)
      where b.passed and not exists (
        select from started s where s.queue_id = q.id and s.status = t.status)
    ),
    sliced as materialized (
      select s.queue_id, 'queued' as status, s.jobs from penstock._queued_by_snapshot(p_now) s
      where exists (select from counted c where c.about and c.status = 'queued')
    ),
    unknown as materialized (
      select c.queue_id, c.status from counted c where c.about
      except
      select s.queue_id, s.status from sliced s
    ),
    estimate as materialized (
      select s.queue_id, s.status, s.jobs from sliced s
      union all
      select u.queue_id, u.status, s.jobs
      from unknown u
      join penstock._sample_live() s on s.queue_id = u.queue_id and s.status = u.status
      where exists (select from unknown) -- otherwise a sample is taken for nothing
    ),
    known as (
      select c.queue_id, jsonb_object_agg(c.status,
          case when c.about then greatest(c.jobs, s.jobs) else c.jobs end) as jobs,
        coalesce(jsonb_agg(c.status) filter (where c.about), '[]') as about
      from counted c
      left join estimate s on s.queue_id = c.queue_id and s.status = c.status
      where c.jobs > 0 or s.jobs > 0
      group by c.queue_id
    )
    select jsonb_build_object(
      'queues', (
        select coalesce(jsonb_agg(jsonb_build_object('id', q.id, 'name', q.name,
          'limit', q.concurrency, 'rate', (q.declared || q.overrides) -> 'rate',
          'drive', q.drive, 'served', v.alive, 'jobs', coalesce(k.jobs, '{}'),
          'about', coalesce(k.about, '[]'),
          'due', w.due, 'oldest_at', penstock._rfc3339(w.oldest_at),
          'paused_at', penstock._rfc3339(q.paused_at), 'paused_reason', q.paused_reason,
          'circuit', jsonb_build_object('state', c.state, 'class', c.class, 'address', c.address,
            'since', case when c.state <> 'closed' then penstock._rfc3339(c.changed_at) end,
            'next_at', case when c.state = 'open' then penstock._rfc3339(c.next_at) end,
            'allowed', c.allowed, 'refused', round(c.refused::numeric, 2),
            'refused_words', penstock._share_text(c.refused)),
          -- The values of waiting_for.sql, and `ramping`: the provider is available again, and jobs
          -- start in growing numbers.
          'waiting_for', case when w.queued > 0 or w.due > 0 then coalesce(
            penstock._waiting_for(penstock._stop_word(q.paused_at is not null,
              v.alive or q.drive <> 'worker', w.handled or q.drive <> 'worker', c.state, c.class),
              q, g, null, null, 0, p_now),
            case
              when c.state = 'ramping' and (k.jobs ->> 'running')::bigint >= c.allowed
                then 'ramping'
              when not w.free then 'account_limit' end) end) order by q.name), '[]')
        from penstock.queue q join waiting w on w.queue_id = q.id
        cross join lateral penstock._service(q.name, null, p_now) v
        join penstock.gate g on g.queue_id = q.id join penstock.circuit c on c.queue_id = q.id
        left join known k on k.queue_id = q.id),
      'workers', (select coalesce(jsonb_agg(w), '[]') from penstock.list_workers() w),
      'blocked', (
        select coalesce(jsonb_agg(b), '[]') from penstock.list_blocked_loops(5, '1 hour') b),
      'unhandled', (
        select coalesce(jsonb_agg(u), '[]') from penstock.list_unhandled() u),
      'stale', (select coalesce(sum(s.stale), 0) from started s)));
end
$$;
