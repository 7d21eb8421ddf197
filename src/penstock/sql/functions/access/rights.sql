-- Who may read what. The role penstock_tenant is for connections on which an app has set the
-- account they belong to (`set local penstock.account = 'u1'`): they see the rows of that account
-- and no other, and write nothing. Without that setting they see no rows. The policies do not bind
-- the owner of the schema, nor the functions here, which run as the owner; any other role that is
-- given SELECT on a table sees no row of it. A caller who can send SQL of its own can set another
-- account, or `reset role` after a role was set: the role guards against a forgotten condition, not
-- against an attacker with SQL access.

-- Called by each `penstock migrate up`. Without the right to create a role it grants nothing, and
-- `penstock doctor` reports that. It writes nothing if all is set up already, because most of these
-- statements stop every other session for a moment. To change a policy, a migration has to drop the
-- old one.
create or replace function penstock.grant_rights() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_tenant constant name := 'penstock_tenant';
  -- The columns of jobs that the views show. Not errors, which may quote anything: see public.sql.
  v_job constant text := 'id, kind_id, queue_id, account_id, topic, batch_id, status, priority, '
    'attempt, failures, created_at, run_at, started_at, stage, progress, payload, metadata, '
    'reserved';
  v_mine constant text := $name$ name = current_setting('penstock.account', true) $name$;
  v_its constant text :=
    format('account_id = (select id from penstock.account where %s)', v_mine);
  v_grant record;
begin
  if to_regrole(v_tenant::text) is null then
    begin
      create role penstock_tenant nologin;
      execute format('grant penstock_tenant to %I', current_user);
    exception
      when insufficient_privilege then
        return false;
      when duplicate_object or unique_violation then
        null; -- another database of this server was migrated at the same moment
    end;
  end if;
  if not has_schema_privilege(v_tenant, 'penstock', 'usage') then
    grant usage on schema penstock to penstock_tenant;
  end if;
  for v_grant in
    select g.relation, g.owned, string_to_array(g.columns, ', ') as columns,
      has_table_privilege(v_tenant, g.relation, 'select') as has_all
    from (values
      ('penstock.job'::regclass, v_its, v_job),
      ('penstock.finished', v_its, v_job || ', finished_at, result'),
      ('penstock.ledger', v_its, null), ('penstock.resolution', v_its, null),
      ('penstock.batch', v_its, null), ('penstock.account', v_mine, null),
      -- For the views; the other columns, which configure them, are not granted.
      ('penstock.kind', null, 'id, name'), ('penstock.queue', null, 'id, name'),
      ('penstock.my_jobs', null, null), ('penstock.my_ledger', null, null),
      ('penstock.my_account', null, null)) g (relation, owned, columns)
  loop
    -- The right to read comes last: until then nothing is readable.
    if v_grant.owned is not null
      and not (select c.relrowsecurity from pg_class c where c.oid = v_grant.relation)
    then
      execute format('alter table %s enable row level security', v_grant.relation);
    end if;
    if v_grant.owned is not null and not exists (
      select from pg_policy p
      where p.polrelid = v_grant.relation and p.polname = 'tenant_reads_own')
    then
      execute format(
        'create policy tenant_reads_own on %s for select to penstock_tenant using (%s)',
        v_grant.relation, v_grant.owned);
    end if;
    if v_grant.columns is null and not v_grant.has_all then
      execute format('grant select on %s to penstock_tenant', v_grant.relation);
    end if;
    continue when v_grant.columns is null;
    if v_grant.has_all and v_grant.owned is not null then
      execute format('revoke select on %s from penstock_tenant', v_grant.relation);
    end if;
    if exists (
      select from unnest(v_grant.columns) c (name)
      where not has_column_privilege(v_tenant, v_grant.relation, c.name, 'select'))
    then
      execute format('grant select (%s) on %s to penstock_tenant',
        array_to_string(v_grant.columns, ', '), v_grant.relation);
    end if;
  end loop;
  if not has_function_privilege(v_tenant, 'penstock.read_my_error(uuid)', 'execute') then
    grant execute on function penstock.read_my_error to penstock_tenant;
  end if;
  return true;
end
$$;

-- The jobs of a tenant's connection, live and finished, in the terms of the API contract.
create or replace view penstock.my_jobs with (security_invoker = true) as
select j.id, k.name as kind, q.name as queue, j.topic, j.batch_id as batch,
  j.status, j.priority, j.attempt, j.failures, j.created_at, j.run_at, j.started_at,
  null::timestamptz as finished_at, j.stage, j.progress, null::jsonb as result,
  case when j.attempt > 0 then penstock.read_my_error(j.id) end as error, j.payload,
  j.metadata, j.reserved, null::bigint as charged, null::bigint as refunded
from penstock.job j join penstock.kind k on k.id = j.kind_id
join penstock.queue q on q.id = j.queue_id
union all
select f.id, k.name, q.name, f.topic, f.batch_id, f.status, f.priority, f.attempt, f.failures,
  f.created_at, f.run_at, f.started_at, f.finished_at, f.stage, f.progress, f.result,
  case when f.status <> 'succeeded' then penstock.read_my_error(f.id) end, f.payload, f.metadata,
  f.reserved, r.charged, r.refunded
from penstock.finished f join penstock.kind k on k.id = f.kind_id
join penstock.queue q on q.id = f.queue_id
left join penstock.resolution r on r.job_id = f.id;

create or replace view penstock.my_ledger with (security_invoker = true) as
select l.id, l.at, l.kind, l.amount, l.job_id as job, l.ref, l.reason, l.balance_after
from penstock.ledger l;

create or replace view penstock.my_account with (security_invoker = true) as
select a.name as id, a.plan, a.balance, a.running, a.created_at from penstock.account a;
