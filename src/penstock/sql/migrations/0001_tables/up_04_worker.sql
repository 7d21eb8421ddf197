-- Workers: their leases, what they serve, and when their event loops were blocked.

create table penstock.worker (
  id bigint primary key,
  -- It holds advisory locks on its sessions: if none is left, it is dead, whatever its lease says.
  locks boolean not null default false,
  started_at timestamptz not null,
  beat_at timestamptz not null,
  stopped_at timestamptz,
  lost_at timestamptz,
  -- How many jobs it held when it was lost, and when the last of them was released.
  lost_jobs integer,
  cleared_at timestamptz,
  lease interval not null,
  name text not null,
  -- The queues and kinds that it serves, by name. Null: all of them.
  queues text[],
  kinds text[],
  -- The queues of which it would take one more job, and since when, as its heartbeat reports; null:
  -- none. check_liveness reads it: a waiting job is stuck only if a worker would take it.
  accepting jsonb,
  constraint lease_is_positive check (lease > interval '0'),
  constraint name_is_short check (length(name) between 1 and 200)
) with (fillfactor = 50);
create index worker_uncleared_idx on penstock.worker (id) where cleared_at is null;

-- Each time that a handler blocked an event loop, which stops all other jobs of its worker.
-- While the loop is still blocked, ended_at is null.
create table penstock.blocked_loop (
  worker_id bigint not null,
  -- A number that the worker gives: a repeated report updates its own row.
  number integer not null,
  began_at timestamptz not null,
  reported_at timestamptz not null,
  ended_at timestamptz,
  seconds double precision not null,
  -- The attempt that blocked the loop, and file and line; null: not found.
  job_id uuid,
  attempt integer,
  kind text,
  location text,
  primary key (worker_id, number),
  constraint job_has_attempt check ((job_id is null) = (attempt is null)),
  constraint location_is_short check (length(location) <= 500)
);
create index blocked_loop_began_idx on penstock.blocked_loop (began_at);
create index blocked_loop_open_idx on penstock.blocked_loop (worker_id) where ended_at is null;

-- How often and how long loops were blocked since the installation began, by kind of the job; '':
-- the job was not found.
create table penstock.blocked_loop_total (
  kind text primary key,
  times bigint not null,
  seconds double precision not null
);
