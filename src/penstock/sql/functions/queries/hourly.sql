-- Count outcomes and durations of attempts and jobs by the hour. Upkeep adds them up from history,
-- so claims and finishes cost nothing more. There is one line per hour, queue, kind, outcome and
-- class, and one with the hour -infinity for the time since the beginning, for counters that may
-- never fall.
--
-- A finished job counts once (outcome: its status, with the time of its last attempt), and so does
-- each attempt that did not finish its job (outcome: retried, deferred, snoozed, released,
-- timed_out, lost, stuck). So a job's last attempt counts once, as the job.
--
-- Outcomes are added in consecutive windows: [counted_until, five seconds ago), at most to the end
-- of an hour. A commit that took longer is too late for its window; so each hour is counted again
-- ten minutes after its end.

-- The upper bounds of the histogram in milliseconds; the histogram's last value counts all.
create or replace function penstock._hour_bounds() returns bigint[]
language sql immutable parallel safe
as $$
  select '{100,300,1000,3000,10000,30000,60000,120000,300000,600000,1800000}'::bigint[]
$$;

-- The class of a failure; '' if there is none. An app's own class must have the form of a class.
create or replace function penstock._hour_class(p_error jsonb) returns text
language sql immutable parallel safe
as $$
  select case when p_error ->> 'class' ~ '^[a-z][a-z0-9_]{0,39}$' then p_error ->> 'class'
    when p_error ->> 'class' is not null then 'other' else '' end
$$;

-- Jobs and attempts that were settled in a period. Inlined, so that it is planned for that period:
-- it reads a few pages of history by the BRIN indexes.
create or replace function penstock._outcomes_between(p_from timestamptz, p_until timestamptz)
returns table (
  ended_at timestamptz, queue_id integer, kind_id integer, outcome text, class text, ms bigint
)
language sql stable
as $$
  select f.finished_at, f.queue_id, f.kind_id, f.status::text,
    -- The job waited a minute for its last failure to be final, and that attempt is already
    -- counted.
    case when not f.finished_by_attempt and f.error ->> 'reason' = 'attempts_exhausted' then ''
      else penstock._hour_class(f.error) end,
    case when f.finished_by_attempt
      then (extract(epoch from f.finished_at - f.started_at) * 1000)::bigint else 0 end
  from penstock.finished f
  where f.finished_at >= p_from and f.finished_at < p_until
  union all
  select t.ended_at, j.queue_id, j.kind_id, t.outcome, penstock._hour_class(t.error),
    (extract(epoch from t.ended_at - t.started_at) * 1000)::bigint
  from penstock.attempt t
  -- One by one, by their ids: a join would read the whole history.
  cross join lateral (
    select l.queue_id, l.kind_id from penstock.job l where l.id = t.job_id
    union all
    select d.queue_id, d.kind_id from penstock.finished d where d.id = t.job_id
    limit 1
  ) j
  where t.ended_at >= p_from and t.ended_at < p_until
$$;

-- The same, added up.
create or replace function penstock._count_outcomes(p_from timestamptz, p_until timestamptz)
returns setof penstock.hourly_bucket
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
  return query
  with slot as materialized (
    select date_trunc('hour', e.ended_at, 'UTC') as hour, e.queue_id, e.kind_id, e.outcome, e.class,
      width_bucket(e.ms - 1, penstock._hour_bounds()) as slot, count(*) as n, sum(e.ms) as ms
    from penstock._outcomes_between(p_from, p_until) e
    group by 1, 2, 3, 4, 5, 6
  ),
  upto as (
    select s.hour, s.queue_id, s.kind_id, s.outcome, s.class, b.i, sum(s.ms) as ms,
      coalesce(sum(s.n) filter (where s.slot < b.i), 0) as n
    from slot s cross join generate_series(1, cardinality(penstock._hour_bounds()) + 1) b (i)
    group by 1, 2, 3, 4, 5, 6
  )
  select u.hour, u.queue_id, u.kind_id, u.outcome, u.class, max(u.n)::bigint, max(u.ms)::bigint,
    array_agg(u.n::bigint order by u.i)
  from upto u
  group by 1, 2, 3, 4, 5;
end
$$;

create or replace function penstock._add_arrays(p_one bigint[], p_other bigint[], p_sign integer)
returns bigint[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
  select array_agg(coalesce(u.a, 0) + p_sign * coalesce(u.b, 0) order by u.n)
  from unnest(p_one, p_other) with ordinality u (a, b, n)
$$;

-- Adds the outcomes of a period within one hour to that hour and to the totals. p_again: the whole
-- hour was added before, so only missed outcomes are added. Counts never fall: retention may have
-- removed some of the jobs meanwhile.
create or replace function penstock._add_outcomes(
  p_from timestamptz, p_until timestamptz, p_again boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  with more as materialized (
    select c.hour, c.queue_id, c.kind_id, c.outcome, c.class,
      c.count - coalesce(b.count, 0) as count,
      greatest(0, c.total_ms - coalesce(b.total_ms, 0)) as total_ms,
      penstock._add_arrays(c.histogram, b.histogram, -1) as histogram
    from penstock._count_outcomes(p_from, p_until) c
    left join penstock.hourly_bucket b on p_again and b.hour = c.hour and b.queue_id = c.queue_id
      and b.kind_id = c.kind_id and b.outcome = c.outcome and b.class = c.class
    where c.count > coalesce(b.count, 0) -- guard: never less
  )
  insert into penstock.hourly_bucket as b
    (hour, queue_id, kind_id, outcome, class, count, total_ms, histogram)
  select m.hour, m.queue_id, m.kind_id, m.outcome, m.class, m.count, m.total_ms, m.histogram
  from more m
  union all
  select '-infinity', m.queue_id, m.kind_id, m.outcome, m.class, m.count, m.total_ms, m.histogram
  from more m
  on conflict (hour, queue_id, kind_id, outcome, class) do update set
    count = b.count + excluded.count, total_ms = b.total_ms + excluded.total_ms,
    histogram = penstock._add_arrays(b.histogram, excluded.histogram, 1);
end
$$;

-- Counts an hour again that has been over for ten minutes, unless that takes too long, and deletes
-- hours after 90 days. Returns whether there was such an hour.
create or replace function penstock._settle_hour(p_state penstock.rollup, p_now timestamptz)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  -- Hours that upkeep missed for days were counted long after their end.
  v_hour timestamptz := greatest(p_state.settled_until,
    date_trunc('hour', p_now - interval '2 days', 'UTC'));
  v_end timestamptz := v_hour + interval '1 hour';
begin
  if v_end > p_state.counted_until
    or v_end > p_now - interval '10 minutes' -- guard: over
  then
    return false;
  end if;
  if (select coalesce(sum(b.count), 0) from penstock.hourly_bucket b where b.hour = v_hour)
    <= 200000 -- about a second: upkeep has other tasks, too
  then
    perform penstock._add_outcomes(v_hour, v_end, true);
  end if;
  update penstock.rollup set settled_until = v_end;
  delete from penstock.hourly_bucket b
  where b.hour > '-infinity' and b.hour < p_now - interval '90 days';
  return true;
end
$$;

-- Runs one step, unless another one is running or ran less than p_every ago. Returns whether there
-- is more to do. The counts and counted_until change in one transaction, so a crash makes nothing
-- count twice.
create or replace function penstock.roll_up(p_every interval default '5 seconds') returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_now timestamptz := penstock.clock();
  v_until timestamptz := v_now - interval '5 seconds';
  v_state penstock.rollup;
  v_hour_end timestamptz;
begin
  select * into v_state from penstock.rollup
  for update skip locked; -- guard: alone
  if not found then
    return false;
  end if;
  if v_state.counted_until > v_until - p_every then
    return penstock._settle_hour(v_state, v_now);
  end if;
  v_hour_end := date_trunc('hour', v_state.counted_until, 'UTC') + interval '1 hour';
  -- Hours without outcomes are skipped, all at once.
  while v_until > v_hour_end
    and exists (select from penstock._outcomes_between(v_state.counted_until, v_until))
  loop
    v_until := greatest(v_hour_end,
      v_state.counted_until + (v_until - v_state.counted_until) / 2);
  end loop;
  if v_until <= v_hour_end then
    v_until := least(v_until, v_state.counted_until + interval '5 minutes');
    perform penstock._add_outcomes(v_state.counted_until, v_until, false);
  end if;
  update penstock.rollup set counted_until = v_until returning * into v_state;
  return penstock._settle_hour(v_state, v_now) or v_until < v_now - interval '5 seconds';
end
$$;

-- Hourly counts, up to 15 seconds behind. histogram: how many took at most 0.1, 0.3, 1, 3, 10, 30,
-- 60, 120, 300, 600, 1800 seconds, and all.
create or replace view penstock.hourly as
select b.hour, q.name as queue, k.name as kind, b.outcome, nullif(b.class, '') as class, b.count,
  b.total_ms as total_duration_ms, b.histogram
from penstock.hourly_bucket b
left join penstock.queue q on q.id = b.queue_id left join penstock.kind k on k.id = b.kind_id
where b.hour > '-infinity';

-- Hourly counts up to now, of all queues or of one: the stored ones, and the outcomes since they
-- were last added up.
create or replace function penstock.read_metrics(
  p_hours integer default 24, p_queue text default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_from timestamptz;
  v_counted_until timestamptz;
  v_queue integer := case when p_queue is not null then coalesce(
    (select q.id from penstock.queue q where q.name = p_queue), -1) end;
begin
  if p_hours is null or p_hours not between 1 and 2160 then
    perform penstock._refuse(422, 'invalid_filter',
      'hours must be a whole number from 1 to 2160', 'hours');
  end if;
  v_from := date_trunc('hour', penstock.clock() - make_interval(hours => p_hours), 'UTC');
  select r.counted_until into v_counted_until from penstock.rollup r;
  return (
    with line as materialized (
      select b.hour, b.queue_id, b.kind_id, b.outcome, b.class, b.count, b.total_ms
      from penstock.hourly_bucket b
      where b.hour >= v_from and (v_queue is null or b.queue_id = v_queue)
      union all
      select date_trunc('hour', e.ended_at, 'UTC'), e.queue_id, e.kind_id, e.outcome, e.class,
        count(*), sum(e.ms)
      from penstock._outcomes_between(greatest(v_from, v_counted_until), 'infinity') e
      where v_queue is null or e.queue_id = v_queue
      group by 1, 2, 3, 4, 5
    )
    select jsonb_build_object('timeouts', (
        select coalesce(jsonb_agg(jsonb_build_object('hour', penstock._rfc3339(t.hour),
          'class', t.class, 'count', t.count, 'total_duration_ms', t.total_ms)
          order by t.hour, t.class), '[]')
        from (
          select l.hour, l.class, sum(l.count) as count, sum(l.total_ms) as total_ms from line l
          -- A released attempt, or one that somebody cancelled, has not failed.
          where l.class <> '' and l.outcome in (
            'failed', 'retried', 'deferred', 'timed_out', 'lost', 'stuck')
          group by 1, 2
        ) t),
      'throughput', (
        select coalesce(jsonb_agg(jsonb_build_object('hour', penstock._rfc3339(t.hour),
          'queue', t.queue, 'kind', t.kind, 'outcome', t.outcome, 'count', t.count,
          'total_duration_ms', t.total_ms) order by t.hour, t.queue, t.kind, t.outcome), '[]')
        from (
          select l.hour, q.name as queue, k.name as kind, l.outcome, sum(l.count) as count,
            sum(l.total_ms) as total_ms
          from line l left join penstock.queue q on q.id = l.queue_id
          left join penstock.kind k on k.id = l.kind_id
          group by 1, 2, 3, 4
        ) t)));
end
$$;
