// Describes a job for a person, in words and numbers without HTML. See the table in the docs.

const LIVE = new Set(["scheduled", "queued", "running", "awaiting"]);
// Nobody knows for how long these last, so there is no ETA to show.
const STOPPED = new Set(["circuit_open", "paused", "no_worker", "no_handler"]);

export function isLive(job) {
  return job !== null && LIVE.has(job.status);
}

/** `wait`: ETA in seconds, or null; `outageAt`: the start of the outage, if it is known. */
export function describe(job, language, { now, wait = null, outageAt = null }) {
  const view = STATES[job.status]?.(job, language, { now, wait, outageAt }) ?? {
    mood: "waiting",
    status: job.status,
  };
  if (isLive(job) && job.cancel_requested) {
    const status = language.text("cancelling");
    return { ...view, mood: "waiting", status, wait: null, note: null };
  }
  return view;
}

const STATES = { scheduled, queued, running, awaiting, succeeded, failed, cancelled };

function scheduled(job, language, context) {
  const { now } = context;
  if (STOPPED.has(job.waiting_for)) return queued(job, language, context);
  const at = Date.parse(job.run_at);
  if (!(at > now)) return { mood: "waiting", status: language.text("due") };
  const why = job.recovery?.next_at ? "recovering" : job.attempt > 0 ? "backoff" : "scheduled";
  // A job that snoozed was neither interrupted nor has it failed.
  const key = why === "backoff" && job.waiting_for !== "backoff" ? "scheduled" : why;
  return {
    mood: "waiting",
    status: language.text(key, { time: language.moment(at, now) }),
    note: key === "scheduled" ? null : language.text(`${key}_note`),
  };
}

function queued(job, language, { now, wait, outageAt }) {
  const why = job.waiting_for;
  const view = { mood: "waiting", status: language.text("queued"), banner: null, note: null };
  if (job.position) view.position = language.text("position", { position: job.position });
  if (STOPPED.has(why)) {
    const since = why === "circuit_open" && outageAt !== null;
    const time = since ? language.moment(outageAt, now) : "";
    // To a waiting person, both mean that no worker is available.
    const key = why === "no_handler" ? "no_worker" : why;
    const banner = language.text(since ? `${key}_since` : key, { time });
    return { ...view, mood: "warning", banner };
  }
  if (wait !== null) {
    const key = why === "rate_limit" ? "wait_rate_limit" : "wait";
    view.wait = language.text(key, { wait: language.wait(wait) });
  }
  if (why === "rate_limit" || why === "account_limit") view.note = language.text(why);
  return view;
}

function running(job, language, { now }) {
  const stale = job.staleness?.stale ? job.staleness : null;
  const since = stale ? language.moment(Date.parse(stale.since), now) : "";
  return {
    mood: stale ? "warning" : "working",
    status: language.text(job.status),
    stage: job.stage_label || job.stage || null,
    since: Date.parse(job.started_at) || null,
    progress: progress(job, language),
    banner: stale ? language.text("stale", { message: stale.message, since }) : null,
  };
}

function awaiting(job, language, context) {
  return running(job, language, context);
}

function succeeded(job, language) {
  const some = job.failed > 0 && job.total;
  return {
    mood: "good",
    status: language.text("succeeded"),
    note: some ? language.text("some_failed", { count: job.failed, total: job.total }) : null,
    credits: partlyCharged(job, language),
  };
}

function failed(job, language) {
  const kind = job.error?.class;
  const expired = kind === "expired";
  const known = kind && language.knows(`error.${kind}`);
  // The app's own message to its customers; all other errors are described by their class.
  const own = job.error?.public && language.knows("error.public");
  const key = own ? "error.public" : known ? `error.${kind}` : "error.other";
  const message = job.error?.message ?? "";
  const again = job.retried_by ? "retried" : job.error?.retryable ? "retry" : null;
  return {
    mood: "bad",
    status: language.text(expired ? "expired" : "failed"),
    error: language.text(key, { message }),
    credits: charged(job, language),
    note: again ? language.text(again) : null,
  };
}

function cancelled(job, language) {
  return { mood: "quiet", status: language.text("cancelled"), credits: charged(job, language) };
}

function progress(job, language) {
  const { done, total } = job.progress ?? {};
  if (!(total > 0) || !(done >= 0)) return null;
  const whole = Math.floor(done);
  return { done, total, words: language.text("count", { done: whole, total }) };
}

function partlyCharged({ credits, progress: at }, language) {
  if (!credits || !(credits.refunded > 0)) return null;
  const count = credits.refunded;
  if (at?.total > 0 && at.done < at.total) {
    return language.text("partly", { done: Math.floor(at.done), total: at.total, count });
  }
  const { charged: used, reserved } = credits;
  return language.text("partly_charged", { charged: used, reserved, count });
}

function charged({ credits }, language) {
  if (!credits) return null;
  if (!(credits.charged > 0)) return language.text("nothing_charged");
  return language.text("charged", { count: credits.charged });
}
