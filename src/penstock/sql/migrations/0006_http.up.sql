-- What web apps and operators need: keys, webhooks, callbacks, uploads, figures by the hour.

-- Who may call the HTTP API. Of a key only a hash is kept: what is stolen from here opens nothing.
create table penstock.api_key (
  -- The part of a key that is no secret, and by which it is found.
  id text primary key,
  kind text not null,
  account_id bigint references penstock.account,
  name text,
  secret_hash bytea not null,
  created_at timestamptz not null,
  expires_at timestamptz,
  used_at timestamptz,
  revoked_at timestamptz,
  -- The first of the keys that took each other's place: whose idempotency keys its own are.
  holder text not null,
  constraint kind_is_known check (kind in ('admin', 'process', 'app', 'account')),
  constraint account_key_has_account check ((kind = 'account') = (account_id is not null)),
  constraint name_is_short check (length(name) between 1 and 200)
);
create index api_key_account_idx on penstock.api_key (account_id) where account_id is not null;

-- Where a job's caller wants to be told of its end; taken into a delivery by that end.
create table penstock.job_webhook (
  job_id uuid primary key,
  url text not null,
  constraint url_is_short check (length(url) between 1 and 2000)
);
alter table penstock.kind add column webhook text;

-- Messages to apps: written with the end they tell of, sent by workers until they are taken.
create table penstock.delivery (
  -- What the receiver knows it by, however often it comes.
  id uuid primary key,
  job_id uuid not null,
  account_id bigint not null,
  event text not null,
  url text not null,
  -- The operator's own address, which may be a private one; else a caller's.
  trusted boolean not null,
  created_at timestamptz not null,
  tries integer not null default 0,
  -- When it is tried again; null: it was taken, or given up.
  next_at timestamptz,
  delivered_at timestamptz,
  last_at timestamptz,
  last_status integer,
  last_error text,
  -- Of the address, with its port: one that hangs holds up its own only.
  host text not null,
  -- A worker is at it until then; null: none is.
  sending_until timestamptz,
  constraint taken_is_over check (delivered_at is null or next_at is null)
) with (fillfactor = 80);
create index delivery_due_idx on penstock.delivery (next_at) where next_at is not null;
create index delivery_host_idx on penstock.delivery (host, next_at) where next_at is not null;
create index delivery_sending_idx on penstock.delivery (host) where sending_until is not null;
create index delivery_job_idx on penstock.delivery (job_id);
create index delivery_account_idx on penstock.delivery (account_id, id);
create index delivery_created_idx on penstock.delivery (created_at);
create index delivery_open_idx on penstock.delivery (id) where delivered_at is null;

-- Signed callbacks that were taken: the same message does not count twice.
create table penstock.seen_callback (
  signature bytea primary key,
  seen_at timestamptz not null
);
create index seen_callback_idx on penstock.seen_callback (seen_at);

-- Files that payloads and results refer to as {"upload": id}.
create table penstock.upload (
  id uuid primary key,
  account_id bigint not null default 0,
  content_type text not null,
  size bigint not null,
  sha256 bytea not null,
  created_at timestamptz not null,
  -- When a job last took it; null: none has yet.
  used_at timestamptz,
  constraint size_is_not_negative check (size >= 0)
);
create index upload_account_idx on penstock.upload (account_id, created_at);
create index upload_created_idx on penstock.upload (created_at);
create table penstock.upload_part (
  upload_id uuid not null,
  n integer not null,
  data bytea not null,
  primary key (upload_id, n)
);
-- Images are compressed already.
alter table penstock.upload_part alter column data set storage external;
alter table penstock.setting add column upload_max_bytes bigint not null default 26214400;
alter table penstock.setting add column upload_quota_bytes bigint not null default 1073741824;
alter table penstock.setting add column upload_kept interval not null default '90 days';
-- For how long after today partitions of history are made.
alter table penstock.setting add column partitions_ahead interval not null default '14 days';

-- http: nobody stands and waits for its jobs; calls of /v1/queues/{name}/process run them.
alter table penstock.queue add column drive text not null default 'worker'
  constraint drive_is_known check (drive in ('worker', 'http'));

-- How starts and jobs ended, by the hour. Added up by upkeep from history; see hourly.sql.
create table penstock.hourly_bucket (
  hour timestamptz not null,
  queue_id integer not null,
  kind_id integer not null,
  outcome text not null,
  -- '': it has none, as what succeeded.
  class text not null,
  count bigint not null,
  total_ms bigint not null,
  -- How many took at most so long; the bounds are in hourly.sql, the last is endless.
  histogram bigint[] not null,
  primary key (hour, queue_id, kind_id, outcome, class)
);
-- Until when history has been added up, and which hours have been counted over again.
create table penstock.rollup (
  only_row boolean primary key default true,
  counted_until timestamptz not null,
  settled_until timestamptz not null,
  constraint there_is_one_row check (only_row)
);
insert into penstock.rollup (counted_until, settled_until)
values (clock_timestamp(), date_trunc('hour', clock_timestamp(), 'UTC'));
-- Rows come in the order in which they end, so a few bytes per hundred pages find an hour.
-- In one transaction with the rest, so not concurrently; BRIN reads the table once.
-- squawk-ignore require-concurrent-index-creation
create index finished_ended_idx on penstock.finished using brin (finished_at)
  with (pages_per_range = 16, autosummarize = on);
-- squawk-ignore require-concurrent-index-creation
create index attempt_ended_idx on penstock.attempt using brin (ended_at)
  with (pages_per_range = 16, autosummarize = on);

-- Whose data was removed at their wish: what was removed, and never who they were.
create table penstock.erasure (
  id bigint generated always as identity primary key,
  account_id bigint not null,
  at timestamptz not null,
  receipt jsonb not null
);

-- What was recovered and waits for its next start: few, among all that wait.
-- squawk-ignore require-concurrent-index-creation
create index job_recovered_idx on penstock.job (recovered_at)
  where recovered_at is not null and status in ('scheduled', 'queued');
