-- The reconciler: counters, lanes and balances against what they are derived from.

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
      select from penstock.lane l
      where l.queue_id = j.queue_id and l.account_id = j.lane and l.kind_id = j.kind_id)
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
    select j.queue_id, j.lane, j.kind_id, array_agg(j.rank) as ranks
    from penstock.job j
    where j.status = 'queued' and j.lane = any (v_accounts) and not exists (
      select from penstock.lane l
      where l.queue_id = j.queue_id and l.account_id = j.lane and l.kind_id = j.kind_id)
    group by j.queue_id, j.lane, j.kind_id
  loop
    perform penstock._join_lanes(
      array_fill(v_lost.queue_id, array[cardinality(v_lost.ranks)]),
      array_fill(v_lost.lane, array[cardinality(v_lost.ranks)]),
      array_fill(v_lost.kind_id, array[cardinality(v_lost.ranks)]), v_lost.ranks);
    what := 'lane'; subject := format('%s/%s/%s', v_lost.queue_id, v_lost.lane, v_lost.kind_id);
    was := 'none'; now := format('%s waiting', cardinality(v_lost.ranks));
    return next;
  end loop;
  return query
  with sound as materialized (select * from penstock._unsound_lanes(v_accounts))
  update penstock.lane l set waiting = s.waiting, head = s.head, open = s.open
  from sound s
  where l.queue_id = s.queue_id and l.account_id = s.account_id and l.kind_id = s.kind_id
  returning 'lane', format('%s/%s/%s', l.queue_id, l.account_id, l.kind_id),
    format('%s waiting, head %s, open %s', s.was_waiting, s.was_head, s.was_open),
    format('%s waiting, head %s, open %s', s.waiting, s.head, s.open);

  -- The ledger is the truth.
  select array_agg(a.id) into v_accounts from penstock.account a
  where a.balance <> penstock._last_balance(a.id);
  select array_agg(l.id) into v_accounts from (
    select a.id from penstock.account a where a.id = any (v_accounts)
    order by a.id for no key update skip locked
  ) l;
  return query
  with sound as materialized (
    select a.id, a.balance as was, penstock._last_balance(a.id) as n
    from penstock.account a where a.id = any (v_accounts)
  )
  update penstock.account a set balance = s.n from sound s
  where a.id = s.id and s.was <> s.n
  returning 'account.balance', coalesce(a.name, a.id::text), s.was::text, s.n::text;

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
  queue_id integer, account_id bigint, kind_id integer, was_waiting integer, was_head bigint,
  was_open boolean, waiting integer, head bigint, open boolean
)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select s.queue_id, s.account_id, s.kind_id, s.was_waiting, s.was_head, s.was_open, s.waiting,
    s.head, s.open
  from (
    select l.queue_id, l.account_id, l.kind_id, l.waiting as was_waiting, l.head as was_head,
      l.open as was_open, coalesce(c.n, 0)::integer as waiting,
      case when q.ordering = 'fair'
        then case when coalesce(c.n, 0) = 0 then l.head else (
          select max(o.head) from penstock.lane o
          where o.queue_id = l.queue_id and o.account_id = l.account_id and o.waiting > 0) end
        else coalesce(c.first, l.head) end as head,
      case when coalesce(c.n, 0) = 0 then l.open
        when a.concurrency is null or a.running < a.concurrency then true
        else l.open end as open
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

-- What the last line of an account's ledger says.
create or replace function penstock._last_balance(p_account bigint) returns bigint
language sql stable parallel safe
as $$
  select coalesce((
    select l.balance_after from penstock.ledger l where l.account_id = p_account
    order by l.id desc limit 1), 0)
$$;
