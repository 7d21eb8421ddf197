-- Configuration: what an installation sets, and what apps declare and operators override.

-- Limits and periods of the whole installation; exactly one row.
create table penstock.setting (
  only_row boolean primary key default true,
  accounts_strict boolean not null default false,
  payload_max_bytes integer not null default 1048576,
  payload_max_depth integer not null default 64,
  payload_max_keys integer not null default 20000,
  number_max_digits integer not null default 300,
  batch_max_jobs integer not null default 1000000,
  idempotency_kept interval not null default '7 days',
  -- The size of one file, and of all files of one account.
  upload_max_bytes bigint not null default 26214400,
  upload_quota_bytes bigint not null default 1073741824,
  upload_kept interval not null default '90 days',
  -- How long before they are needed the partitions of history are created.
  partitions_ahead interval not null default '14 days',
  constraint there_is_one_row check (only_row)
);
insert into penstock.setting default values;

-- How long finished jobs of a class are kept; null: for ever.
create table penstock.retention_class (
  id smallint generated always as identity primary key,
  kept interval,
  partition_days integer not null,
  constraint kept_is_positive check (kept > interval '0'),
  constraint kept_once unique nulls not distinct (kept)
);

-- In queue, plan and kind, `declared` holds the options that the app declares, `overrides` those
-- that an operator set; both together give the other columns, which only
-- functions/config/declare.sql writes. declared_in is the location in the code ({"file", "line",
-- "host", "app"}): it distinguishes a declaration that moved from one that another app makes, and
-- names both files if two apps contradict each other.
create table penstock.queue (
  id integer generated always as identity primary key,
  name text not null unique,
  declared jsonb not null default '{}',
  declared_by text,
  declared_in jsonb,
  overrides jsonb not null default '{}',
  -- http: calls of /v1/queues/{name}/process run its jobs, and no worker does.
  drive text not null default 'worker',
  -- The models of this queue must have private addresses: personal data stays in the private
  -- network.
  local_only boolean not null default false,
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
  -- When a limit last changed: jobs that started earlier may exceed a lowered one.
  changed_at timestamptz not null,
  constraint name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
  constraint drive_is_known check (drive in ('worker', 'http')),
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

create table penstock.plan (
  name text primary key,
  declared jsonb not null default '{}',
  declared_by text,
  declared_in jsonb,
  overrides jsonb not null default '{}',
  priority integer not null default 0,
  concurrency integer,
  per_hour integer,
  weight integer not null default 1,
  -- Added to the priority of an account's first job.
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

create table penstock.kind (
  id integer generated always as identity primary key,
  name text not null unique,
  queue_id integer not null references penstock.queue,
  declared jsonb not null default '{}',
  declared_by text,
  declared_in jsonb,
  max_attempts integer,
  timeout interval,
  priority_offset integer not null default 0,
  -- Account, topic and dedupe key come from a field of the payload, or are the same for all jobs
  -- of the kind.
  account_field text,
  account_fixed text,
  topic_field text,
  topic_fixed text,
  dedupe_field text,
  dedupe_fixed text,
  -- {"fixed": 3}, {"field": "cost"}, {"per": "images", "each": 2},
  -- {"per": "images", "by": "quality", "table": {"standard": 1, "high": 3}}; null: free.
  price jsonb,
  -- A request for more than split_most of this field becomes several jobs.
  split_field text,
  split_most integer,
  -- The app has an on_finish callback for jobs of this kind.
  has_on_finish boolean not null default false,
  webhook text,
  -- Options that are functions in the app's code: plain SQL cannot evaluate them.
  computed text[] not null default '{}',
  created_at timestamptz not null,
  constraint name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
  constraint max_attempts_is_positive check (max_attempts between 1 and 1000),
  constraint timeout_is_positive check (timeout > interval '0'),
  constraint priority_offset_in_range check (priority_offset between -1000 and 1000)
);

-- The kinds whose jobs may be in a queue: all that were ever declared in it.
create table penstock.queue_kind (
  queue_id integer not null references penstock.queue on delete cascade,
  kind_id integer not null references penstock.kind on delete cascade,
  primary key (queue_id, kind_id)
);
