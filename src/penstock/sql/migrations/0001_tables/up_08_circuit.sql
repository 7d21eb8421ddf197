-- Circuits: what a queue knows of the provider behind it, and what an operator has to do.

-- closed: jobs start as limits allow. open: only one job starts, as a probe, when next_at has come.
-- ramping: a probe was answered, and `allowed` jobs may run at once, one more with each answer.
create table penstock.circuit (
  queue_id integer primary key references penstock.queue on delete cascade,
  state text not null default 'closed',
  -- The class of the failure that opened it; null: an operator opened it, and no job is a probe.
  class text,
  reason text,
  changed_at timestamptz not null default '-infinity',
  next_at timestamptz,
  -- Probes that failed since it was last closed.
  tries integer not null default 0,
  probe_job uuid,
  probe_attempt integer,
  -- The account of the last probe, or of all failures that opened the circuit: the next probe is a
  -- job of another account, if one waits.
  suspect bigint,
  allowed integer,
  -- How many jobs may run when the time that the provider asked for is over.
  resume integer not null default 1,
  -- When `allowed` was last lowered.
  eased_at timestamptz not null default '-infinity',
  -- Failures of one kind of trouble since the last answer; whether they are of more than one job;
  -- the account of the first, and whether they are of several accounts (for jobs without an
  -- account: of several jobs).
  in_row integer not null default 0,
  row_trouble text,
  row_job uuid,
  row_mixed boolean not null default false,
  row_account bigint,
  row_shared boolean not null default false,
  -- The share of refused calls among about the last eight (0 if it is less than 1 %), and that
  -- share before the failures in a row began: it decides how many of them open the circuit.
  refused double precision not null default 0,
  row_refused double precision not null default 0,
  -- When a call was last answered, and when the latest of the answered calls began. While nothing
  -- changes, both may be five seconds old.
  answered_at timestamptz not null default '-infinity',
  answered_start timestamptz not null default '-infinity',
  -- The provider's address, as host:port; whether it accepted a connection at the last check.
  address text,
  reachable boolean not null default false,
  checked_at timestamptz not null default '-infinity',
  constraint state_is_known check (state in ('closed', 'open', 'ramping')),
  constraint open_has_a_next check (state <> 'open' or (next_at is null) = (class is null)),
  constraint ramp_is_positive check ((state = 'ramping') = (allowed is not null) and allowed >= 1),
  constraint probe_is_whole check ((probe_job is null) = (probe_attempt is null)),
  constraint counts_are_not_negative check (tries >= 0 and in_row >= 0 and resume >= 1),
  constraint shares_are_shares check (refused between 0 and 1 and row_refused between 0 and 1)
) with (fillfactor = 50);

-- What an operator has to know and to correct. At most one open alert per queue.
create table penstock.alert (
  id bigint generated always as identity primary key,
  queue_id integer not null references penstock.queue on delete cascade,
  class text not null,
  message text not null,
  raised_at timestamptz not null,
  cleared_at timestamptz
);
create unique index alert_raised_idx on penstock.alert (queue_id) where cleared_at is null;
