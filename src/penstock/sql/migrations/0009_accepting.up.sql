-- For check_liveness: a job that waits is stuck only where a worker would take it.

-- Queues of which the worker would take one more job, and since when, as its heartbeat says. Null:
-- none, or a worker of an earlier version.
alter table penstock.worker add column accepting jsonb;
