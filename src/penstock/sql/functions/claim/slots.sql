-- Slots of accounts and queues that attempts hold: locked before the attempts are settled, and
-- freed afterwards.

-- Locks the accounts whose slots or credits these attempts hold (p_accounts; null: read from the
-- jobs), and returns those that were not locked by others. p_wait: how long to wait for each
-- account first. A caller that never waits may find an account locked for seconds, while waiting
-- callers get it in turn.
create or replace function penstock._lock_slots(
  p_jobs uuid[], p_accounts bigint[], p_wait interval default null
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_accounts bigint[] := p_accounts;
  v_timeout text := current_setting('lock_timeout');
begin
  if v_accounts is null then
    select array_agg(h.account_id) into v_accounts from (
      select distinct j.account_id from unnest(p_jobs) u (id) join penstock.job j on j.id = u.id
      where j.slots_held >= 2 or j.reserved > 0
    ) h;
  end if;
  if v_accounts <> '{}' and p_wait > interval '0' then
    begin
      perform set_config('lock_timeout',
        (ceil(extract(epoch from p_wait) * 1000))::integer::text, true);
      perform a.id from penstock.account a where a.id = any (v_accounts)
      order by a.id for no key update; -- guard: waits
      perform set_config('lock_timeout', v_timeout, true);
    exception when lock_not_available then
      null; -- locked for longer: the verdict is busy
    end;
  end if;
  if v_accounts <> '{}' then
    select array_agg(l.id) into v_accounts from (
      select a.id from penstock.account a where a.id = any (v_accounts)
      order by a.id for no key update skip locked -- guard: locked
    ) l;
  end if;
  return v_accounts;
end
$$;

-- Frees slots, one array element per slot: of accounts, then of queues.
create or replace function penstock._free_slots(p_gates integer[], p_accounts bigint[])
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  if p_accounts is not null then
    with freed as (
      update penstock.account a set running = a.running - f.n
      from (select u.id, count(*) as n from unnest(p_accounts) u (id) group by u.id) f
      where a.id = f.id
      returning a.id, a.running, a.concurrency
    )
    update penstock.lane l set open = true,
      head = case when q.ordering = 'fair'
        then greatest(l.head, penstock._fair_floor(l.queue_id)) else l.head end
    from freed a, penstock.queue q
    where l.account_id = a.id and q.id = l.queue_id and not l.open and l.waiting > 0
      and (a.concurrency is null or a.running < a.concurrency); -- guard: slot free
  end if;
  if p_gates is not null then
    update penstock.gate g set running = g.running - f.n
    from (
      select u.id, count(*) as n from unnest(p_gates) u (id) group by u.id order by u.id
    ) f
    where g.queue_id = f.id;
  end if;
end
$$;
