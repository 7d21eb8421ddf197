-- What a circuit knows of a provider that refuses some calls and answers others.

-- The share of calls that were refused, of about the last eight; 0 when it is less than 1 %.
alter table penstock.circuit add column refused double precision not null default 0;
-- That share before the failures in a row began: it decides how many of them open the circuit.
alter table penstock.circuit add column row_refused double precision not null default 0;
-- The account of the first failure in a row, and whether the row is of several accounts (of jobs
-- without an account: of several jobs).
alter table penstock.circuit add column row_account bigint;
alter table penstock.circuit add column row_shared boolean not null default false;
-- When a call was answered last, and when the calls that were answered began: the latest of them.
-- At rest both may be five seconds old.
alter table penstock.circuit add column answered_at timestamptz not null default '-infinity';
alter table penstock.circuit add column answered_start timestamptz not null default '-infinity';
-- When `allowed` was last lowered.
alter table penstock.circuit add column eased_at timestamptz not null default '-infinity';
-- The account of the last probe, or of all failures that opened the circuit: the next probe is
-- another account's job, where one waits.
alter table penstock.circuit add column suspect bigint;
-- A row per queue: to validate it takes no time.
-- squawk-ignore constraint-missing-not-valid
alter table penstock.circuit add constraint shares_are_shares
  check (refused between 0 and 1 and row_refused between 0 and 1);
-- A finish looks at the circuits of its queues by their key.
-- squawk-ignore require-concurrent-index-deletion
drop index penstock.circuit_troubled_idx;
