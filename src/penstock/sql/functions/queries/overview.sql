-- The dashboard's first page in one call: live jobs (counts.sql), and finished ones as bars over
-- time and as totals of the last day. The finished ones come from the hourly counts, and from the
-- outcomes since these were last added up. Nothing here decides anything.

-- A quantile in seconds from a histogram: the value that p_share of all do not exceed; values
-- between two bounds are taken as evenly spread. Null: there are none, or it is beyond the last
-- bound.
create or replace function penstock._quantile_seconds(p_upto bigint[], p_share double precision)
returns double precision
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select (b.low + (b.high - b.low) * greatest(0, p_share * b.total - b.before)
    / (b.upto - b.before)) / 1000.0
  from (
    select u.n, u.upto, u.high, p_upto[cardinality(p_upto)] as total,
      coalesce(lag(u.high) over (order by u.n), 0) as low,
      coalesce(lag(u.upto) over (order by u.n), 0) as before
    from unnest(p_upto, penstock._hour_bounds()) with ordinality u (upto, high, n)
  ) b
  where b.total > 0 and b.upto >= p_share * b.total
  order by b.n limit 1
$$;

-- Bars of an hour, six hours or a day, the current one included; for the last 24 hours the number
-- of succeeded jobs, how long they ran, and the totals of each queue.
create or replace function penstock._overview_outcomes(p_hours integer, p_now timestamptz)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_step interval := case when p_hours <= 48 then interval '1 hour'
    when p_hours <= 336 then interval '6 hours' else interval '1 day' end;
  v_from timestamptz := date_bin(v_step, date_bin(v_step, p_now, '2024-01-01 00:00+00')
    - make_interval(hours => p_hours), '2024-01-01 00:00+00');
  v_day timestamptz := date_trunc('hour', p_now - interval '1 day', 'UTC');
  v_midnight timestamptz := date_trunc('day', p_now, 'UTC');
  v_until timestamptz := (select r.counted_until from penstock.rollup r);
begin
  return (
    -- Not if that was long ago (no worker runs, and nothing reads the metrics): it may be a day of
    -- history, and the page shows until when it has counts.
    with since as materialized (
      select c.* from penstock._count_outcomes(v_until, 'infinity') c
      where v_until > p_now - interval '10 minutes'
    ),
    line as materialized (
      select b.hour, b.queue_id, b.outcome, b.class, b.count, b.total_ms,
        case when b.outcome = 'succeeded' and b.hour >= v_day then b.histogram end as histogram
      from penstock.hourly_bucket b where b.hour >= least(v_from, v_day)
      union all
      select s.hour, s.queue_id, s.outcome, s.class, s.count, s.total_ms,
        case when s.outcome = 'succeeded' then s.histogram end
      from since s
    ),
    bar as materialized (
      select date_bin(v_step, l.hour, '2024-01-01 00:00+00') as at, l.outcome, l.class,
        sum(l.count) as count
      from line l where l.hour >= v_from
      group by 1, 2, 3
    ),
    day as materialized (select * from line l where l.hour >= v_day),
    upto as (
      select array_agg(t.n order by t.i) as counts
      from (
        select h.i, sum(h.n)::bigint as n
        from day d cross join lateral unnest(d.histogram) with ordinality h (n, i)
        group by h.i
      ) t
    )
    select jsonb_build_object(
      'from', penstock._rfc3339(v_from), 'step_seconds', date_part('epoch', v_step),
      'counted_until', penstock._rfc3339(v_until),
      'behind', v_until <= p_now - interval '10 minutes',
      'ever', exists (select from penstock.hourly_bucket) or exists (select from penstock.finished),
      'bars', (
        select coalesce(jsonb_agg(jsonb_build_object('at', penstock._rfc3339(b.at),
          'outcome', b.outcome, 'count', b.count) order by b.at, b.outcome), '[]')
        from (
          select r.at, r.outcome, sum(r.count) as count from bar r
          where r.outcome in ('succeeded', 'failed', 'cancelled') group by 1, 2
        ) b),
      'failures', (
        select coalesce(jsonb_agg(jsonb_build_object('at', penstock._rfc3339(b.at),
          'class', b.class, 'count', b.count) order by b.at, b.class), '[]')
        from (
          select r.at, r.class, sum(r.count) as count from bar r
          -- As in read_metrics: attempts that failed, whether or not their jobs did.
          where r.class <> '' and r.outcome in (
            'failed', 'retried', 'deferred', 'timed_out', 'lost', 'stuck')
          group by 1, 2
        ) b),
      'failed_today', (
        select coalesce(sum(d.count), 0) from day d
        where d.outcome = 'failed' and d.hour >= v_midnight),
      'succeeded', (
        select coalesce(sum(d.count), 0) from day d where d.outcome = 'succeeded'),
      'avg_seconds', (
        select sum(d.total_ms) / nullif(sum(d.count), 0) / 1000.0 from day d
        where d.outcome = 'succeeded'),
      'p95_seconds', (select penstock._quantile_seconds(u.counts, 0.95) from upto u),
      'queues', (
        select coalesce(jsonb_object_agg(t.queue_id, t.counts), '{}')
        from (
          select d.queue_id, jsonb_build_object(
            'ended', sum(d.count), 'failed', coalesce(
              sum(d.count) filter (where d.outcome = 'failed'), 0)) as counts
          from day d where d.outcome in ('succeeded', 'failed', 'cancelled') group by d.queue_id
        ) t)));
end
$$;

-- The whole page. p_counted: see _overview_live; room_seconds: how far ahead the partitions of
-- history should be made.
create or replace function penstock.read_overview(
  p_hours integer default 24, p_counted integer default 40000
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := penstock.clock();
begin
  if p_hours is null or p_hours not between 1 and 2160 then
    perform penstock._refuse(422, 'invalid_filter',
      'hours must be a whole number from 1 to 2160', 'hours');
  end if;
  return penstock._overview_live(greatest(0, p_counted), v_now) || jsonb_build_object(
    'now', penstock._rfc3339(v_now),
    'ended', penstock._overview_outcomes(p_hours, v_now),
    -- The average time between due and started, of those of the last thousand finished jobs that
    -- ran.
    'wait_seconds', (
      select avg(greatest(0, date_part('epoch', r.started_at - r.run_at)))
      from (
        select f.started_at, f.run_at from penstock.finished f order by f.id desc limit 1000
      ) r
      where r.started_at is not null), -- the greatest of 0 and nothing is 0
    -- Recovered jobs that wait for their next attempt, among the last hundred: see _list_stuck.
    'recovered', (
      select count(*)
      from (
        select j.id, j.attempt from penstock.job j
        where j.recovered_at is not null and j.status in ('scheduled', 'queued')
        order by j.recovered_at desc limit 100
      ) r
      where exists (
        select from penstock.attempt t
        where t.job_id = r.id and t.attempt = r.attempt and t.outcome in ('lost', 'stuck'))),
    -- Receivers that refused a webhook three times or more, among the thousand webhooks that wait
    -- longest.
    'failing_hosts', (
      select coalesce(jsonb_agg(jsonb_build_object('host', h.host, 'count', h.n,
        'since', penstock._rfc3339(h.since)) order by h.n desc, h.host), '[]')
      from (
        select d.host, count(*) as n, min(d.created_at) as since
        from (
          select w.host, w.tries, w.created_at from penstock.delivery w
          where w.next_at is not null order by w.next_at desc limit 1000
        ) d
        where d.tries >= 3
        group by d.host order by n desc, d.host limit 5
      ) h),
    'alerts', (select coalesce(jsonb_agg(a), '[]') from penstock.list_alerts() a),
    'kind', (select k.name from penstock.kind k order by k.id limit 1),
    'room_seconds', (select date_part('epoch', s.partitions_ahead) from penstock.setting s));
end
$$;
