-- Statistics for the planner of tables that grow from nearly none to thousands of rows in a second.
--
-- A session keeps a plan until the statistics of its tables change, and autovacuum checks them once
-- a minute. A plan that was made with three jobs in the table read every job, at each claim and at
-- each finish: a burst after a quiet time ran at 3,400 jobs a second instead of 52,000 (2026-11).
-- With statistics of a hundred rows the planner uses the keys, which is right for any number. So
-- measure_waits, about once a second, refreshes the statistics if they show few rows and there are
-- many. (To find a single row by its key, the planner would read a few pages from end to end even
-- then: hence `enable_seqscan = off` elsewhere.)

create or replace function penstock._has_few_by_statistics(p_table regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$ select c.reltuples < 200 from pg_class c where c.oid = p_table $$;

-- Refreshes statistics that show too few rows; returns whether there were any. Reads one column of
-- each table, because only the number of rows matters. Does not disturb an autovacuum that is at
-- work. For callers with the owner's rights.
create or replace function penstock._refresh_statistics() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
  set default_statistics_target = 10
as $$
declare
  v_table regclass;
  v_column text;
  v_many boolean;
  v_any boolean := false;
begin
  for v_table, v_column in values ('penstock.job'::regclass, 'status'),
    ('penstock.account', 'concurrency'), ('penstock.lane', 'queue_id')
  loop
    continue when not penstock._has_few_by_statistics(v_table);
    execute format('select exists (select from %s offset 1000)', v_table) into v_many;
    if v_many then
      -- Not `skip_locked`, which would write a warning to the server's log each time.
      execute format('lock table %s in share update exclusive mode nowait', v_table);
      execute format('analyze %s (%I)', v_table, v_column);
      v_any := true;
    end if;
  end loop;
  return v_any;
exception when lock_not_available then
  return false;
end
$$;
