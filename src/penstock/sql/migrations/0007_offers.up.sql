-- Workers that run nothing and would start the next job at once; see offers.sql. Unlogged: after a
-- crash nobody has offered anything, and no offer waits for a disk.
create unlogged table penstock.offer (
  worker_id bigint primary key,
  -- Of which queues.
  queue_ids integer[] not null,
  -- Where the worker hears of it: a name that nobody else knows.
  channel text not null,
  offered_at timestamptz not null,
  -- What was handed over for it; null: it stands.
  job_id uuid
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Nobody who may read all tables learns a channel's name.
alter table penstock.offer enable row level security;
