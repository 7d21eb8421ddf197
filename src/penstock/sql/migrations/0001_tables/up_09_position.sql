-- What upkeep measures, so that a waiting job has a position and an ETA.

-- How long an attempt of a kind takes, from the last jobs of that kind.
create table penstock.pace (
  kind_id integer primary key references penstock.kind on delete cascade,
  seconds double precision not null,
  samples integer not null,
  -- The latest finish among the measured jobs.
  newest_at timestamptz not null,
  constraint seconds_are_not_negative check (seconds >= 0),
  constraint samples_are_positive check (samples >= 1)
);

-- How many jobs of a queue run at once while others wait in it, and when the next snapshot is due.
create table penstock.flow (
  queue_id integer primary key references penstock.queue on delete cascade,
  parallel double precision not null default 0,
  seen_at timestamptz not null default '-infinity',
  snapshot_due_at timestamptz not null default '-infinity',
  -- Lanes that were closed when the snapshot was taken: their jobs are not in it.
  closed bigint[] not null default '{}',
  constraint parallel_is_not_negative check (parallel >= 0)
) with (fillfactor = 50);

-- The order of a deep queue in slices of a few hundred jobs: the rank of the first job of each
-- slice, and the seconds of work before it. Lane -2: all jobs in no lane or an open one; other
-- lanes: those that are deep enough to have slices of their own.
create table penstock.snapshot (
  queue_id integer not null references penstock.queue on delete cascade,
  lane bigint not null,
  ranks bigint[] not null,
  work double precision[] not null,
  primary key (queue_id, lane),
  constraint each_slice_has_its_work check (cardinality(ranks) = cardinality(work))
);
-- Read far more often than written, so not compressed.
alter table penstock.snapshot alter column ranks set storage external;
alter table penstock.snapshot alter column work set storage external;

-- When upkeep last measured, so that only one of many workers measures.
create table penstock.measured (
  only_row boolean primary key default true,
  at timestamptz not null default '-infinity',
  constraint there_is_one_row check (only_row)
) with (fillfactor = 50);
insert into penstock.measured default values;
