-- Make and drop partitions of history, which holds finished jobs and settled attempts.
--
-- `finished` is split by retention class, each class by ranges of the time-ordered id; `attempt`,
-- `step` and `chunk` by ranges of the job's id. Partitions are made days ahead. A partition is
-- dropped when nothing in it is younger than the retention. Ids outside every range (a job delayed
-- for longer than its class is kept) go to a default partition, from which rows are deleted in
-- bounded steps. Partitions are made with CREATE + ATTACH, which locks neither the parent nor its
-- other partitions against writers (only the default one). DROP does lock them, so it comes last in
-- its transaction and gives up at once if it has to wait; the next upkeep tries again.

-- The tables that are split into ranges: the column of the id, the days of a partition, and how
-- long finished jobs are kept (null: for ever; the other tables follow their jobs).
create or replace function penstock._partitioned()
returns table (name text, key text, days integer, kept interval, is_finished boolean)
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select 'finished_' || c.id, 'id', c.partition_days, c.kept, true from penstock.retention_class c
  union all
  select t.name, 'job_id', 7, null, false from unnest(array['attempt', 'step', 'chunk']) t (name)
  order by 1
$$;

-- The beginning of the first partition that upkeep keeps: yesterday's, since a job may finish after
-- midnight.
create or replace function penstock._first_range(p_days integer, p_now timestamptz)
returns timestamptz
language sql stable parallel safe
as $$
  select date_bin(make_interval(days => p_days), p_now - interval '1 day', '2024-01-01 00:00+00')
$$;

-- Makes the missing partitions of one parent, from yesterday to as far ahead as the setting
-- partitions_ahead says (14 days by default); returns how many were missing.
create or replace function penstock._ensure_ranges(
  p_parent text, p_key text, p_days integer
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_step interval := make_interval(days => p_days);
  v_until timestamptz := penstock.clock() + (select s.partitions_ahead from penstock.setting s);
  v_start timestamptz := penstock._first_range(p_days, penstock.clock());
  v_name text;
  v_low uuid;
  v_high uuid;
  v_made integer := 0;
begin
  while v_start < v_until loop
    v_name := p_parent || to_char(v_start at time zone 'UTC', '_YYYYMMDD');
    v_low := penstock.id_floor(v_start);
    v_high := penstock.id_floor(v_start + v_step);
    if to_regclass(format('penstock.%I', v_name)) is null then
      execute format('create table penstock.%I (like penstock.%I including all)', v_name, p_parent);
      -- If upkeep did not run for weeks, rows of this range are in the default partition.
      execute format(
        'with moved as (delete from penstock.%I where %I >= %L and %I < %L returning *) '
        'insert into penstock.%I select * from moved',
        p_parent || '_rest', p_key, v_low, p_key, v_high, v_name);
      execute format('alter table penstock.%I attach partition penstock.%I '
                     'for values from (%L) to (%L)', p_parent, v_name, v_low, v_high);
      v_made := v_made + 1;
    end if;
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
  insert into penstock.retention_class (kept, partition_days)
  values (p_kept, case when p_kept <= interval '14 days' then 1
                       when p_kept <= interval '400 days' then 7 else 28 end)
  on conflict (kept) do nothing returning * into v_class;
  if not found then -- another app has declared the same new retention at the same time
    return (select c.id from penstock.retention_class c where c.kept is not distinct from p_kept);
  end if;
  execute format('create table penstock.%I (like penstock.finished including all) '
                 'partition by range (id)', 'finished_' || v_class.id);
  execute format('create table penstock.%I partition of penstock.%I default',
                 'finished_' || v_class.id || '_rest', 'finished_' || v_class.id);
  perform penstock._ensure_ranges('finished_' || v_class.id, 'id', v_class.partition_days);
  -- Not PARTITION OF: it would wait for every reader of history, and finishes would wait for it.
  execute format('alter table penstock.finished attach partition penstock.%I for values in (%s)',
                 'finished_' || v_class.id, v_class.id);
  return v_class.id;
end
$$;

-- Makes partitions for the coming days; returns how many. Upkeep calls it. While a long transaction
-- (a backup) reads history, a partition is left to a later pass: there are two weeks for it.
create or replace function penstock.make_partitions() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s'
as $$
declare
  v_parent record;
  v_made integer := 0;
begin
  for v_parent in select * from penstock._partitioned() loop
    begin
      v_made := v_made + penstock._ensure_ranges(v_parent.name, v_parent.key, v_parent.days);
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

-- Deletes old rows, at most p_rows of each table. $1: now, $2: the shortest retention.
create or replace function penstock._prune_rows(p_now timestamptz, p_rows integer)
returns table (what text, rows bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_condition text;
  v_shortest interval := (select min(c.kept) from penstock.retention_class c);
begin
  for what, v_condition in
    select p.name || '_rest', case when p.is_finished
      then format('r.finished_at <= $1 - %L::interval', p.kept)
      else 'penstock._status_of(r.job_id) is null' end
    from penstock._partitioned() p where p.kept is not null or not p.is_finished
    union all
    values
      -- These are deleted with their job, though other jobs of its week are kept longer. Only rows
      -- older than the shortest retention are read: nearly all of them can be deleted.
      ('step', 'r.job_id < penstock.id_floor($1 - $2) and penstock._status_of(r.job_id) is null'),
      ('chunk', 'r.job_id < penstock.id_floor($1 - $2) and penstock._status_of(r.job_id) is null'),
      ('pending_on_finish', $c$r.next_at < $1 - interval '1 day'
        and penstock._status_of(r.job_id) is null$c$),
      -- None of its jobs is kept.
      ('batch', 'r.created_at < $1 - $2
        and not exists (select from penstock.job j where j.batch_id = r.id)
        and not exists (select from penstock.finished f where f.batch_id = r.id)'),
      ('recent_submit', $c$r.at <= $1 - interval '1 hour'$c$),
      ('worker', $c$r.cleared_at < $1 - interval '30 days'$c$),
      ('blocked_loop', $c$r.began_at < $1 - interval '30 days'$c$),
      ('late_result', $c$r.arrived_at < $1 - interval '90 days'$c$),
      ('delivery', $c$r.next_at is null and r.created_at < $1 - interval '7 days'
        and coalesce(r.delivered_at + interval '7 days', r.last_at + interval '30 days',
          r.created_at) < $1$c$),
      -- A signature of this age is refused anyway.
      ('seen_callback', $c$r.seen_at < $1 - interval '1 hour'$c$),
      -- Their cookies have expired by any server's clock.
      ('closed_session', $c$r.expires_at < $1 - interval '1 day'$c$),
      ('alert', $c$r.cleared_at < $1 - interval '90 days'$c$),
      ('idempotency', 'r.created_at < $1 - (select s.idempotency_kept from penstock.setting s)')
  loop
    execute format(
      'delete from penstock.%1$I t using (
         select r.tableoid, r.ctid from penstock.%1$I r where %2$s limit $3
         for update skip locked) g
       where t.tableoid = g.tableoid and t.ctid = g.ctid', what, v_condition)
    using p_now, v_shortest, p_rows;
    get diagnostics rows = row_count;
    return next;
  end loop;
end
$$;

-- The oldest partition of each parent that retention no longer keeps.
create or replace function penstock._droppable(p_now timestamptz) returns setof text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_parent record;
  v_part record;
  v_needed boolean;
begin
  for v_parent in
    select * from penstock._partitioned() p where p.kept is not null or not p.is_finished
  loop
    for v_part in
      select * from penstock._ranges(v_parent.name)
      where high <= penstock.id_floor(least(p_now - v_parent.kept,
        penstock._first_range(v_parent.days, p_now)))
    loop
      if v_parent.is_finished then
        execute format('select exists (select from penstock.%I where finished_at > %L)',
                       v_part.name, penstock._rfc3339(p_now - v_parent.kept)) into v_needed;
      else
        -- Rows that belong to jobs stay while any job, live or finished, has an id in their range.
        v_needed := exists (
            select from penstock.job j where j.id >= v_part.low and j.id < v_part.high)
          or exists (
            select from penstock.finished f where f.id >= v_part.low and f.id < v_part.high);
      end if;
      if not v_needed then
        return next v_part.name;
        exit;
      end if;
    end loop;
  end loop;
end
$$;

-- Removes history that retention no longer keeps; returns the dropped partitions (rows is null) and
-- the tables with deleted rows. At most one partition per parent and call. Drops come last: their
-- locks last until the commit.
create or replace function penstock.prune_history(p_rows integer default 5000)
returns table (what text, rows bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
as $$
declare
  v_now timestamptz := penstock.clock();
  v_names text[];
begin
  -- Two concurrent calls would both have read the partition that both want to drop.
  if not pg_try_advisory_xact_lock(1886413173, 2) then -- guard: alone
    return;
  end if;
  return query select r.what, r.rows from penstock._prune_rows(v_now, p_rows) r where r.rows > 0;
  select array_agg(n) into v_names from penstock._droppable(v_now) n;
  foreach what in array coalesce(v_names, '{}') loop
    begin
      execute format('drop table penstock.%I', what);
      rows := null;
      return next;
    exception when lock_not_available then
      null;
    end;
  end loop;
end
$$;
