-- The only source of "now", and of ids, whose first 48 bits are the time of their creation.
-- Tests replace clock() by a function that reads a table, so nothing else may read the clock.

-- Not in SQL, of which the first call in each statement takes 20 us instead of 3 (2026-11).
create or replace function penstock.clock() returns timestamptz
language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp
as $$ begin return clock_timestamp(); end $$;

-- A UUID of version 7: random bits below a millisecond. Also for servers that have no uuidv7().
create or replace function penstock.new_id(p_at timestamptz) returns uuid
language sql volatile parallel safe
as $$
  select encode(
    set_bit(set_bit(
      overlay(
        uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from p_at) * 1000)::bigint) from 3)
        from 1 for 6
      ), 52, 1), 53, 1),
    'hex')::uuid
$$;

-- The n-th id of a batch: the seed's own time and first random bits, then its last 60 bits plus n.
-- Asking the system for random bits took 3.3 us an id, a third of a bulk submit (2026-11).
create or replace function penstock._nth_id(p_seed uuid, p_n bigint) returns uuid
language sql immutable parallel safe
as $$
  select (left(p_seed::text, 18)
    || to_hex(((('x' || right(p_seed::text, 12))::bit(48)::bigint << 12) + p_n)
              | (-9223372036854775808)))::uuid
$$;

-- The n for which _nth_id of this seed gives this id.
create or replace function penstock._n_of_id(p_seed uuid, p_id uuid) returns bigint
language sql immutable parallel safe
as $$
  select (('x' || replace(right(p_id::text, 17), '-', ''))::bit(64)::bigint
          & 9223372036854775807)
    - (('x' || right(p_seed::text, 12))::bit(48)::bigint << 12)
$$;

-- The smallest id of a point in time: the bound of a partition.
create or replace function penstock.id_floor(p_at timestamptz) returns uuid
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
  select rpad(lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

-- How long this session has lasted, by the server's own clock: tests do not move that clock.
create or replace function penstock._session_age() returns interval
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select clock_timestamp() - a.backend_start from pg_stat_activity a where a.pid = pg_backend_pid()
$$;

-- The same duration in seconds. Added to a time, days would be days of the session's time zone,
-- some of which have 23 hours.
create or replace function penstock._elapsed(p_length interval) returns interval
language sql immutable parallel safe
as $$ select make_interval(secs => date_part('epoch', p_length)) $$;

-- The server's own clock, for comparison with another clock: tests do not move it.
create or replace function penstock.server_time() returns timestamptz
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select clock_timestamp() $$;
