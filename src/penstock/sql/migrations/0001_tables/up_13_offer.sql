-- Workers that run nothing and would start the next job at once; see offers.sql. Unlogged: after a
-- crash no offer is left that counts, and no offer waits for a disk.
create unlogged table penstock.offer (
  worker_id bigint primary key,
  -- The queues it would take a job of.
  queue_ids integer[] not null,
  -- Where the worker listens for the job: a name that no other program knows.
  channel text not null,
  offered_at timestamptz not null,
  -- The job that was dispatched for it; null: the offer is open.
  job_id uuid
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- A role that may read all tables still does not see a channel's name.
alter table penstock.offer enable row level security;
