-- What a queue knows of the provider behind it, and failures that may have been the provider's.

-- closed: claims as limits allow. open: none, but one job as a probe when next_at has come.
-- ramping: a probe has succeeded, and `allowed` may run at once, one more with each success.
create table penstock.circuit (
  queue_id integer primary key references penstock.queue on delete cascade,
  state text not null default 'closed',
  -- The class of the failure that opened it; null: an operator did, and no job is a probe.
  class text,
  changed_at timestamptz not null default '-infinity',
  next_at timestamptz,
  -- Probes that failed since it was last closed.
  tries integer not null default 0,
  probe_job uuid,
  probe_attempt integer,
  allowed integer,
  -- How many may run when the time that the provider asked for is over.
  resume integer not null default 1,
  -- Failures of one sort since the last answer, and whether they are of more than one job.
  in_row integer not null default 0,
  row_trouble text,
  row_job uuid,
  row_mixed boolean not null default false,
  -- Where the provider was called, as host:port; whether it takes a connection, as last seen.
  address text,
  reachable boolean not null default false,
  looked_at timestamptz not null default '-infinity',
  reason text,
  constraint state_is_known check (state in ('closed', 'open', 'ramping')),
  constraint open_has_a_next check (state <> 'open' or (next_at is null) = (class is null)),
  constraint ramp_is_positive check ((state = 'ramping') = (allowed is not null) and allowed >= 1),
  constraint probe_is_whole check ((probe_job is null) = (probe_attempt is null)),
  constraint counts_are_not_negative check (tries >= 0 and in_row >= 0 and resume >= 1)
) with (fillfactor = 50);
-- Nearly always empty: a finish looks here whether there is anything to think about.
create index circuit_troubled_idx on penstock.circuit (queue_id)
  where state <> 'closed' or in_row > 0;
insert into penstock.circuit (queue_id) select q.id from penstock.queue q;

-- What an operator has to know, and to do something about. One per queue at a time.
create table penstock.alert (
  id bigint generated always as identity primary key,
  queue_id integer not null references penstock.queue on delete cascade,
  class text not null,
  message text not null,
  raised_at timestamptz not null,
  cleared_at timestamptz
);
create unique index alert_raised_idx on penstock.alert (queue_id) where cleared_at is null;

-- When its last failure may have been the provider's, how many of the last minute may have been,
-- and how often such were given back.
alter table penstock.job add column provisional_at timestamptz;
alter table penstock.job add column provisional smallint not null default 0;
alter table penstock.job add column refunds smallint not null default 0;
alter table penstock.job add column spared smallint not null default 0;
-- How often it was deferred while others were answered.
alter table penstock.job add column isolated smallint not null default 0;
-- It was a probe, and failed: others may try before it.
alter table penstock.job add column benched boolean not null default false;
-- Its last attempt failed so: it waits until run_at for the circuit to open, and is failed then.
alter table penstock.job add column parked boolean not null default false;
-- No row is parked yet, so there is nothing to validate.
alter table penstock.job add constraint parked_is_scheduled
  check (not parked or status = 'scheduled') not valid;
-- Live jobs only, none of which is in either: to read them through takes less than a second.
-- squawk-ignore require-concurrent-index-creation
create index job_provisional_idx on penstock.job (queue_id, provisional_at)
  where provisional_at is not null;
-- squawk-ignore require-concurrent-index-creation
create index job_parked_idx on penstock.job (run_at) where parked;
-- squawk-ignore require-concurrent-index-creation
create index job_benched_idx on penstock.job (queue_id, run_at) where benched;

-- Personal data stays in the house: models of this queue must have private addresses.
alter table penstock.queue add column local_only boolean not null default false;
