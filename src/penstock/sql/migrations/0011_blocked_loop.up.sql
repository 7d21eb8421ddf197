-- Event loops that stood still: a handler that blocks one stops every other job of its worker.
-- One row for each time; while the loop still stands, ended_at is null.
create table penstock.blocked_loop (
  worker_id bigint not null,
  -- The worker counts: a report that is repeated changes its own row.
  number integer not null,
  began_at timestamptz not null,
  seconds double precision not null,
  reported_at timestamptz not null,
  ended_at timestamptz,
  -- The attempt that blocked it, and file and line; null where none was found.
  job_id uuid,
  attempt integer,
  kind text,
  place text,
  primary key (worker_id, number),
  constraint job_has_attempt check ((job_id is null) = (attempt is null)),
  constraint place_is_short check (length(place) <= 500)
);
create index blocked_loop_began_idx on penstock.blocked_loop (began_at);
create index blocked_loop_open_idx on penstock.blocked_loop (worker_id) where ended_at is null;

-- What has been counted since the beginning, by kind of the job; '' where none was found.
create table penstock.blocked_loop_total (
  kind text primary key,
  times bigint not null,
  seconds double precision not null
);

-- An attempt of this job has blocked a loop for seconds: the next one starts alone in its loop.
alter table penstock.job add column blocks boolean not null default false;
