-- The only source of "now", and of ids, whose first 48 bits are that moment.
-- Tests replace clock() by one that reads a table, so nothing else may ask for the time.

create or replace function penstock.clock() returns timestamptz
language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$ select clock_timestamp() $$;

-- Random bits under a millisecond: a UUID of version 7, on servers that have no uuidv7() too.
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

-- The smallest id of a moment: the bound of a partition.
create or replace function penstock.id_floor(p_at timestamptz) returns uuid
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
  select rpad(lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;
