-- Limits: how many jobs run, and which jobs wait behind a limit.

-- The number of running jobs of a queue that has a limit. Not a column of `queue`, because it
-- changes all the time.
create table penstock.gate (
  queue_id integer primary key references penstock.queue on delete cascade,
  running integer not null default 0,
  rate_next_at timestamptz not null default '-infinity',
  constraint running_is_not_negative check (running >= 0)
) with (fillfactor = 20);

-- The queued jobs of one limited account, one queue and one kind: a claim reads one row for all of
-- them. A row per kind, so that jobs of a kind that no worker serves do not block others.
-- Under `fair` all lanes of an account in a queue share one virtual time.
create table penstock.lane (
  account_id bigint not null,
  queue_id integer not null,
  kind_id integer not null,
  -- The smallest rank of its queued jobs; under `fair` the lane's virtual time.
  head bigint not null,
  waiting integer not null default 0,
  open boolean not null default true,
  primary key (account_id, queue_id, kind_id),
  constraint waiting_is_not_negative check (waiting >= 0)
) with (fillfactor = 50);
create index lane_open_idx on penstock.lane (queue_id, kind_id, head) where open and waiting > 0;
