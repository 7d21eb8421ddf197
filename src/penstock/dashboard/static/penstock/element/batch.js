// A batch as a person sees it who asked for it: as one job.

const RUNS = new Set(["running", "awaiting"]);
const WAITS = new Set(["queued", "scheduled"]);

/** Whether it stops, is late, why it failed: a batch leaves that to its jobs. What they wait for is
    not told with a batch. */
export function asJob(batch) {
  if (!Array.isArray(batch.items)) return batch;
  const runs = batch.items.filter(({ status }) => RUNS.has(status));
  const waits = batch.items.filter(({ status }) => WAITS.has(status));
  const live = [...runs, ...waits];
  const stale = runs.find((job) => job.staleness?.stale);
  const failed = batch.items.find((job) => job.status === "failed");
  return {
    ...batch,
    // Some have begun, and none of them runs now: it waits again.
    status: waits.length && !runs.length && batch.running === 0 ? "queued" : batch.status,
    position: runs.length ? null : batch.position,
    cancel_requested: live.some((job) => job.cancel_requested),
    started_at: runs.map((job) => job.started_at).sort()[0] ?? null,
    staleness: stale?.staleness ?? null,
    error: failed?.error ?? null,
    progress: counted(batch),
  };
}

/** Of a single job its own progress: "0 of 1" would say nothing. */
function counted({ total, items, progress }) {
  const own = total === 1 ? items[0]?.progress : null;
  return own ? { ...own, partial: progress?.partial } : progress;
}
