// A batch as a person sees it who asked for it: as one job.

const RUNS = new Set(["running", "awaiting"]);
const WAITS = new Set(["queued", "scheduled"]);

/** Whether it stops, is late, why it failed: a batch leaves that to its jobs. What they wait for is
    not told with a batch. */
export function asOne(told) {
  if (!Array.isArray(told.items)) return told;
  const runs = told.items.filter(({ status }) => RUNS.has(status));
  const waits = told.items.filter(({ status }) => WAITS.has(status));
  const live = [...runs, ...waits];
  const stale = runs.find((one) => one.staleness?.stale);
  const failed = told.items.find((one) => one.status === "failed");
  return {
    ...told,
    // Some have begun, and none of them runs now: it waits again.
    status: waits.length && !runs.length && told.running === 0 ? "queued" : told.status,
    position: runs.length ? null : told.position,
    cancel_requested: live.some((one) => one.cancel_requested),
    started_at: runs.map((one) => one.started_at).sort()[0] ?? null,
    staleness: stale?.staleness ?? null,
    error: failed?.error ?? null,
    progress: counted(told),
  };
}

/** Of a single job its own progress: "0 of 1" would say nothing. */
function counted({ total, items, progress }) {
  const own = total === 1 ? items[0]?.progress : null;
  return own ? { ...own, partial: progress?.partial } : progress;
}
