-- The reconciler: compare counters, lanes and balances with the rows that they are derived from.

-- Repairs derived values and returns what it repaired: nothing, on a sound system. Wrong values are
-- found without a lock; only those rows are then locked, if nobody else has locked them, and
-- counted again. So the reconciler does not wait for an open transaction of an app.
create or replace function penstock.reconcile()
returns table (what text, subject text, was text, now text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_accounts bigint[];
  v_gates bigint[];
  v_missing record;
begin
  select array_agg(l.id) into v_accounts from (
    select a.id from penstock.account a
    where a.id in (
      select c.id from penstock._wrong_counters() c where c.what = 'account.running'
      union
      select l.account_id from penstock._unsound_lanes(null) l
      union
      select m.lane from penstock._jobs_without_lane() m
      union
      select b.id from penstock.account b where b.balance <> penstock._last_balance(b.id))
    order by a.id for no key update skip locked
  ) l;
  select array_agg(l.queue_id) into v_gates from (
    select g.queue_id from penstock.gate g
    where g.queue_id in (
      select c.id from penstock._wrong_counters() c where c.what = 'gate.running')
    order by g.queue_id for no key update
  ) l;
  return query
  with sound as materialized (
    select * from penstock._wrong_counters() c
    where c.id = any (case c.what when 'gate.running' then v_gates else v_accounts end)
  ),
  account as (
    update penstock.account a set running = s.now from sound s
    where s.what = 'account.running' and a.id = s.id
  ),
  gate as (
    update penstock.gate g set running = s.now from sound s
    where s.what = 'gate.running' and g.queue_id = s.id
  )
  select s.what, s.subject, s.was::text, s.now::text from sound s;

  -- A missing lane stops its jobs for ever, since no claim finds them otherwise.
  for v_missing in
    select array_agg(m.queue_id) as queues, array_agg(m.lane) as lanes,
      array_agg(m.kind_id) as kinds, array_agg(m.rank) as ranks
    from penstock._jobs_without_lane() m where m.lane = any (v_accounts)
    group by m.queue_id, m.lane, m.kind_id
  loop
    perform penstock._join_lanes(
      v_missing.queues, v_missing.lanes, v_missing.kinds, v_missing.ranks);
    what := 'lane';
    subject := format('%s/%s/%s', v_missing.queues[1], v_missing.lanes[1], v_missing.kinds[1]);
    was := 'none'; now := format('%s waiting', cardinality(v_missing.ranks));
    return next;
  end loop;
  return query
  with sound as materialized (select * from penstock._unsound_lanes(v_accounts))
  update penstock.lane l set waiting = s.waiting, head = s.head, open = s.open
  from sound s
  where l.queue_id = s.queue_id and l.account_id = s.account_id and l.kind_id = s.kind_id
  returning 'lane', s.subject,
    format('%s waiting, head %s, open %s', s.was_waiting, s.was_head, s.was_open),
    format('%s waiting, head %s, open %s', s.waiting, s.head, s.open);

  -- The ledger is the truth.
  return query
  with sound as materialized (
    select a.id, a.balance as was, penstock._last_balance(a.id) as now
    from penstock.account a where a.id = any (v_accounts)
  )
  update penstock.account a set balance = s.now from sound s
  where a.id = s.id and s.was <> s.now
  returning 'account.balance', coalesce(a.name, a.id::text), s.was::text, s.now::text;
end
$$;

-- Counters of accounts and queues that differ from the live jobs that they count.
create or replace function penstock._wrong_counters()
returns table (what text, id bigint, subject text, was integer, now integer)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select 'account.running', a.id, coalesce(a.name, a.id::text), a.running,
    coalesce(c.n, 0)::integer
  from penstock.account a left join (
    select j.account_id, count(*) as n from penstock.job j where j.slots_held >= 2
    group by j.account_id
  ) c on c.account_id = a.id
  where a.running <> coalesce(c.n, 0)
  union all
  select 'gate.running', g.queue_id, q.name, g.running, coalesce(c.n, 0)::integer
  from penstock.gate g join penstock.queue q on q.id = g.queue_id left join (
    select j.queue_id, count(*) as n from penstock.job j where j.slots_held & 1 = 1
    group by j.queue_id
  ) c on c.queue_id = g.queue_id
  where g.running <> coalesce(c.n, 0)
$$;

-- Queued jobs of accounts that have no lane for them.
create or replace function penstock._jobs_without_lane() returns setof penstock.job
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select j.* from penstock.job j
  where j.status = 'queued' and j.lane >= 0 and not exists (
    select from penstock.lane l
    where l.queue_id = j.queue_id and l.account_id = j.lane and l.kind_id = j.kind_id)
$$;

-- Lanes whose values differ from those of their jobs, with the right values; of these accounts, or
-- of all.
create or replace function penstock._unsound_lanes(p_accounts bigint[])
returns table (
  subject text, queue_id integer, account_id bigint, kind_id integer, was_waiting integer,
  was_head bigint, was_open boolean, waiting integer, head bigint, open boolean
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select format('%s/%s/%s', s.queue_id, s.account_id, s.kind_id), s.*
  from (
    select l.queue_id, l.account_id, l.kind_id, l.waiting as was_waiting, l.head as was_head,
      l.open as was_open, coalesce(c.n, 0)::integer as waiting,
      case when q.ordering = 'fair'
        then case when coalesce(c.n, 0) = 0 then l.head else (
          select max(o.head) from penstock.lane o
          where o.queue_id = l.queue_id and o.account_id = l.account_id and o.waiting > 0) end
        else coalesce(c.first, l.head) end as head,
      l.open or (c.n > 0 and (a.concurrency is null or a.running < a.concurrency)) is true as open
    from penstock.lane l join penstock.queue q on q.id = l.queue_id
    join penstock.account a on a.id = l.account_id
    left join (
      select j.queue_id, j.lane, j.kind_id, count(*) as n, min(j.rank) as first
      from penstock.job j where j.status = 'queued' and j.lane >= 0
      group by j.queue_id, j.lane, j.kind_id
    ) c on c.queue_id = l.queue_id and c.lane = l.account_id and c.kind_id = l.kind_id
    where p_accounts is null or l.account_id = any (p_accounts)
  ) s
  where s.waiting <> s.was_waiting or s.head <> s.was_head or s.open <> s.was_open
$$;

-- The balance in the last line of an account's ledger.
create or replace function penstock._last_balance(p_account bigint) returns bigint
language sql stable parallel safe
as $$
  select coalesce((
    select l.balance_after from penstock.ledger l where l.account_id = p_account
    order by l.id desc limit 1), 0)
$$;
