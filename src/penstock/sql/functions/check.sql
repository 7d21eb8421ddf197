-- Every invariant of lifecycle.sql as a query: one row per breach, none when sound.

create or replace function penstock.check()
returns table (invariant text, subject text, detail text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select 'L1 live or finished, never both', j.id::text, 'in job and in finished'
  from penstock.job j join penstock.finished f on f.id = j.id
  union all
  select 'L1 finished once', f.id::text, format('%s rows', count(*))
  from penstock.finished f group by f.id having count(*) > 1
  union all
  select 'L2 a running job has a known worker', j.id::text, format('worker %s', j.worker_id)
  from penstock.job j left join penstock.worker w on w.id = j.worker_id
  where j.status = 'running' and w.id is null
  union all
  select 'L2 a cleared worker runs nothing', j.id::text, format('worker %s', j.worker_id)
  from penstock.job j join penstock.worker w on w.id = j.worker_id
  where w.cleared_at is not null
  union all
  select 'L4 every ended start has one attempt row', s.id::text,
    format('%s starts ended, %s rows', s.ended, s.recorded)
  from (
    select j.id, j.attempt - (j.status in ('running', 'awaiting'))::integer as ended,
      (select count(*) from penstock.attempts t where t.job_id = j.id) as recorded
    from penstock.job j
    where j.attempt > 0
    union all
    select f.id, f.attempt, (select count(*) from penstock.attempts t where t.job_id = f.id)
    from penstock.finished f
    where f.attempt <> 1 or not f.ended_in_start
  ) s
  where s.ended <> s.recorded
  union all
  select 'L4 a start ends after it began', t.job_id::text, format('attempt %s', t.attempt)
  from penstock.attempts t where t.ended_at < t.started_at
  union all
  select 'L5 a queue counts what runs', q.name, format('gate says %s, %s run', g.running, c.n)
  from penstock.queue q join penstock.gate g on g.queue_id = q.id
  cross join lateral (
    select count(*) as n from penstock.job j
    where j.queue_id = q.id and j.holds & 1 = 1
  ) c
  where g.running <> c.n
  union all
  select 'L5 a queue keeps its limit', q.name,
    format('%s of %s run', count(*), q.concurrency)
  from penstock.queue q join penstock.job j on j.queue_id = q.id
  where j.status in ('running', 'awaiting')
  group by q.id
  having count(*) > q.concurrency and max(j.started_at) > q.changed_at
  union all
  select 'L5 an account counts what runs', coalesce(a.name, a.id::text),
    format('account says %s, %s run', a.running, coalesce(c.n, 0))
  from penstock.account a
  left join (
    select j.account_id, count(*) as n from penstock.job j where j.holds >= 2
    group by j.account_id
  ) c on c.account_id = a.id
  where a.running <> coalesce(c.n, 0)
  union all
  select 'L5 an account keeps its limit', coalesce(a.name, a.id::text),
    format('%s of %s run', count(*), a.concurrency)
  from penstock.account a
  join penstock.job j on j.account_id = a.id and j.status in ('running', 'awaiting')
  group by a.id
  having count(*) > a.concurrency and max(j.started_at) > a.limited_at
  union all
  select 'L5 an account follows its plan', coalesce(a.name, a.id::text),
    format('%s and %s', a.concurrency, p.concurrency)
  from penstock.account a left join penstock.plan p on p.name = a.plan
  where (a.concurrency, a.weight) is distinct from (p.concurrency, coalesce(p.weight, 1))
  union all
  select 'L6 a lane counts and orders what waits', format('%s/%s', l.queue_id, l.account_id),
    format('waiting %s, head %s; found %s, first %s', l.waiting, l.head, coalesce(c.n, 0), c.first)
  from penstock.lane l join penstock.queue q on q.id = l.queue_id
  left join (
    select j.queue_id, j.lane, count(*) as n, min(j.rank) as first
    from penstock.job j where j.status = 'queued' and j.lane >= 0 group by j.queue_id, j.lane
  ) c on c.queue_id = l.queue_id and c.lane = l.account_id
  where l.waiting <> coalesce(c.n, 0) or (q.ordering <> 'fair' and c.n > 0 and l.head <> c.first)
  union all
  select 'L6 a queued job of a lane has one', j.id::text, format('lane %s', j.lane)
  from penstock.job j
  where j.status = 'queued' and j.lane >= 0 and not exists (
    select from penstock.lane l where l.queue_id = j.queue_id and l.account_id = j.lane)
  union all
  select 'L6 a lane with a free slot is open', format('%s/%s', l.queue_id, l.account_id),
    format('%s of %s run, %s wait', a.running, a.concurrency, l.waiting)
  from penstock.lane l join penstock.account a on a.id = l.account_id
  where l.waiting > 0 and not l.open and (a.concurrency is null or a.running < a.concurrency)
  union all
  select 'L6 a fair queue has everyone in a lane', j.id::text, q.name
  from penstock.job j join penstock.queue q on q.id = j.queue_id
  where q.ordering = 'fair' and j.lane = -1
  union all
  select 'L5 what runs under a limit holds a slot', j.id::text,
    format('holds %s in queue %s', j.holds, q.name)
  from penstock.job j join penstock.queue q on q.id = j.queue_id
  join penstock.account a on a.id = j.account_id
  where j.deadline_at is not null and (
    (j.holds & 1 = 0 and (q.concurrency is not null or q.rate_count is not null))
    or (j.holds & 2 = 0 and a.concurrency is not null))
  union all
  -- Invariants of circuit.sql: its states are constraints of its table.
  select 'C1 a queue has a circuit', q.name, 'none'
  from penstock.queue q left join penstock.circuit c on c.queue_id = q.id
  where c.queue_id is null
  union all
  select 'C2 an open circuit is told to operators', q.name, c.state
  from penstock.circuit c join penstock.queue q on q.id = c.queue_id
  where (c.state <> 'open' or c.class is not distinct from 'rate_limited') = exists (
      select from penstock.alert a where a.queue_id = q.id and a.cleared_at is null)
  union all
  select 'a job has a queue with a gate, a kind and an account', j.id::text,
    format('queue %s, kind %s, account %s', j.queue_id, j.kind_id, j.account_id)
  from penstock.job j left join penstock.gate g on g.queue_id = j.queue_id
  left join penstock.kind k on k.id = j.kind_id left join penstock.account a on a.id = j.account_id
  where g.queue_id is null or k.id is null or a.id is null
  union all
  select 'idempotency record names a job', i.scope || '/' || i.key, 'no job recorded'
  from penstock.idempotency i where i.job_id = '00000000-0000-0000-0000-000000000000'
$$;

-- Repairs what can be derived, and says what it had to repair: nothing, on a sound system. What
-- looks wrong is found without a lock; only those rows are then locked, where nobody else has
-- them, and counted again: an open transaction of an app is neither waited for nor in the way.
create or replace function penstock.reconcile()
returns table (what text, subject text, was text, now text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_accounts bigint[];
  v_gates integer[];
  v_lost record;
begin
  select array_agg(s.id) into v_accounts from (
    select a.id from penstock.account a
    left join (
      select j.account_id, count(*) as n from penstock.job j where j.holds >= 2
      group by j.account_id
    ) c on c.account_id = a.id
    where a.running <> coalesce(c.n, 0)
    union
    select l.account_id from penstock._unsound_lanes(null) l
    union
    select j.lane from penstock.job j where j.status = 'queued' and j.lane >= 0 and not exists (
      select from penstock.lane l where l.queue_id = j.queue_id and l.account_id = j.lane)
  ) s;
  select array_agg(l.id) into v_accounts from (
    select a.id from penstock.account a where a.id = any (v_accounts)
    order by a.id for no key update skip locked
  ) l;
  return query
  with sound as materialized (
    select a.id, a.running as was, (
      select count(*) from penstock.job j
      where j.account_id = a.id and j.deadline_at is not null and j.holds >= 2) as n
    from penstock.account a where a.id = any (v_accounts)
  )
  update penstock.account a set running = s.n from sound s
  where a.id = s.id and s.was <> s.n
  returning 'account.running', coalesce(a.name, a.id::text), s.was::text, s.n::text;

  -- A lane that is not there stops its jobs for ever, since no claim looks for them elsewhere.
  for v_lost in
    select j.queue_id, j.lane, array_agg(j.rank) as ranks
    from penstock.job j
    where j.status = 'queued' and j.lane = any (v_accounts) and not exists (
      select from penstock.lane l where l.queue_id = j.queue_id and l.account_id = j.lane)
    group by j.queue_id, j.lane
  loop
    perform penstock._join_lanes(
      array_fill(v_lost.queue_id, array[cardinality(v_lost.ranks)]),
      array_fill(v_lost.lane, array[cardinality(v_lost.ranks)]), v_lost.ranks);
    what := 'lane'; subject := format('%s/%s', v_lost.queue_id, v_lost.lane);
    was := 'none'; now := format('%s waiting', cardinality(v_lost.ranks));
    return next;
  end loop;
  return query
  with sound as materialized (select * from penstock._unsound_lanes(v_accounts))
  update penstock.lane l set waiting = s.waiting, head = s.head, open = s.open
  from sound s
  where l.queue_id = s.queue_id and l.account_id = s.account_id
  returning 'lane', format('%s/%s', l.queue_id, l.account_id),
    format('%s waiting, head %s, open %s', s.was_waiting, s.was_head, s.was_open),
    format('%s waiting, head %s, open %s', s.waiting, s.head, s.open);

  select array_agg(s.queue_id) into v_gates from (
    select g.queue_id from penstock.gate g
    left join (
      select j.queue_id, count(*) as n from penstock.job j where j.holds & 1 = 1
      group by j.queue_id
    ) c on c.queue_id = g.queue_id
    where g.running <> coalesce(c.n, 0)
  ) s;
  perform g.queue_id from penstock.gate g where g.queue_id = any (v_gates)
  order by g.queue_id for no key update;
  return query
  with sound as materialized (
    select g.queue_id, q.name, g.running as was, (
      select count(*) from penstock.job j
      where j.queue_id = g.queue_id and j.deadline_at is not null and j.holds & 1 = 1) as n
    from penstock.gate g join penstock.queue q on q.id = g.queue_id
    where g.queue_id = any (v_gates)
  )
  update penstock.gate g set running = s.n from sound s
  where g.queue_id = s.queue_id and s.was <> s.n
  returning 'gate.running', s.name, s.was::text, s.n::text;
end
$$;

-- Lanes that say something else than their jobs do, with what they should say; of these accounts,
-- or of all.
create or replace function penstock._unsound_lanes(p_accounts bigint[])
returns table (
  queue_id integer, account_id bigint, was_waiting integer, was_head bigint, was_open boolean,
  waiting integer, head bigint, open boolean
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select s.queue_id, s.account_id, s.was_waiting, s.was_head, s.was_open, s.waiting, s.head, s.open
  from (
    select l.queue_id, l.account_id, l.waiting as was_waiting, l.head as was_head,
      l.open as was_open, coalesce(c.n, 0)::integer as waiting,
      case when q.ordering = 'fair' then l.head else coalesce(c.first, l.head) end as head,
      case when coalesce(c.n, 0) = 0 then l.open
        when a.concurrency is null or a.running < a.concurrency then true
        else l.open end as open
    from penstock.lane l join penstock.queue q on q.id = l.queue_id
    join penstock.account a on a.id = l.account_id
    left join (
      select j.queue_id, j.lane, count(*) as n, min(j.rank) as first
      from penstock.job j where j.status = 'queued' and j.lane >= 0 group by j.queue_id, j.lane
    ) c on c.queue_id = l.queue_id and c.lane = l.account_id
    where p_accounts is null or l.account_id = any (p_accounts)
  ) s
  where s.waiting <> s.was_waiting or s.head <> s.was_head or s.open <> s.was_open
$$;
