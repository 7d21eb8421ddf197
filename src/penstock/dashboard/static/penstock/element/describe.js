// What a person is told about a job: words and numbers only, no page. See the table in the docs.

const LIVE = new Set(["scheduled", "queued", "running", "awaiting"]);
// Nothing is known about when: what waits for these has no wait to show.
const STOPPED = new Set(["circuit_open", "paused", "no_worker", "no_handler"]);

export function isLive(job) {
  return job !== null && LIVE.has(job.status);
}

/** `wait`: seconds, or null; `outageAt`: since when, where that is known. */
export function describe(job, language, { now, wait = null, outageAt = null }) {
  const view = STATES[job.status]?.(job, language, { now, wait, outageAt }) ?? {
    mood: "waiting",
    status: job.status,
  };
  if (isLive(job) && job.cancel_requested) {
    return { ...view, mood: "waiting", status: language.say("cancelling"), wait: null, note: null };
  }
  return view;
}

const STATES = { scheduled, queued, running, awaiting, succeeded, failed, cancelled };

function scheduled(job, language, told) {
  const { now } = told;
  if (STOPPED.has(job.waiting_for)) return queued(job, language, told);
  const at = Date.parse(job.run_at);
  if (!(at > now)) return { mood: "waiting", status: language.say("due") };
  const why = job.recovery?.next_at ? "recovering" : job.attempt > 0 ? "backoff" : "scheduled";
  // One that waits because it wants to was neither interrupted, nor has it failed.
  const key = why === "backoff" && job.waiting_for !== "backoff" ? "scheduled" : why;
  return {
    mood: "waiting",
    status: language.say(key, { time: language.moment(at, now) }),
    note: key === "scheduled" ? null : language.say(`${key}_note`),
  };
}

function queued(job, language, { now, wait, outageAt }) {
  const why = job.waiting_for;
  const view = { mood: "waiting", status: language.say("queued"), banner: null, note: null };
  if (job.position) view.position = language.say("position", { position: job.position });
  if (STOPPED.has(why)) {
    const since = why === "circuit_open" && outageAt !== null;
    const time = since ? language.moment(outageAt, now) : "";
    // To the person who waits, both mean that no worker is there.
    const key = why === "no_handler" ? "no_worker" : why;
    const banner = language.say(since ? `${key}_since` : key, { time });
    return { ...view, mood: "warning", banner };
  }
  if (wait !== null) {
    const key = why === "rate_limit" ? "wait_rate_limit" : "wait";
    view.wait = language.say(key, { wait: language.wait(wait) });
  }
  if (why === "rate_limit" || why === "account_limit") view.note = language.say(why);
  return view;
}

function running(job, language, { now }) {
  const stale = job.staleness?.stale ? job.staleness : null;
  const since = stale ? language.moment(Date.parse(stale.since), now) : "";
  return {
    mood: stale ? "warning" : "working",
    status: language.say(job.status),
    stage: job.stage_label || job.stage || null,
    since: Date.parse(job.started_at) || null,
    progress: progress(job, language),
    banner: stale ? language.say("stale", { message: stale.message, since }) : null,
  };
}

function awaiting(job, language, told) {
  return running(job, language, told);
}

function succeeded(job, language) {
  const some = job.failed > 0 && job.total;
  return {
    mood: "good",
    status: language.say("succeeded"),
    note: some ? language.say("some_failed", { count: job.failed, total: job.total }) : null,
    credits: partlyCharged(job, language),
  };
}

function failed(job, language) {
  const kind = job.error?.class;
  const expired = kind === "expired";
  const known = kind && language.knows(`error.${kind}`);
  // What the app itself says to its customers; all else is said by its class.
  const own = job.error?.public && language.knows("error.public");
  const key = own ? "error.public" : known ? `error.${kind}` : "error.other";
  const message = job.error?.message ?? "";
  const again = job.retried_by ? "retried" : job.error?.retryable ? "retry" : null;
  return {
    mood: "bad",
    status: language.say(expired ? "expired" : "failed"),
    error: language.say(key, { message }),
    credits: charged(job, language),
    note: again ? language.say(again) : null,
  };
}

function cancelled(job, language) {
  return { mood: "quiet", status: language.say("cancelled"), credits: charged(job, language) };
}

function progress(job, language) {
  const { done, total } = job.progress ?? {};
  if (!(total > 0) || !(done >= 0)) return null;
  const whole = Math.floor(done);
  return { done, total, words: language.say("count", { done: whole, total }) };
}

function partlyCharged({ credits, progress: at }, language) {
  if (!credits || !(credits.refunded > 0)) return null;
  const count = credits.refunded;
  if (at?.total > 0 && at.done < at.total) {
    return language.say("partly", { done: Math.floor(at.done), total: at.total, count });
  }
  const { charged: used, reserved } = credits;
  return language.say("partly_charged", { charged: used, reserved, count });
}

function charged({ credits }, language) {
  if (!credits) return null;
  if (!(credits.charged > 0)) return language.say("nothing_charged");
  return language.say("charged", { count: credits.charged });
}
