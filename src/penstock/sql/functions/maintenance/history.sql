-- Where finished jobs and ended starts are kept, and how they leave: by dropping partitions.
--
-- `finished` is split by retention class, each class by ranges of the time-ordered id; `attempt`,
-- `step` and `chunk` by ranges of the job's id. Partitions are made days ahead. One is dropped
-- when nothing in it is younger than the retention. Ids outside every range (a job delayed for
-- longer than its class is kept) go to a default partition, from which rows are deleted in bounded
-- steps.
-- Making uses CREATE + ATTACH, which locks neither the parent nor its other partitions against
-- writers (only the default one); DROP does, so it comes last in its transaction, gives up at once
-- when somebody is in the way, and is tried again by the next upkeep.

create or replace function penstock._ensure_range(
  p_parent text, p_key text, p_start timestamptz, p_end timestamptz
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := p_parent || to_char(p_start at time zone 'UTC', '_YYYYMMDD');
  v_low uuid := penstock.id_floor(p_start);
  v_high uuid := penstock.id_floor(p_end);
begin
  if to_regclass(format('penstock.%I', v_name)) is not null then
    return false;
  end if;
  execute format('create table penstock.%I (like penstock.%I including all)', v_name, p_parent);
  -- Where upkeep was away for weeks, rows of this range wait in the default partition.
  execute format('with moved as (delete from penstock.%I where %I >= %L and %I < %L returning *) '
                 'insert into penstock.%I select * from moved',
                 p_parent || '_rest', p_key, v_low, p_key, v_high, v_name);
  execute format('alter table penstock.%I attach partition penstock.%I '
                 'for values from (%L) to (%L)', p_parent, v_name, v_low, v_high);
  return true;
end
$$;

-- Where the partitions that upkeep keeps begin: yesterday's, since a job may end after midnight.
create or replace function penstock._first_range(p_days integer, p_now timestamptz)
returns timestamptz
language sql stable parallel safe
as $$
  select date_bin(make_interval(days => p_days), p_now - interval '1 day', '2024-01-01 00:00+00')
$$;

-- The partitions of one parent from yesterday to as far ahead as is set, 14 days unless said.
create or replace function penstock._ensure_ranges(
  p_parent text, p_key text, p_days integer
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_step interval := make_interval(days => p_days);
  v_now timestamptz := penstock.clock();
  v_start timestamptz := penstock._first_range(p_days, v_now);
  v_ahead interval := (select s.partitions_ahead from penstock.setting s);
  v_made integer := 0;
begin
  while v_start < v_now + v_ahead loop
    v_made := v_made
      + penstock._ensure_range(p_parent, p_key, v_start, v_start + v_step)::integer;
    v_start := v_start + v_step;
  end loop;
  return v_made;
end
$$;

create or replace function penstock._ensure_class(p_kept interval) returns smallint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_class penstock.retention_class;
begin
  select * into v_class from penstock.retention_class c where c.kept is not distinct from p_kept;
  if found then
    return v_class.id;
  end if;
  -- One maker at a time: two apps may declare the same new retention at the same moment.
  perform pg_advisory_xact_lock(hashtextextended('penstock.retention_class', 0));
  select * into v_class from penstock.retention_class c where c.kept is not distinct from p_kept;
  if found then
    return v_class.id;
  end if;
  insert into penstock.retention_class (kept, partition_days)
  values (p_kept, case when p_kept <= interval '14 days' then 1
                       when p_kept <= interval '400 days' then 7 else 28 end)
  returning * into v_class;
  execute format('create table penstock.%I (like penstock.finished including all) '
                 'partition by range (id)', 'finished_' || v_class.id);
  execute format('create table penstock.%I partition of penstock.%I default',
                 'finished_' || v_class.id || '_rest', 'finished_' || v_class.id);
  perform penstock._ensure_ranges('finished_' || v_class.id, 'id', v_class.partition_days);
  -- Not PARTITION OF, which would wait for every reader of history, and finishes behind it.
  execute format('alter table penstock.finished attach partition penstock.%I for values in (%s)',
                 'finished_' || v_class.id, v_class.id);
  return v_class.id;
end
$$;

-- Partitions for the coming days. Called by upkeep; returns how many it made. Where someone reads
-- history for long (a backup), it is left to a later pass: there are two weeks for it.
create or replace function penstock.make_partitions() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
  v_parent record;
  v_made integer := 0;
begin
  for v_parent in
    select 'finished_' || c.id as name, 'id' as key, c.partition_days
    from penstock.retention_class c
    union all
    select t.name, 'job_id', 7 from unnest(array['attempt', 'step', 'chunk']) t (name)
  loop
    begin
      v_made := v_made
        + penstock._ensure_ranges(v_parent.name, v_parent.key, v_parent.partition_days);
    exception when lock_not_available then
      null;
    end;
  end loop;
  return v_made;
end
$$;

-- The range partitions of a parent with their bounds, oldest first.
create or replace function penstock._ranges(p_parent text)
returns table (name text, low uuid, high uuid)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select c.relname::text, (b.bounds)[1]::uuid, (b.bounds)[2]::uuid
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  cross join lateral (
    select regexp_match(
      pg_get_expr(c.relpartbound, c.oid), '[(]''([^'']+)''[)] TO [(]''([^'']+)''[)]')
  ) b (bounds)
  where i.inhparent = to_regclass(format('penstock.%I', p_parent)) and b.bounds is not null
  order by 2
$$;

create or replace function penstock._drop_range(p_name text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  execute format('drop table penstock.%I', p_name);
  return true;
exception when lock_not_available then
  return false;
end
$$;

-- Rows that are deleted one by one, in bounded steps.
create or replace function penstock._prune_rows(p_now timestamptz, p_rows integer)
returns table (what text, rows bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_class penstock.retention_class;
begin
  for v_class in select * from penstock.retention_class where kept is not null order by id loop
    what := 'finished_' || v_class.id || '_rest';
    execute format(
      'delete from penstock.%I where ctid = any (array(
         select ctid from penstock.%I where finished_at <= %L limit %s))',
      what, what, penstock._rfc3339(p_now - v_class.kept), p_rows);
    get diagnostics rows = row_count;
    return next;
  end loop;

  foreach what in array array['attempt_rest', 'step_rest', 'chunk_rest'] loop
    execute format(
      'delete from penstock.%I where ctid = any (array(
         select r.ctid from penstock.%I r where penstock._status_of(r.job_id) is null limit %s))',
      what, what, p_rows);
    get diagnostics rows = row_count;
    return next;
  end loop;

  -- What starts kept and emitted goes with its job, though others of its week are kept longer. Only
  -- what is older than the shortest retention is looked at: nearly all of it can go.
  foreach what in array array['step', 'chunk'] loop
    execute format(
      'delete from penstock.%I t using (
         select r.tableoid, r.ctid from penstock.%I r
         where r.job_id < %L and penstock._status_of(r.job_id) is null limit %s) g
       where t.tableoid = g.tableoid and t.ctid = g.ctid',
      what, what,
      penstock.id_floor(p_now - (select min(c.kept) from penstock.retention_class c)), p_rows);
    get diagnostics rows = row_count;
    return next;
  end loop;

  what := 'hook'; -- whose job is no longer kept
  delete from penstock.hook h
  where h.job_id = any (array(
    select k.job_id from penstock.hook k
    where k.next_at < p_now - interval '1 day' and penstock._status_of(k.job_id) is null
    limit p_rows));
  get diagnostics rows = row_count;
  return next;

  what := 'batch'; -- none of its jobs is kept
  delete from penstock.batch b
  where b.id = any (array(
    select o.id from penstock.batch o
    where o.created_at < p_now - (select min(c.kept) from penstock.retention_class c)
      and not exists (select from penstock.job j where j.batch_id = o.id)
      and not exists (select from penstock.finished f where f.batch_id = o.id)
    limit p_rows));
  get diagnostics rows = row_count;
  return next;

  what := 'recent_submit'; -- of accounts that have not come back
  delete from penstock.recent_submit r
  where r.ctid = any (array(
    select o.ctid from penstock.recent_submit o where o.at <= p_now - interval '1 hour'
    limit p_rows for update skip locked));
  get diagnostics rows = row_count;
  return next;

  what := 'worker'; -- gone, and done with, for a month
  delete from penstock.worker w
  where w.id = any (array(
    select k.id from penstock.worker k
    where k.cleared_at < p_now - interval '30 days' limit p_rows));
  get diagnostics rows = row_count;
  return next;

  what := 'blocked_loop'; -- over for a month
  delete from penstock.blocked_loop b
  where b.ctid = any (array(
    select k.ctid from penstock.blocked_loop k
    where k.began_at < p_now - interval '30 days' limit p_rows for update skip locked));
  get diagnostics rows = row_count;
  return next;

  what := 'orphan';
  delete from penstock.orphan o
  where o.id = any (array(
    select k.id from penstock.orphan k where k.arrived_at < p_now - interval '90 days'
    order by k.arrived_at limit p_rows));
  get diagnostics rows = row_count;
  return next;

  return query select o.what, o.rows from penstock._prune_outside(p_now, p_rows) o;

  what := 'alert'; -- long over
  delete from penstock.alert a
  where a.id = any (array(
    select k.id from penstock.alert k where k.cleared_at < p_now - interval '90 days'
    limit p_rows));
  get diagnostics rows = row_count;
  return next;

  what := 'idempotency';
  delete from penstock.idempotency i
  where i.ctid = any (array(
    select k.ctid from penstock.idempotency k
    where k.created_at < p_now - (select s.idempotency_kept from penstock.setting s)
    limit p_rows));
  get diagnostics rows = row_count;
  return next;
end
$$;

-- The oldest partition of each parent that retention no longer keeps.
create or replace function penstock._droppable(p_now timestamptz) returns setof text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_class penstock.retention_class;
  v_parent text;
  v_part record;
  v_young boolean;
begin
  for v_class in select * from penstock.retention_class where kept is not null order by id loop
    for v_part in
      select * from penstock._ranges('finished_' || v_class.id)
      where high <= penstock.id_floor(least(p_now - v_class.kept,
        penstock._first_range(v_class.partition_days, p_now)))
    loop
      execute format('select exists (select from penstock.%I where finished_at > %L)',
                     v_part.name, penstock._rfc3339(p_now - v_class.kept)) into v_young;
      if not v_young then
        return next v_part.name;
        exit;
      end if;
    end loop;
  end loop;

  -- What belongs to jobs lives as long as any job, live or kept, has an id in its range.
  foreach v_parent in array array['attempt', 'step', 'chunk'] loop
    for v_part in
      select * from penstock._ranges(v_parent)
      where high <= penstock.id_floor(penstock._first_range(7, p_now))
    loop
      if not exists (select from penstock.job j where j.id >= v_part.low and j.id < v_part.high)
        and not exists (
          select from penstock.finished f where f.id >= v_part.low and f.id < v_part.high)
      then
        return next v_part.name;
        exit;
      end if;
    end loop;
  end loop;
end
$$;

-- Removes what retention no longer keeps; returns what was dropped (rows is null) or deleted. One
-- partition at most per parent and call. Drops come last: their locks last until the commit.
create or replace function penstock.prune_history(p_rows integer default 5000)
returns table (what text, rows bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
as $$
declare
  v_now timestamptz := penstock.clock();
  v_names text[];
begin
  -- Two of them have both read what both want to drop.
  if not pg_try_advisory_xact_lock(1886413173, 2) then -- guard: alone
    return;
  end if;
  return query select r.what, r.rows from penstock._prune_rows(v_now, p_rows) r where r.rows > 0;
  select array_agg(n) into v_names from penstock._droppable(v_now) n;
  foreach what in array coalesce(v_names, '{}') loop
    if penstock._drop_range(what) then
      rows := null;
      return next;
    end if;
  end loop;
end
$$;
