-- Attempts that are over while their job goes on, and what attempts leave behind.
-- Partitioned by the job's time-ordered id, so that history is removed by dropping partitions.

-- An attempt that is over while its job goes on: retried, snoozed, deferred, released, lost. The
-- attempt that finished the job is in `finished`; the view `attempts` shows both.
create table penstock.attempt (
  job_id uuid not null,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  attempt integer not null,
  worker_id bigint,
  outcome text not null,
  error jsonb,
  usage jsonb,
  primary key (job_id, attempt),
  constraint outcome_is_known check (outcome in (
    'retried', 'deferred', 'snoozed', 'released', 'timed_out', 'lost', 'stuck'
  ))
) partition by range (job_id);
create table penstock.attempt_rest partition of penstock.attempt default;
-- Rows arrive in the order of ended_at, so a few bytes per hundred pages are enough to find an
-- hour.
create index attempt_settled_idx on penstock.attempt using brin (ended_at)
  with (pages_per_range = 16, autosummarize = on);

-- A step that an attempt has completed: the next attempt takes the result instead of repeating it.
create table penstock.step (
  job_id uuid not null,
  kept_at timestamptz not null,
  attempt integer not null,
  name text not null,
  result jsonb not null,
  primary key (job_id, name),
  constraint name_is_short check (length(name) between 1 and 200)
) partition by range (job_id);
create table penstock.step_rest partition of penstock.step default;

-- What an attempt emits while it runs: mostly tokens. Read from the beginning, or from a number on.
create table penstock.chunk (
  job_id uuid not null,
  attempt integer not null,
  seq integer not null,
  data jsonb not null,
  primary key (job_id, attempt, seq)
) partition by range (job_id);
create table penstock.chunk_rest partition of penstock.chunk default;

-- A result that came after its attempt was given up: kept for people, never applied.
create table penstock.late_result (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  worker_id bigint,
  arrived_at timestamptz not null,
  attempt integer not null,
  outcome text not null,
  result jsonb,
  error jsonb,
  usage jsonb
);
create index late_result_job_idx on penstock.late_result (job_id);
create index late_result_arrived_idx on penstock.late_result (arrived_at);
