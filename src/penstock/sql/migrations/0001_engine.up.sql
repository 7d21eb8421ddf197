-- Jobs, and what decides when one may start.
--
-- Live jobs are in `job`, which stays small; a finished one moves to `finished`, range
-- partitioned by its time-ordered id, one set of partitions per retention class.
-- Numbers stand in for names (queue, kind, account) wherever a row is written per job.

create type penstock.job_status as enum (
  'scheduled', 'queued', 'running', 'awaiting', 'succeeded', 'failed', 'cancelled'
);

-- What the installation as a whole decides; exactly one row.
create table penstock.setting (
  only_row boolean primary key default true,
  accounts_strict boolean not null default false,
  payload_max_bytes integer not null default 1048576,
  payload_max_depth integer not null default 64,
  payload_max_keys integer not null default 20000,
  number_max_digits integer not null default 300,
  batch_max_jobs integer not null default 1000000,
  idempotency_kept interval not null default '7 days',
  constraint there_is_one_row check (only_row)
);
insert into penstock.setting default values;

-- How long finished jobs of a class are kept; null is for ever.
create table penstock.retention_class (
  id smallint generated always as identity primary key,
  kept interval,
  partition_days integer not null,
  constraint kept_is_positive check (kept > interval '0'),
  constraint kept_once unique nulls not distinct (kept)
);

-- declared || overrides gives the columns in force; functions/declare.sql is their only writer.
create table penstock.queue (
  id integer generated always as identity primary key,
  name text not null unique,
  declared jsonb not null default '{}',
  declared_by text,
  overrides jsonb not null default '{}',
  concurrency integer,
  rate_count integer,
  rate_period interval,
  rate_burst integer,
  ordering text not null default 'aging',
  aging_step interval not null default '10 seconds',
  timeout interval not null default '2 minutes',
  stale_after interval not null default '3 minutes',
  stuck_after interval not null default '5 minutes',
  max_attempts integer not null default 3,
  backoff text not null default 'linear',
  backoff_delay interval not null default '5 minutes',
  backoff_max interval not null default '1 day',
  recovery integer not null default 3,
  succeeded_class smallint not null references penstock.retention_class,
  failed_class smallint not null references penstock.retention_class,
  paused_at timestamptz,
  paused_reason text,
  created_at timestamptz not null,
  -- When a limit last changed: what runs since before may exceed a lowered one.
  changed_at timestamptz not null,
  constraint name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
  constraint concurrency_is_positive check (concurrency >= 1),
  constraint rate_is_whole check (
    (rate_count is null) = (rate_period is null) and (rate_count is null) = (rate_burst is null)
    and rate_count >= 1 and rate_burst >= 1 and rate_period > interval '0'
  ),
  constraint ordering_is_known check (ordering in ('strict', 'aging', 'fair')),
  constraint backoff_is_known check (backoff in ('constant', 'linear', 'exponential')),
  constraint times_are_positive check (
    aging_step >= interval '0' and timeout > interval '0' and stale_after > interval '0'
    and stuck_after > interval '0' and backoff_delay >= interval '0'
    and backoff_max >= interval '0'
  ),
  constraint max_attempts_is_positive check (max_attempts between 1 and 1000),
  constraint recovery_is_not_negative check (recovery between 0 and 1000)
);

-- What runs in a queue that has a limit. Apart from `queue`, because it changes all the time.
create table penstock.gate (
  queue_id integer primary key references penstock.queue on delete cascade,
  running integer not null default 0,
  rate_next_at timestamptz not null default '-infinity',
  constraint running_is_not_negative check (running >= 0)
) with (fillfactor = 20);

create table penstock.kind (
  id integer generated always as identity primary key,
  name text not null unique,
  queue_id integer not null references penstock.queue,
  declared jsonb not null default '{}',
  declared_by text,
  max_attempts integer,
  timeout interval,
  priority_offset integer not null default 0,
  dedupe_field text,
  topic_field text,
  account_field text,
  account_fixed text,
  topic_fixed text,
  -- Options that are functions in the app's code: plain SQL cannot evaluate them.
  computed text[] not null default '{}',
  created_at timestamptz not null,
  constraint name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
  constraint max_attempts_is_positive check (max_attempts between 1 and 1000),
  constraint timeout_is_positive check (timeout > interval '0'),
  constraint priority_offset_in_range check (priority_offset between -1000 and 1000)
);

create table penstock.plan (
  name text primary key,
  declared jsonb not null default '{}',
  declared_by text,
  overrides jsonb not null default '{}',
  priority integer not null default 0,
  concurrency integer,
  per_hour integer,
  weight integer not null default 1,
  first_job integer not null default 0,
  is_default boolean not null default false,
  created_at timestamptz not null,
  constraint name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
  constraint priority_in_range check (priority between -1000 and 1000),
  constraint concurrency_is_positive check (concurrency >= 1),
  constraint per_hour_is_positive check (per_hour >= 1),
  constraint weight_in_range check (weight between 1 and 1000),
  constraint first_job_in_range check (first_job between -1000 and 1000)
);
create unique index plan_default_idx on penstock.plan (is_default) where is_default;

-- The number is what jobs and the ledger refer to; erasing a person removes the name.
create table penstock.account (
  id bigint generated by default as identity (start with 1) primary key,
  name text unique,
  plan text references penstock.plan,
  running integer not null default 0,
  -- In force, copied from the plan: claims and finishes look at no other row for them.
  concurrency integer,
  weight integer not null default 1,
  limited_at timestamptz not null,
  balance bigint not null default 0,
  created_at timestamptz not null,
  constraint name_is_short check (length(name) between 1 and 200),
  constraint running_is_not_negative check (running >= 0),
  constraint balance_not_negative check (balance >= 0)
) with (fillfactor = 50);
-- Nobody: the account of jobs without one.
insert into penstock.account (id, created_at, limited_at)
values (0, clock_timestamp(), clock_timestamp());

-- The jobs of one limited account in one queue, seen as one thing that waits.
create table penstock.lane (
  queue_id integer not null,
  account_id bigint not null,
  -- The smallest rank among its queued jobs; under `fair` the lane's virtual time.
  head bigint not null,
  waiting integer not null default 0,
  open boolean not null default true,
  primary key (account_id, queue_id),
  constraint waiting_is_not_negative check (waiting >= 0)
) with (fillfactor = 50);
create index lane_open_idx on penstock.lane (queue_id, head) where open and waiting > 0;

create table penstock.worker (
  id bigint primary key,
  name text not null,
  lease interval not null,
  started_at timestamptz not null,
  beat_at timestamptz not null,
  stopped_at timestamptz,
  lost_at timestamptz,
  -- How many jobs it held then, and when the last of them was given back.
  lost_jobs integer,
  cleared_at timestamptz,
  constraint lease_is_positive check (lease > interval '0'),
  constraint name_is_short check (length(name) between 1 and 200)
) with (fillfactor = 50);
create index worker_uncleared_idx on penstock.worker (id) where cleared_at is null;

create table penstock.batch (
  id uuid primary key,
  account_id bigint not null default 0 references penstock.account,
  total integer not null,
  created_at timestamptz not null,
  constraint total_is_positive check (total >= 1)
);

create table penstock.job (
  id uuid primary key,
  rank bigint not null,
  -- The account's number while the job waits in a lane of its own; -1: in none.
  lane bigint not null,
  account_id bigint not null,
  queue_id integer not null,
  kind_id integer not null,
  status penstock.job_status not null,
  priority integer not null,
  attempt integer not null default 0,
  failures integer not null default 0,
  deferrals integer not null default 0,
  crashes integer not null default 0,
  max_attempts integer not null,
  version integer not null default 1,
  -- Slots this start took: 1 of the queue, 2 of the account, 3 both.
  holds smallint not null default 0,
  worker_id bigint,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  run_at timestamptz not null,
  started_at timestamptz,
  timeout_at timestamptz,
  -- When upkeep steps in: over its time, or without progress for too long.
  deadline_at timestamptz,
  progressed_at timestamptz,
  expires_at timestamptz,
  recovered_at timestamptz,
  cancel_requested_at timestamptz,
  timeout interval,
  batch_id uuid,
  retry_of uuid,
  callback_hash bytea,
  dedupe_key text,
  topic text,
  stage text,
  stage_at timestamptz,
  progress jsonb,
  error jsonb,
  metadata jsonb,
  -- Clear JSON, or the envelope {"$enc": ...} of a client that encrypts.
  payload jsonb not null,
  constraint live_only check (status in ('scheduled', 'queued', 'running', 'awaiting')),
  constraint running_has_worker check ((status = 'running') = (worker_id is not null)),
  constraint started_has_deadline check (
    (status in ('running', 'awaiting')) = (deadline_at is not null)
  ),
  constraint awaiting_has_callback check ((status = 'awaiting') = (callback_hash is not null)),
  constraint waiting_holds_nothing check (holds = 0 or status in ('running', 'awaiting')),
  constraint lane_is_the_accounts check (lane = -1 or lane = account_id),
  constraint attempts_are_left check (failures < max_attempts),
  constraint counters_are_not_negative check (
    attempt >= 0 and failures >= 0 and deferrals >= 0 and crashes >= 0
  ),
  constraint priority_in_range check (priority between -1000 and 1000)
) with (
  -- Room on each page lets a progress write stay on its page and out of the indexes; a payload
  -- of more than a few hundred bytes lives out of line, so no later update rewrites it.
  fillfactor = 80,
  toast_tuple_target = 512,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 0
);
-- The claim reads this from its left end: jobs in no lane, then each lane's own.
create index job_ready_idx on penstock.job (queue_id, lane, rank) where status = 'queued';
create index job_due_idx on penstock.job (queue_id, run_at) where status = 'scheduled';
create index job_deadline_idx on penstock.job (deadline_at) where deadline_at is not null;
create index job_expires_idx on penstock.job (queue_id, expires_at)
  where expires_at is not null and status in ('scheduled', 'queued');
create index job_cancel_idx on penstock.job (cancel_requested_at)
  where cancel_requested_at is not null;
create unique index job_dedupe_idx on penstock.job (kind_id, account_id, dedupe_key)
  where dedupe_key is not null;
create index job_account_idx on penstock.job (account_id, id) where account_id <> 0;
create index job_topic_idx on penstock.job (topic, id) where topic is not null;
create index job_batch_idx on penstock.job (batch_id, id) where batch_id is not null;

create table penstock.finished (
  id uuid not null,
  class smallint not null,
  status penstock.job_status not null,
  account_id bigint not null,
  queue_id integer not null,
  kind_id integer not null,
  priority integer not null,
  attempt integer not null,
  failures integer not null,
  deferrals integer not null,
  crashes integer not null,
  max_attempts integer not null,
  version integer not null,
  worker_id bigint,
  created_at timestamptz not null,
  run_at timestamptz not null,
  started_at timestamptz,
  timeout_at timestamptz,
  finished_at timestamptz not null,
  recovered_at timestamptz,
  timeout interval,
  -- Whether the last start ended with the job; its attempt row is this row then.
  ended_in_start boolean not null,
  batch_id uuid,
  retry_of uuid,
  retried_by uuid,
  dedupe_key text,
  topic text,
  stage text,
  progress jsonb,
  error jsonb,
  metadata jsonb,
  payload jsonb not null,
  result jsonb,
  -- The id first: servers before 18 cannot use the second column of an index alone.
  primary key (id, class),
  constraint finished_only check (status in ('succeeded', 'failed', 'cancelled')),
  constraint failed_says_why check (status <> 'failed' or error is not null),
  constraint success_had_a_start check (status <> 'succeeded' or ended_in_start)
) partition by list (class);
create index finished_account_idx on penstock.finished (account_id, id) where account_id <> 0;
create index finished_topic_idx on penstock.finished (topic, id) where topic is not null;
create index finished_batch_idx on penstock.finished (batch_id, id) where batch_id is not null;
-- For people who look for what went wrong, in a history of successes.
create index finished_unsuccessful_idx on penstock.finished (id) where status <> 'succeeded';
create index finished_failed_idx on penstock.finished (finished_at) where status = 'failed';

-- A start that ended while its job went on: retried, snoozed, deferred, released, lost.
-- The start that ended the job is in `finished`; the view `attempts` shows both.
create table penstock.attempt (
  job_id uuid not null,
  attempt integer not null,
  worker_id bigint,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  outcome text not null,
  error jsonb,
  primary key (job_id, attempt),
  constraint outcome_is_known check (outcome in (
    'retried', 'deferred', 'snoozed', 'released', 'timed_out', 'lost', 'stuck'
  ))
) partition by range (job_id);
create table penstock.attempt_rest partition of penstock.attempt default;

-- A result that came too late to count: kept for people, never applied.
create table penstock.orphan (
  id bigint generated always as identity primary key,
  job_id uuid not null,
  attempt integer not null,
  worker_id bigint,
  arrived_at timestamptz not null,
  outcome text not null,
  result jsonb,
  error jsonb
);
create index orphan_job_idx on penstock.orphan (job_id);
create index orphan_arrived_idx on penstock.orphan (arrived_at);

create table penstock.idempotency (
  scope text not null,
  key text not null,
  fingerprint bytea not null,
  job_id uuid not null,
  deduplicated boolean not null,
  created_at timestamptz not null,
  primary key (scope, key)
);
create index idempotency_created_idx on penstock.idempotency (created_at);
