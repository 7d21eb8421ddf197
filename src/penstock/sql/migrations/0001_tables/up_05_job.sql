-- Live jobs, and the records of the requests that submitted them.

create type penstock.job_status as enum (
  'scheduled', 'queued', 'running', 'awaiting', 'succeeded', 'failed', 'cancelled'
);

-- A job as a submit asks for it, the ordinal-th of its request. Null leaves the choice to the kind,
-- the plan and the queue.
create type penstock.new_job as (
  ordinal bigint,
  kind text,
  payload jsonb,
  account text,
  dedupe_key text,
  topic text,
  priority integer,
  run_at timestamptz,
  delay interval,
  max_attempts integer,
  timeout interval,
  expires interval,
  metadata jsonb,
  price bigint,
  webhook_url text
);

-- Jobs that were submitted together.
create table penstock.batch (
  id uuid primary key,
  account_id bigint not null default 0 references penstock.account,
  total integer not null,
  created_at timestamptz not null,
  constraint total_is_positive check (total >= 1)
);

-- Live jobs only, so that the table stays small; a finished job moves to `finished`. Queue, kind
-- and account are numbers instead of names. Columns of fixed width that are never null come first:
-- in this order Postgres finds them without reading the others.
create table penstock.job (
  id uuid primary key,
  rank bigint not null,
  -- The account's number while the job waits in a lane of that account; -1: in no lane.
  lane bigint not null,
  account_id bigint not null,
  -- The credits that its submit reserved; 0: it is free.
  reserved bigint not null default 0,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  run_at timestamptz not null,
  queue_id integer not null,
  kind_id integer not null,
  status penstock.job_status not null,
  priority integer not null,
  version integer not null default 1,
  attempt integer not null default 0,
  max_attempts integer not null,
  failures integer not null default 0,
  deferrals integer not null default 0,
  crashes integer not null default 0,
  -- How often its worker died while it ran other jobs too, so that it is unknown which job killed
  -- it. After two such deaths the job is a suspect and runs as the only suspect of its worker
  -- (alone). If that worker dies as well, the attempt counts as failed.
  losses integer not null default 0,
  -- Slots that this attempt holds: 1 of the queue, 2 of the account, 3 both.
  slots_held smallint not null default 0,
  -- Failures of the last minute that may be the provider's; how often the circuit opened and
  -- uncounted such failures; how many failures were not counted because the circuit was open
  -- already; how often the job was deferred while the provider answered others.
  provisional smallint not null default 0,
  withdrawn_failures smallint not null default 0,
  uncounted_failures smallint not null default 0,
  isolated smallint not null default 0,
  only_suspect boolean not null default false,
  -- An attempt blocked its event loop for seconds: the next one starts alone in its loop.
  blocks boolean not null default false,
  -- It was a probe and failed: other jobs may be probes before it.
  deferred_probe boolean not null default false,
  -- Its last attempt failed provisionally: the job waits until run_at for the circuit to open, and
  -- fails then.
  failure_pending boolean not null default false,
  -- It is its account's first job ever.
  first_job boolean not null default false,
  -- The caller gave its priority, not the plan: a change of plan does not change it.
  priority_given boolean not null default false,
  worker_id bigint,
  started_at timestamptz,
  timeout_at timestamptz,
  -- When upkeep recovers it: it timed out, or made no progress for too long.
  deadline_at timestamptz,
  progressed_at timestamptz,
  stage_at timestamptz,
  expires_at timestamptz,
  recovered_at timestamptz,
  cancel_requested_at timestamptz,
  -- When its last provisional failure happened.
  provisional_at timestamptz,
  -- Units (images, pages) that this attempt has delivered, as it reports them, and how many the
  -- reserved credits pay for; null: one credit is one unit.
  units bigint,
  units_total bigint,
  timeout interval,
  batch_id uuid,
  retry_of uuid,
  callback_hash bytea,
  dedupe_key text,
  topic text,
  stage text,
  stage_label text,
  progress jsonb,
  error jsonb,
  metadata jsonb,
  -- Plain JSON, or the envelope {"$enc": ...} of a client that encrypts.
  payload jsonb not null,
  constraint live_only check (status in ('scheduled', 'queued', 'running', 'awaiting')),
  constraint running_has_worker check ((status = 'running') = (worker_id is not null)),
  constraint started_has_deadline check (
    (status in ('running', 'awaiting')) = (deadline_at is not null)
  ),
  constraint awaiting_has_callback check ((status = 'awaiting') = (callback_hash is not null)),
  constraint waiting_has_no_slots check (slots_held = 0 or status in ('running', 'awaiting')),
  constraint failure_pending_is_scheduled check (not failure_pending or status = 'scheduled'),
  constraint lane_is_the_accounts check (lane = -1 or lane = account_id),
  constraint priced_has_account check (reserved = 0 or (reserved > 0 and account_id <> 0)),
  constraint attempts_are_left check (failures < max_attempts),
  constraint counters_are_not_negative check (
    attempt >= 0 and failures >= 0 and deferrals >= 0 and crashes >= 0
  ),
  constraint priority_in_range check (priority between -1000 and 1000)
) with (
  -- Free space on each page lets a progress write stay on its page and out of the indexes. A
  -- payload of more than a few hundred bytes is stored out of line, so no later update rewrites it.
  fillfactor = 80,
  toast_tuple_target = 512,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 0
);
-- The claim reads this from the left end of each kind: first jobs in no lane, then those of each
-- lane.
create index job_ready_idx on penstock.job (queue_id, kind_id, lane, rank)
  where status = 'queued';
create index job_due_idx on penstock.job (queue_id, run_at) where status = 'scheduled';
create index job_deadline_idx on penstock.job (deadline_at) where deadline_at is not null;
create index job_expires_idx on penstock.job (queue_id, expires_at)
  where expires_at is not null and status in ('scheduled', 'queued');
create index job_cancel_idx on penstock.job (cancel_requested_at)
  where cancel_requested_at is not null;
-- Recovered jobs that wait for their next attempt: few among all waiting jobs.
create index job_recovered_idx on penstock.job (recovered_at)
  where recovered_at is not null and status in ('scheduled', 'queued');
create index job_provisional_idx on penstock.job (queue_id, provisional_at)
  where provisional_at is not null;
create index job_failure_pending_idx on penstock.job (run_at) where failure_pending;
create index job_deferred_probe_idx on penstock.job (queue_id, run_at) where deferred_probe;
create unique index job_dedupe_idx on penstock.job (kind_id, account_id, dedupe_key)
  where dedupe_key is not null;
create index job_account_idx on penstock.job (account_id, id) where account_id <> 0;
create index job_topic_idx on penstock.job (topic, id) where topic is not null;
create index job_batch_idx on penstock.job (batch_id, id) where batch_id is not null;

create table penstock.idempotency (
  scope text not null,
  key text not null,
  fingerprint bytea not null,
  job_id uuid not null,
  created_at timestamptz not null,
  deduplicated boolean not null,
  primary key (scope, key)
);
create index idempotency_created_idx on penstock.idempotency (created_at);
