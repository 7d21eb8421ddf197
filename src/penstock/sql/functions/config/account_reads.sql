-- Accounts and plans as clients read them. Nothing here decides anything.

create or replace function penstock._find_account(p_name text) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_id bigint;
begin
  select a.id into v_id from penstock.account a where a.name = p_name;
  if not found then
    perform penstock._refuse(404, 'unknown_account',
      format('there is no account %s', coalesce(p_name, 'null')), 'account',
      jsonb_build_object('account', p_name));
  end if;
  return v_id;
end
$$;

create or replace function penstock._account_json(p_account penstock.account) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('id', p_account.name, 'plan', p_account.plan,
    'balance', p_account.balance,
    'running', l.running, 'queued', l.queued,
    'concurrency', p_account.concurrency, 'submitted_last_hour', s.used, 'per_hour', s.per_hour,
    'next_submit_at', penstock._rfc3339(s.next_at),
    'created_at', penstock._rfc3339(p_account.created_at))
  from penstock._submits_of(p_account, penstock.clock()) s
  cross join (
    select count(*) filter (where j.status in ('running', 'awaiting')) as running,
      count(*) filter (where j.status in ('queued', 'scheduled')) as queued
    from penstock.job j where j.account_id = p_account.id and j.account_id <> 0
  ) l
$$;

create or replace function penstock.read_account(p_account text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select penstock._account_json(a) from penstock.account a
  where a.id = penstock._find_account(p_account)
$$;

-- In the order of their names; p_after: the last name of the previous page.
create or replace function penstock.list_accounts(
  p_limit integer default 100, p_after text default null
) returns setof jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform penstock._refuse_odd_limit(p_limit);
  return query
  select penstock._account_json(a) from penstock.account a
  where a.name is not null and (p_after is null or a.name > p_after)
  order by a.name limit p_limit;
end
$$;

create or replace function penstock.list_plans() returns setof jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('name', p.name, 'priority', p.priority, 'concurrency', p.concurrency,
    'per_hour', p.per_hour, 'weight', p.weight, 'first_job', p.first_job,
    'default', p.is_default, 'declared', p.declared, 'overrides', p.overrides,
    'declared_by', p.declared_by,
    'accounts', coalesce(c.accounts, 0))
  from penstock.plan p
  left join (
    select a.plan, count(*) as accounts from penstock.account a group by a.plan
  ) c on c.plan = p.name
  order by p.priority, p.name
$$;
