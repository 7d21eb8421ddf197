-- Check every invariant of lifecycle.sql with a query: one row for each violation, none if there is
-- none.

create or replace function penstock.check()
returns table (invariant text, subject text, detail text)
language sql stable security definer set search_path = pg_catalog, pg_temp
  -- With JIT it takes three seconds longer.
  set jit = off
as $$
  select i.invariant, j.id::text,
    format('status %s, worker %s, queue %s, kind %s, account %s, lane %s, slots %s, charged %s',
      j.status, j.worker_id, coalesce(q.name, j.queue_id::text), j.kind_id, j.account_id, j.lane,
      j.slots_held, r.charged)
  from penstock.job j
  left join penstock.finished f on f.id = j.id
  left join penstock.worker w on w.id = j.worker_id
  left join penstock.queue q on q.id = j.queue_id
  left join penstock.gate g on g.queue_id = j.queue_id
  left join penstock.kind k on k.id = j.kind_id
  left join penstock.queue_kind qk on qk.queue_id = j.queue_id and qk.kind_id = j.kind_id
  left join penstock.account a on a.id = j.account_id
  left join penstock.lane l
    on l.queue_id = j.queue_id and l.account_id = j.lane and l.kind_id = j.kind_id
  left join penstock.resolution r on r.job_id = j.id
  cross join lateral (values
    ('L1 live or finished, never both', f.id is not null),
    ('L2 a running job has a known worker', j.status = 'running' and w.id is null),
    ('L2 a cleared worker runs nothing', w.cleared_at is not null),
    ('L5 a job that runs under a limit holds a slot', j.deadline_at is not null and (
      (j.slots_held & 1 = 0 and (q.concurrency is not null or q.rate_count is not null))
      or (j.slots_held & 2 = 0 and a.concurrency is not null))),
    ('L6 a queued job of a lane has one', j.status = 'queued' and j.lane >= 0 and l.head is null),
    ('L6 the kind of a queued job is known to its queue', qk.kind_id is null),
    ('L6 a fair queue has everyone in a lane', q.ordering = 'fair' and j.lane = -1),
    ('M3 a job that lives is not resolved', r.job_id is not null),
    ('a job has a queue with a gate, a kind and an account',
      g.queue_id is null or k.id is null or a.id is null)
  ) i (invariant, is_broken)
  where i.is_broken
  union all
  select 'L1 finished once', f.id::text, format('%s rows', count(*))
  from penstock.finished f group by f.id having count(*) > 1
  union all
  select 'L4 every settled attempt has one row', s.id::text,
    format('%s attempts settled, %s rows', s.settled, s.recorded)
  from (
    select j.id, j.attempt - (j.status in ('running', 'awaiting'))::integer as settled,
      (select count(*) from penstock.attempts t where t.job_id = j.id) as recorded
    from penstock.job j
    where j.attempt > 0
    union all
    select f.id, f.attempt, (select count(*) from penstock.attempts t where t.job_id = f.id)
    from penstock.finished f
    where f.attempt <> 1 or not f.finished_by_attempt
  ) s
  where s.settled <> s.recorded
  union all
  select 'L4 an attempt ends after it began', t.job_id::text, format('attempt %s', t.attempt)
  from penstock.attempts t where t.ended_at < t.started_at
  union all
  select case c.what when 'gate.running' then 'L5 a queue counts its running jobs'
      else 'L5 an account counts its running jobs' end,
    c.subject, format('%s says %s, %s run', split_part(c.what, '.', 1), c.was, c.now)
  from penstock._wrong_counters() c
  union all
  select 'L5 a queue keeps its limit', q.name,
    format('%s of %s run', count(*), q.concurrency)
  from penstock.queue q join penstock.job j on j.queue_id = q.id
  where j.status in ('running', 'awaiting')
  group by q.id
  having count(*) > q.concurrency and max(j.started_at) > q.changed_at
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
  select i.invariant, l.subject, format('waiting %s, head %s, open %s; should be %s, %s, %s',
    l.was_waiting, l.was_head, l.was_open, l.waiting, l.head, l.open)
  from penstock._unsound_lanes(null) l join penstock.queue q on q.id = l.queue_id
  cross join lateral (values
    ('L6 a lane counts and orders its jobs',
      l.waiting <> l.was_waiting or (q.ordering <> 'fair' and l.head <> l.was_head)),
    ('L6 an account has one virtual time in a fair queue',
      q.ordering = 'fair' and l.head <> l.was_head),
    ('L6 a lane with a free slot is open', l.open <> l.was_open)
  ) i (invariant, is_broken)
  where i.is_broken
  union all
  -- Invariants of circuit.sql: the states are constraints of the table.
  select 'C1 a queue has a circuit', q.name, 'none'
  from penstock.queue q left join penstock.circuit c on c.queue_id = q.id
  where c.queue_id is null
  union all
  select 'C2 an open circuit raises an alert', q.name, c.state
  from penstock.circuit c join penstock.queue q on q.id = c.queue_id
  where (c.state <> 'open' or c.class is not distinct from 'rate_limited') = exists (
      select from penstock.alert a where a.queue_id = q.id and a.cleared_at is null)
  union all
  -- Invariants of credits.sql.
  select 'M1 a balance is the sum of the ledger', coalesce(a.name, a.id::text),
    format('balance %s, ledger %s', a.balance, coalesce(l.total, 0))
  from penstock.account a
  left join (
    select l.account_id, sum(l.amount) as total from penstock.ledger l group by l.account_id
  ) l on l.account_id = a.id
  where a.balance <> coalesce(l.total, 0)
  union all
  select 'M1 a ledger line has an account', format('%s/%s', l.account_id, l.id), l.kind
  from penstock.ledger l left join penstock.account a on a.id = l.account_id
  where a.id is null
  union all
  select 'M1 each ledger line holds the sum up to it', format('%s/%s', l.account_id, l.id),
    format('holds %s, is %s', l.balance_after, l.upto)
  from (
    select l.account_id, l.id, l.balance_after,
      sum(l.amount) over (partition by l.account_id order by l.id) as upto
    from penstock.ledger l
  ) l
  where l.balance_after <> l.upto
  union all
  select 'M2 a priced job has one reservation of its price', coalesce(p.id, r.job_id)::text,
    format('price %s, reserved %s', p.reserved, r.reserved)
  from (
    select j.id, j.account_id, j.reserved from penstock.job j where j.reserved > 0
    union all
    select f.job_id, f.account_id, f.reserved from penstock.resolution f
  ) p
  full join (
    select l.job_id, l.account_id, -sum(l.amount) as reserved from penstock.ledger l
    where l.kind = 'reserve' group by l.job_id, l.account_id
  ) r on r.job_id = p.id and r.account_id = p.account_id
  where p.reserved is distinct from r.reserved
  union all
  select 'M3 a finished job with a price is resolved', f.id::text, format('reserved %s', f.reserved)
  from penstock.finished f left join penstock.resolution r on r.job_id = f.id
  where f.reserved <> coalesce(r.reserved, 0)
  union all
  select 'M3 a refund is in the ledger', coalesce(r.job_id, l.job_id)::text,
    format('refunded %s, ledger %s', r.refunded, l.amount)
  from (select * from penstock.resolution r where r.refunded > 0) r
  full join (
    select l.job_id, sum(l.amount) as amount from penstock.ledger l
    where l.kind = 'refund' and l.job_id is not null group by l.job_id
  ) l on l.job_id = r.job_id
  where r.refunded is distinct from l.amount
  union all
  select 'idempotency record names a job', i.scope || '/' || i.key, 'no job recorded'
  from penstock.idempotency i where i.job_id = '00000000-0000-0000-0000-000000000000'
$$;
