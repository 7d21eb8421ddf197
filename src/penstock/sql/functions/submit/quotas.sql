-- How many jobs an hour a plan allows. The window slides, so that callers do not all submit when an
-- hour begins. A request that is split counts as the jobs it becomes, because each is work. The
-- caller has locked the accounts. Jobs that were not accepted, or had a live twin, do not count.

-- When the first p_number of an account's submits in the last hour will be more than an hour old.
create or replace function penstock._hour_over_at(
  p_account bigint, p_number bigint, p_now timestamptz
) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select min(s.at) + interval '1 hour' from (
    select r.at, sum(r.n) over (order by r.at rows unbounded preceding) as upto
    from penstock.recent_submit r
    where r.account_id = p_account and r.at > p_now - interval '1 hour'
  ) s
  where s.upto >= p_number
$$;

-- Counts jobs, one account per array element, for the accounts whose plan limits them. Refuses all
-- if one account is over its limit.
create or replace function penstock._count_requests(p_accounts bigint[], p_now timestamptz)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_counts integer[];
  v_over record;
  v_next_at timestamptz;
  v_allowed text;
begin
  select array_agg(g.id), array_agg(g.n) into p_accounts, v_counts
  from (select u.id, count(*) as n from unnest(p_accounts) u (id) group by u.id) g
  join penstock.account a on a.id = g.id join penstock.plan p on p.name = a.plan
  where p.per_hour is not null;
  -- An update, not only a lock: a transaction with an old snapshot must fail here instead of
  -- counting too little.
  update penstock.account a set running = a.running where a.id = any (p_accounts);
  delete from penstock.recent_submit r
  where r.account_id = any (p_accounts) and r.at <= p_now - interval '1 hour';
  select a.id, a.name, a.plan, p.per_hour, u.requested, coalesce(r.used, 0) as used into v_over
  from unnest(p_accounts, v_counts) u (id, requested)
  join penstock.account a on a.id = u.id join penstock.plan p on p.name = a.plan
  left join lateral (
    select sum(r.n) as used from penstock.recent_submit r where r.account_id = a.id) r on true
  where u.requested + coalesce(r.used, 0) > p.per_hour -- guard: within the plan
  order by a.id limit 1;
  if found then
    v_next_at := case when v_over.requested <= v_over.per_hour
      then penstock._hour_over_at(v_over.id, v_over.used + v_over.requested - v_over.per_hour,
                                  p_now) end;
    v_allowed := format('plan %s allows %s job%s an hour', v_over.plan, v_over.per_hour,
                        case when v_over.per_hour > 1 then 's' end);
    perform penstock._refuse(429, 'rate_limited',
      case when v_next_at is null then
        format('%s, and this submit has %s', v_allowed, v_over.requested)
      when v_over.requested > 1
        then format('%s, of which account %s has %s left, and this submit has %s; it will be '
                    'accepted at %s', v_allowed, v_over.name,
                    greatest(v_over.per_hour - v_over.used, 0), v_over.requested,
                    penstock._rfc3339(v_next_at))
      else format('%s, and account %s has used them; the next one will be accepted at %s',
                  v_allowed, v_over.name, penstock._rfc3339(v_next_at)) end,
      'account',
      jsonb_strip_nulls(jsonb_build_object('account', v_over.name, 'plan', v_over.plan,
        'per_hour', v_over.per_hour, 'next_at', penstock._rfc3339(v_next_at),
        'retry_after', ceil(extract(epoch from v_next_at - p_now)))),
      case when v_next_at is null then
        format('Submit at most %s at once; a request that is split counts as the jobs it becomes.',
               v_over.per_hour) end);
  end if;
  insert into penstock.recent_submit (account_id, at, n)
  select u.id, p_now, u.n from unnest(p_accounts, v_counts) u (id, n);
end
$$;

-- How many jobs an account has submitted in the last hour, and when it may submit the next one;
-- null: now.
create or replace function penstock._submits_of(
  p_account penstock.account, p_now timestamptz,
  out used bigint, out per_hour integer, out next_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp
  -- A list reads this for many accounts; to plan each read of the history again took milliseconds
  -- (2026-11).
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
  v_from uuid;
begin
  select p.per_hour into per_hour from penstock.plan p where p.name = p_account.plan;
  if per_hour is null then
    -- Without a limit nothing is recorded, so this counts jobs. id_floor is evaluated once here,
    -- instead of once in each partition.
    v_from := penstock.id_floor(p_now - interval '1 hour');
    select (select count(*) from penstock.job j
            where j.account_id = p_account.id and j.account_id <> 0 and j.id >= v_from)
      + (select count(*) from penstock.finished f
         where f.account_id = p_account.id and f.account_id <> 0 and f.id >= v_from)
    into used;
    return;
  end if;
  select coalesce(sum(r.n), 0) into used from penstock.recent_submit r
  where r.account_id = p_account.id and r.at > p_now - interval '1 hour';
  if used >= per_hour then
    next_at := penstock._hour_over_at(p_account.id, used + 1 - per_hour, p_now);
  end if;
end
$$;
