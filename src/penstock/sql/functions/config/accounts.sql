-- Plans, and the accounts that have them. A change of a limit applies at once to waiting jobs:
-- queued jobs of an account that had no limit move into lanes, and closed lanes with free slots are
-- opened. An app's open transaction may hold an account. A caller that changes limits waits two
-- seconds for it and then gives up (lock_timeout), so that no other transaction waits longer behind
-- it.

create or replace function penstock.declare_plan(
  p_name text, p_options jsonb default '{}', p_by text default null, p_in jsonb default null,
  p_instead_of text default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_plan penstock.plan;
begin
  perform penstock._refuse_odd_name(p_name, 'plan');
  perform penstock._read_options('plan', p_options);
  select * into v_plan from penstock.plan where name = p_name;
  if found and v_plan.declared = p_options then
    update penstock.plan set declared_in = p_in
    where name = p_name and p_in <> coalesce(declared_in, 'null')
      and declared_by = p_by; -- guard: own location
    return;
  end if;
  -- The first declared plan is the default until another one is declared so. The lock lets one
  -- transaction at a time decide that.
  perform pg_advisory_xact_lock(hashtextextended('penstock.plan', 0));
  insert into penstock.plan (name, declared, declared_by, created_at)
  values (p_name, p_options, p_by, penstock.clock())
  on conflict (name) do nothing;
  select * into v_plan from penstock.plan where name = p_name for no key update;
  perform penstock._refuse_other_declaration('plan', p_name,
    v_plan.declared, v_plan.declared_by, p_options, p_by, v_plan.declared_in, p_in,
    p_instead_of, 'penstock plans reset ' || p_name);
  update penstock.plan set declared = p_options, declared_by = p_by, declared_in = p_in
  where name = p_name;
  if (p_options ->> 'default')::boolean
    or not exists (select from penstock.plan where is_default)
  then
    update penstock.plan set is_default = false where is_default and name <> p_name;
    update penstock.plan set is_default = true where name = p_name;
  end if;
  perform penstock._enforce_plan(p_name);
end
$$;

create or replace function penstock.edit_plan(p_name text, p_options jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
begin
  perform penstock._read_options('plan', p_options);
  if p_options ? 'default' then
    perform penstock._refuse(422, 'unknown_option',
      'default is not an option of an edit: declare it in the app', 'default');
  end if;
  update penstock.plan set overrides = jsonb_strip_nulls(overrides || p_options)
  where name = p_name;
  perform penstock._enforce_plan(p_name);
end
$$;

-- Drops every override and the name of the declaring app: another app may declare the plan.
create or replace function penstock.reset_plan(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
begin
  update penstock.plan set overrides = '{}', declared_by = null where name = p_name;
  perform penstock._enforce_plan(p_name);
end
$$;

create or replace function penstock._enforce_plan(p_name text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_old penstock.plan;
  v_new penstock.plan;
  v_accounts bigint[];
begin
  select * into v_old from penstock.plan where name = p_name for no key update;
  if not found then
    perform penstock._refuse(404, 'unknown_plan', format('there is no plan %s', p_name), 'plan');
  end if;
  v_new := jsonb_populate_record(v_old,
    penstock._read_options('plan', v_old.declared || v_old.overrides));
  -- The plan's row before its accounts' rows: a transaction that creates an account shares the
  -- plan's.
  update penstock.plan set (priority, concurrency, per_hour, weight, first_job)
    = (v_new.priority, v_new.concurrency, v_new.per_hour, v_new.weight, v_new.first_job)
  where name = p_name;
  if (v_new.concurrency, v_new.weight, v_new.priority, v_new.first_job)
    is distinct from (v_old.concurrency, v_old.weight, v_old.priority, v_old.first_job)
  then
    -- An app may hold an account: if only priorities change, accounts without waiting jobs are not
    -- locked.
    select array_agg(a.id) into v_accounts from (
      select c.id from penstock.account c
      where c.plan = p_name
        and ((v_new.concurrency, v_new.weight) is distinct from (v_old.concurrency, v_old.weight)
          or exists (
            select from penstock.job j
            where j.account_id = c.id and j.account_id <> 0 and not j.priority_given
              and j.status in ('queued', 'scheduled')))
      order by c.id for no key update
    ) a;
    perform penstock._enforce_limits(v_accounts);
  end if;
end
$$;

-- Keeps all queues from starting jobs until the caller commits. A claim under way may have taken a
-- job of these accounts as one that needs no slot, and would start it after the running jobs were
-- counted. The running jobs are locked first: an app's open transaction may hold one (it asked to
-- cancel it), and claims must not wait behind us for that.
create or replace function penstock._stop_claims(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  perform j.id from penstock.job j
  where j.account_id = any (p_accounts) and j.status in ('running', 'awaiting')
  order by j.id for no key update;
  perform penstock._lock_queue_limits(q.id) from (select id from penstock.queue order by id) q;
end
$$;

-- Puts the plans' limits in force for accounts that the caller has locked.
create or replace function penstock._enforce_limits(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_limited bigint[];
begin
  -- Before claims are stopped, so that they are stopped only for a moment.
  perform penstock._enforce_priority(p_accounts);
  select array_agg(a.id) into v_limited
  from penstock.account a join penstock.plan p on p.name = a.plan
  where a.id = any (p_accounts) and a.concurrency is null and p.concurrency is not null;
  if v_limited is not null then
    -- Waiting jobs first, however many there are: claims are stopped only for the rest.
    perform penstock._enlane_accounts(v_limited);
    perform penstock._stop_claims(v_limited);
  end if;
  update penstock.account a set
    concurrency = (select p.concurrency from penstock.plan p where p.name = a.plan),
    weight = coalesce((select p.weight from penstock.plan p where p.name = a.plan), 1),
    limited_at = penstock.clock()
  where a.id = any (p_accounts);
  if v_limited is not null then
    perform penstock._count_running(v_limited);
  end if;
  perform penstock._open_lanes(p_accounts);
end
$$;

-- Gives jobs the priority of their account's plan, and waiting jobs the rank that goes with it.
-- Leaves out jobs whose caller gave a priority, and jobs that are locked at the moment. The rank
-- changes by the difference between the ranks of the two priorities.
create or replace function penstock._enforce_priority(p_accounts bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  update penstock.job j set priority = n.priority, updated_at = penstock.clock(),
    version = j.version + 1,
    rank = j.rank + penstock._rank(n.ordering, n.priority, n.aging_step, j.run_at, 0)
      - penstock._rank(n.ordering, j.priority, n.aging_step, j.run_at, 0)
  from (
    select w.id, q.ordering, q.aging_step, greatest(-1000, least(1000,
      coalesce(p.priority, 0) + k.priority_offset
        + case when w.first_job then coalesce(p.first_job, 0) else 0 end)) as priority
    from (
      select h.id, h.first_job, h.account_id, h.kind_id, h.queue_id from penstock.job h
      where h.account_id = any (p_accounts) and h.account_id <> 0 and not h.priority_given
      order by h.id for no key update skip locked -- guard: not locked
    ) w
    join penstock.account a on a.id = w.account_id left join penstock.plan p on p.name = a.plan
    join penstock.kind k on k.id = w.kind_id join penstock.queue q on q.id = w.queue_id
  ) n
  where j.id = n.id and j.priority <> n.priority;
  update penstock.lane l set head = f.first
  from (
    select j.queue_id, j.lane, j.kind_id, min(j.rank) as first from penstock.job j
    where j.lane = any (p_accounts) and j.status = 'queued'
    group by j.queue_id, j.lane, j.kind_id
  ) f
  join penstock.queue q on q.id = f.queue_id
  where l.queue_id = f.queue_id and l.account_id = f.lane and l.kind_id = f.kind_id
    and l.head <> f.first
    and q.ordering <> 'fair'; -- guard: not its virtual time
end
$$;

-- The plan of that name, or the default one; locked, so that its limits do not change meanwhile.
create or replace function penstock._lock_plan(p_name text) returns penstock.plan
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_plan penstock.plan;
begin
  select * into v_plan from penstock.plan
  where case when p_name is null then is_default else name = p_name end
  for share; -- guard: locked
  if not found and p_name is not null then
    perform penstock._refuse(404, 'unknown_plan', format('there is no plan %s', p_name), 'plan');
  end if;
  return v_plan;
end
$$;

create or replace function penstock.create_account(p_name text, p_plan text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_plan penstock.plan := penstock._lock_plan(p_plan);
  v_id bigint;
begin
  if p_name is null or length(p_name) not between 1 and 200 then
    perform penstock._refuse(422, 'invalid_account',
      'the account must be a text of 1 to 200 characters', 'account');
  end if;
  insert into penstock.account (name, plan, concurrency, weight, created_at, limited_at)
  values (p_name, v_plan.name, v_plan.concurrency, coalesce(v_plan.weight, 1), penstock.clock(),
          penstock.clock())
  on conflict (name) do nothing
  returning id into v_id;
  if v_id is null then
    perform penstock._refuse(409, 'account_exists',
      format('account %s exists already', p_name), 'account');
  end if;
  return v_id;
end
$$;

create or replace function penstock.set_account_plan(p_account text, p_plan text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_plan penstock.plan := penstock._lock_plan(p_plan);
  v_id bigint := penstock._find_account(p_account);
begin
  update penstock.account set plan = v_plan.name where id = v_id and name = p_account;
  perform penstock._enforce_limits(array[v_id]);
end
$$;
