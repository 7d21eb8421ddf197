-- What the planner is told of tables that go from next to nothing to thousands within a second.
--
-- A session keeps a plan until the figures of its tables change, and autovacuum looks once a
-- minute. What was planned while three jobs were there read every job, at each claim and at each
-- end: a burst after a quiet time ran at 3,400 jobs a second instead of 52,000 (2026-11). Told of a
-- hundred rows the planner goes by the keys, which is right for any number. So measure_waits, about
-- once a second, sees to it that it is told, where it knows of few and there are many. (A single
-- row that is looked for by its key would be found by reading a few pages from end to end even
-- then: hence `enable_seqscan = off` elsewhere.)

create or replace function penstock._is_told_of_few(p_table regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$ select c.reltuples < 200 from pg_class c where c.oid = p_table $$;

-- Whether there was anything to tell. One column of each: what counts is how many rows there are.
-- Where autovacuum is at it, it is not disturbed: it will tell. For who has the owner's rights.
create or replace function penstock._refresh_statistics() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
  set default_statistics_target = 10
as $$
declare
  v_any boolean := false;
begin
  if penstock._is_told_of_few('penstock.job')
    and exists (select from penstock.job offset 1000)
  then
    -- Not `skip_locked`, which would leave a warning in the server's log each time.
    lock table penstock.job in share update exclusive mode nowait;
    analyze penstock.job (status);
    v_any := true;
  end if;
  if penstock._is_told_of_few('penstock.account')
    and exists (select from penstock.account offset 1000)
  then
    lock table penstock.account in share update exclusive mode nowait;
    analyze penstock.account (concurrency);
    v_any := true;
  end if;
  if penstock._is_told_of_few('penstock.lane') and exists (select from penstock.lane offset 1000)
  then
    lock table penstock.lane in share update exclusive mode nowait;
    analyze penstock.lane (queue_id);
    v_any := true;
  end if;
  return v_any;
exception when lock_not_available then
  return false;
end
$$;
