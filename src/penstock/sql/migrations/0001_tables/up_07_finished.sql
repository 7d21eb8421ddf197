-- Finished jobs, and the hourly figures that are computed from them.

-- One set of partitions per retention class, each by ranges of the time-ordered id.
create table penstock.finished (
  id uuid not null,
  account_id bigint not null,
  reserved bigint not null default 0,
  created_at timestamptz not null,
  run_at timestamptz not null,
  finished_at timestamptz not null,
  queue_id integer not null,
  kind_id integer not null,
  status penstock.job_status not null,
  priority integer not null,
  version integer not null,
  attempt integer not null,
  max_attempts integer not null,
  failures integer not null,
  deferrals integer not null,
  crashes integer not null,
  losses integer not null default 0,
  class smallint not null,
  -- Whether the last attempt finished the job; if so, this row is also the row of that attempt.
  finished_by_attempt boolean not null,
  first_job boolean not null default false,
  priority_given boolean not null default false,
  worker_id bigint,
  started_at timestamptz,
  timeout_at timestamptz,
  recovered_at timestamptz,
  -- Units that the last attempt delivered, as it reported them.
  units bigint,
  timeout interval,
  batch_id uuid,
  retry_of uuid,
  retried_by uuid,
  dedupe_key text,
  topic text,
  stage text,
  progress jsonb,
  error jsonb,
  metadata jsonb,
  -- What the last attempt used (tokens, seconds, …).
  usage jsonb,
  payload jsonb not null,
  result jsonb,
  -- The id first: servers before 18 cannot use the second column of an index alone.
  primary key (id, class),
  constraint finished_only check (status in ('succeeded', 'failed', 'cancelled')),
  constraint failed_says_why check (status <> 'failed' or error is not null),
  constraint success_had_an_attempt check (status <> 'succeeded' or finished_by_attempt)
) partition by list (class);
create index finished_account_idx on penstock.finished (account_id, id) where account_id <> 0;
create index finished_topic_idx on penstock.finished (topic, id) where topic is not null;
create index finished_batch_idx on penstock.finished (batch_id, id) where batch_id is not null;
-- For people who search for failures in a history of successes.
create index finished_unsuccessful_idx on penstock.finished (id) where status <> 'succeeded';
create index finished_failed_idx on penstock.finished (finished_at) where status = 'failed';
-- Rows arrive in the order of finished_at, so a few bytes per hundred pages are enough to find an
-- hour.
create index finished_time_idx on penstock.finished using brin (finished_at)
  with (pages_per_range = 16, autosummarize = on);

-- The outcomes of attempts and jobs, by the hour. Upkeep adds them up from history; see hourly.sql.
create table penstock.hourly_bucket (
  hour timestamptz not null,
  queue_id integer not null,
  kind_id integer not null,
  outcome text not null,
  -- The class of the error; '': no error, as for a success.
  class text not null,
  count bigint not null,
  total_ms bigint not null,
  -- How many took at most this long; the bounds are in hourly.sql, and the last has none.
  histogram bigint[] not null,
  primary key (hour, queue_id, kind_id, outcome, class)
);
-- Until when history is added up, and until which hour it was counted for the second time.
create table penstock.rollup (
  only_row boolean primary key default true,
  counted_until timestamptz not null,
  settled_until timestamptz not null,
  constraint there_is_one_row check (only_row)
);
insert into penstock.rollup (counted_until, settled_until)
values (clock_timestamp(), date_trunc('hour', clock_timestamp(), 'UTC'));
