// Shows a batch as one job, as the person who submitted it thinks of it.

const RUNS = new Set(["running", "awaiting"]);
const WAITS = new Set(["queued", "scheduled"]);

/** Take cancel requests, staleness and errors from its jobs, because a batch has none of its own.
    The reason for which they wait is not in a batch. */
export function asJob(batch) {
  if (!Array.isArray(batch.items)) return batch;
  const runs = batch.items.filter(({ status }) => RUNS.has(status));
  const waits = batch.items.filter(({ status }) => WAITS.has(status));
  const live = [...runs, ...waits];
  const stale = runs.find((job) => job.staleness?.stale);
  const failed = batch.items.find((job) => job.status === "failed");
  return {
    ...batch,
    // Some jobs have started, but none is running now: the batch waits again.
    status: waits.length && !runs.length && batch.running === 0 ? "queued" : batch.status,
    position: runs.length ? null : batch.position,
    cancel_requested: live.some((job) => job.cancel_requested),
    started_at: runs.map((job) => job.started_at).sort()[0] ?? null,
    staleness: stale?.staleness ?? null,
    error: failed?.error ?? null,
    progress: counted(batch),
  };
}

/** For a single job use its own progress: "0 of 1" would say nothing. */
function counted({ total, items, progress }) {
  const own = total === 1 ? items[0]?.progress : null;
  return own ? { ...own, partial: progress?.partial } : progress;
}
