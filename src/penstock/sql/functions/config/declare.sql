-- Queues and kinds: what code and TOML declare, what an operator overrides, what is in force.
--
-- An app declares them each time it starts; an edit at run time is an override that stays in force
-- until reset. If two apps declare one thing differently, the error names both.
-- Only this file writes the columns in force, from declared || overrides.

-- Reads '500/min' or '10/s': how many attempts may start in which period.
create or replace function penstock._parse_rate(
  p_rate jsonb, out rate_count integer, out rate_period interval
)
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[];
begin
  if p_rate is null or p_rate = 'null' then
    return;
  end if;
  v_parts := regexp_match(
    p_rate #>> '{}',
    '^[[:space:]]*([1-9][0-9]{0,8})[[:space:]]*/[[:space:]]*'
    '(s|sec|min|m|h|hour|d|day)[[:space:]]*$');
  if v_parts is null then
    perform penstock._refuse(422, 'invalid_option',
      format('rate must look like "500/min" (per s, min, h or d), not %s', p_rate), 'rate');
  end if;
  rate_count := v_parts[1];
  rate_period := case left(v_parts[2], 1)
    when 's' then interval '1 second' when 'm' then interval '1 minute'
    when 'h' then interval '1 hour' else interval '1 day' end;
  -- With a higher rate the time between two attempts would not be a whole microsecond.
  if rate_count > 1000000 * extract(epoch from rate_period) then
    perform penstock._refuse(422, 'invalid_option',
      format('rate must be at most 1000000/s, not %s', p_rate), 'rate');
  end if;
end
$$;

-- Puts declared || overrides in force. The caller holds the queue's advisory lock: no claim is
-- under way, so a limit that begins now counts all running jobs.
create or replace function penstock._enforce_queue(p_queue integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  v_old penstock.queue;
  v_new penstock.queue;
  v_values jsonb;
begin
  select * into v_old from penstock.queue where id = p_queue for no key update;
  v_values := penstock._read_options('queue', v_old.declared || v_old.overrides);
  v_new := jsonb_populate_record(v_old, v_values);
  v_new.stuck_after :=
    coalesce(v_new.stuck_after, greatest(interval '5 minutes', v_new.timeout));
  select r.rate_count, r.rate_period into v_new.rate_count, v_new.rate_period
  from penstock._parse_rate(v_values -> 'rate') r;
  if v_new.rate_count is not null then
    -- Without the option, as many attempts may start at once as the rate allows in one second.
    v_new.rate_burst := coalesce(v_new.rate_burst, greatest(1,
      ceil(v_new.rate_count / extract(epoch from v_new.rate_period))::integer));
    if extract(epoch from v_new.rate_period) / v_new.rate_count * v_new.rate_burst
      > 3650 * 86400.0
    then
      perform penstock._refuse(422, 'invalid_option',
        'burst must be at most what the rate gives in ten years', 'burst');
    end if;
  elsif v_new.rate_burst is not null then
    perform penstock._refuse(422, 'invalid_option', 'burst needs a rate', 'burst');
  end if;
  if v_new.ordering <> v_old.ordering then
    -- With this lock, no submit is under way that has read the old order.
    perform pg_advisory_xact_lock(1886413172, p_queue);
    if exists (select from penstock.job j where j.queue_id = p_queue) then
      perform penstock._refuse(409, 'queue_in_use',
        format('the order of queue %s cannot change from %s to %s while it has live jobs',
               v_old.name, v_old.ordering, v_new.ordering), 'order',
        p_hint => 'Let it drain, or declare a new queue.');
    end if;
  end if;

  update penstock.queue q set (concurrency, rate_count, rate_period, rate_burst, ordering,
      aging_step, timeout, stale_after, stuck_after, max_attempts, backoff, backoff_delay,
      backoff_max, recovery, local_only, drive, succeeded_class, failed_class, changed_at)
    = (v_new.concurrency, v_new.rate_count, v_new.rate_period, v_new.rate_burst, v_new.ordering,
      v_new.aging_step, v_new.timeout, v_new.stale_after, v_new.stuck_after, v_new.max_attempts,
      v_new.backoff, v_new.backoff_delay, v_new.backoff_max, v_new.recovery, v_new.local_only,
      v_new.drive, penstock._ensure_class((v_values ->> 'retention')::interval),
      penstock._ensure_class((v_values ->> 'retention_failed')::interval), penstock.clock())
  where q.id = p_queue;

  if v_new.rate_count is not null then
    -- The old rate may have been slower and have put the next attempt off until tomorrow; of the
    -- new rate, at most a whole burst counts as used.
    update penstock.gate g set rate_next_at = least(g.rate_next_at,
      penstock.clock() + v_new.rate_period / v_new.rate_count * v_new.rate_burst)
    where g.queue_id = p_queue;
  end if;
  -- A queue counts its running jobs only while it has a limit; with the first one it begins to
  -- count.
  if v_old.concurrency is null and v_old.rate_count is null
    and (v_new.concurrency is not null or v_new.rate_count is not null)
  then
    -- The gate's row first: a finish that still releases a slot has then committed.
    perform from penstock.gate g where g.queue_id = p_queue for no key update;
    update penstock.job j set slots_held = j.slots_held | 1
    where j.queue_id = p_queue and j.deadline_at is not null and j.slots_held & 1 = 0;
    update penstock.gate g set running = (
      select count(*) from penstock.job j where j.queue_id = p_queue and j.slots_held & 1 = 1)
    where g.queue_id = p_queue;
  end if;
end
$$;

-- Claims share this lock while they read a queue's limits; a change of the limits takes it alone.
create or replace function penstock._lock_queue_limits(p_queue integer) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$ select pg_advisory_xact_lock(1886413171, p_queue) $$;

-- The same, before p_options are put in force. If they bring the queue's first limit, its running
-- jobs have to be counted. They are locked first, in the order of ids as a finish does: an app's
-- open transaction may hold one (it asked to cancel it), and claims must not wait behind us for
-- that. The caller gives up after two seconds (lock_timeout), so it does not wait for long either.
create or replace function penstock._stop_queue(p_queue integer, p_options jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(p_options ->> 'concurrency', p_options ->> 'rate') is not null then
    perform j.id from penstock.job j
    where j.queue_id = p_queue and j.deadline_at is not null and j.slots_held & 1 = 0
      and exists (select from penstock.queue q where q.id = p_queue
                    and q.concurrency is null and q.rate_count is null)
    order by j.id for no key update of j;
  end if;
  perform penstock._lock_queue_limits(p_queue);
end
$$;

create or replace function penstock._find_queue(p_name text) returns penstock.queue
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue;
begin
  select * into v_queue from penstock.queue where name = p_name;
  if not found then
    perform penstock._refuse(404, 'unknown_queue', format('there is no queue %s', p_name), 'queue',
      jsonb_build_object('queue', p_name));
  end if;
  return v_queue;
end
$$;

-- Which app has declared a queue, kind or plan, and where, for messages.
create or replace function penstock._declarer(p_by text, p_in jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select coalesce(p_by, 'an unnamed app') || coalesce(
    ' at ' || (p_in ->> 'file') || coalesce(':' || (p_in ->> 'line'), ''), '')
$$;

-- Refuses a declaration that differs from that of another app. p_instead_of: an app that, as the
-- caller has found, declares it no longer, because the declaration was moved.
create or replace function penstock._refuse_other_declaration(
  p_what text, p_name text, p_old jsonb, p_old_by text, p_new jsonb, p_new_by text,
  p_old_in jsonb, p_new_in jsonb, p_instead_of text, p_reset text
) returns void
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select penstock._refuse(409, 'declared_differently',
    format('%s %s is declared differently by %s (%s) and by %s (%s)', p_what, p_name,
           penstock._declarer(p_old_by, p_old_in), p_old,
           penstock._declarer(p_new_by, p_new_in), p_new), p_what,
    p_hint => format(
      'Make both declarations equal, or rename one. If the first is gone or was moved, `%s` lets '
      'the next app that starts declare it. All programs of one app use one name: '
      'Penstock(name="%s").', p_reset, p_old_by))
  -- Any app may declare what has no declaring app: it was unnamed, or a reset removed it.
  where p_old_by <> coalesce(p_new_by, '') and p_old <> p_new
    and p_old_by is distinct from p_instead_of -- guard: moved by name
$$;

create or replace function penstock.declare_queue(
  p_name text, p_options jsonb default '{}', p_by text default null, p_in jsonb default null,
  p_instead_of text default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue;
  v_class smallint;
begin
  perform penstock._refuse_odd_name(p_name, 'queue');
  perform penstock._read_options('queue', p_options);
  select * into v_queue from penstock.queue where name = p_name;
  if found and v_queue.declared = p_options then
    update penstock.queue set declared_in = p_in
    where id = v_queue.id and p_in <> coalesce(declared_in, 'null')
      and declared_by = p_by; -- guard: own location
    return v_queue.id;
  end if;
  if v_queue.id is null then
    v_class := penstock._ensure_class('7 days');
    insert into penstock.queue (name, declared, declared_by, succeeded_class, failed_class,
      created_at, changed_at)
    values (p_name, p_options, p_by, v_class, v_class, penstock.clock(), penstock.clock())
    on conflict (name) do nothing;
  end if;
  -- The limits' lock before the row's, as edit_queue takes them.
  perform penstock._stop_queue(q.id, p_options) from penstock.queue q where q.name = p_name;
  select * into v_queue from penstock.queue where name = p_name for no key update;
  insert into penstock.gate (queue_id) values (v_queue.id) on conflict do nothing;
  insert into penstock.circuit (queue_id) values (v_queue.id) on conflict do nothing;
  perform penstock._refuse_other_declaration('queue', p_name,
    v_queue.declared, v_queue.declared_by, p_options, p_by, v_queue.declared_in, p_in,
    p_instead_of, 'penstock queues reset ' || p_name);
  update penstock.queue set declared = p_options, declared_by = p_by, declared_in = p_in
  where id = v_queue.id;
  perform penstock._enforce_queue(v_queue.id);
  return v_queue.id;
end
$$;

-- Overrides options at run time; an option set to null returns to what is declared.
create or replace function penstock.edit_queue(p_name text, p_options jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
begin
  perform penstock._read_options('queue', p_options);
  if p_options ? 'local_only' then
    perform penstock._refuse(422, 'invalid_option',
      'local_only is checked where the app declares its models: declare it there', 'local_only');
  end if;
  perform penstock._stop_queue(v_queue.id, v_queue.declared || p_options);
  update penstock.queue set overrides = jsonb_strip_nulls(overrides || p_options)
  where id = v_queue.id;
  perform penstock._enforce_queue(v_queue.id);
end
$$;

create or replace function penstock.reset_queue(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
begin
  perform penstock._stop_queue(v_queue.id, v_queue.declared);
  -- The next app may declare the queue and its kinds differently from the last.
  update penstock.queue set overrides = '{}', declared_by = null where id = v_queue.id;
  update penstock.kind set declared_by = null where queue_id = v_queue.id;
  perform penstock._enforce_queue(v_queue.id);
end
$$;

create or replace function penstock.pause_queue(p_name text, p_reason text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
begin
  -- A claim under way has seen the queue running: once this has returned, no job starts.
  perform penstock._lock_queue_limits(v_queue.id);
  update penstock.queue
  set paused_at = coalesce(paused_at, penstock.clock()), paused_reason = p_reason
  where id = v_queue.id;
end
$$;

create or replace function penstock.resume_queue(p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_name);
begin
  update penstock.queue set paused_at = null, paused_reason = null where id = v_queue.id;
  -- An operator had to correct something and resumes the queue now, so the next job may try.
  if penstock._stopped_by(v_queue.id, penstock.clock()) = 'paused' then
    perform penstock.close_circuit(p_name);
  end if;
end
$$;

create or replace function penstock.declare_kind(
  p_name text, p_queue text, p_options jsonb default '{}', p_by text default null,
  p_in jsonb default null, p_instead_of text default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue penstock.queue := penstock._find_queue(p_queue);
  v_kind penstock.kind;
  v_new penstock.kind := jsonb_populate_record(v_kind, penstock._read_options('kind', p_options));
  v_declared jsonb := p_options || jsonb_build_object('queue', p_queue);
begin
  perform penstock._refuse_odd_name(p_name, 'kind');
  select * into v_kind from penstock.kind where name = p_name;
  if found and v_kind.declared = v_declared then
    update penstock.kind set declared_in = p_in
    where id = v_kind.id and p_in <> coalesce(declared_in, 'null')
      and declared_by = p_by; -- guard: own location
    return v_kind.id;
  end if;
  insert into penstock.kind (name, queue_id, declared, declared_by, created_at)
  values (p_name, v_queue.id, v_declared, p_by, penstock.clock())
  on conflict (name) do nothing;
  select * into v_kind from penstock.kind where name = p_name for no key update;
  perform penstock._refuse_other_declaration('kind', p_name,
    v_kind.declared, v_kind.declared_by, v_declared, p_by, v_kind.declared_in, p_in,
    p_instead_of, 'penstock queues reset ' || coalesce(v_kind.declared ->> 'queue', p_queue));
  v_new.price := penstock._read_price(p_options);
  v_new.webhook := penstock._option_webhook(p_options);
  perform penstock._refuse(422, 'invalid_option', w.message, 'split') from (values
    ('split needs both a field and how many of it one job may have',
     (v_new.split_field is null) <> (v_new.split_most is null)),
    ('split and dedupe exclude one another: pieces of a request cannot share a key',
     v_new.split_field is not null and (coalesce(v_new.dedupe_field, v_new.dedupe_fixed)
       is not null or 'dedupe' = any (v_new.computed)))
  ) w (message, is_wrong)
  where w.is_wrong;
  update penstock.kind set (queue_id, declared, declared_by, declared_in, max_attempts, timeout,
      priority_offset, dedupe_field, dedupe_fixed, topic_field, topic_fixed, account_field,
      account_fixed, computed, has_on_finish, price, split_field, split_most, webhook)
    = (v_queue.id, v_declared, p_by, p_in, v_new.max_attempts, v_new.timeout,
      v_new.priority_offset, v_new.dedupe_field, v_new.dedupe_fixed, v_new.topic_field,
      v_new.topic_fixed, v_new.account_field, v_new.account_fixed, v_new.computed,
      v_new.has_on_finish, v_new.price, v_new.split_field, v_new.split_most, v_new.webhook)
  where id = v_kind.id;
  -- Kept for ever: jobs that were submitted before a kind moved stay in its former queue.
  insert into penstock.queue_kind (queue_id, kind_id) values (v_queue.id, v_kind.id)
  on conflict do nothing;
  return v_kind.id;
end
$$;
