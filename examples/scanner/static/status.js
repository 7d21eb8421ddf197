// A submission: <penstock-job> shows how its scan goes on, with a banner while it is late; the rest
// is read when something has changed, until the end.

import "/penstock/static/penstock.js";
import { disable, isDisabled, setText } from "./elements.js";
import { remember } from "./mine.js";
import { time } from "./times.js";

const AGAIN_MS = 2000; // after an answer that did not come
const GATHER_MS = 100; // changes that come together are read once
const ANSWER_MS = 20_000; // an answer that takes longer does not come
const ENDED = new Set(["PUBLISHED", "REJECTED"]);
const AWAY = "The scanner cannot be reached at the moment. Your submission is safe; this page keeps asking.";
const CLASSES = { stalled: "no news for too long", worker_lost: "its worker died", timeout: "over its time" };
const OUTCOMES = {
  succeeded: "scanned to the end", cancelled: "stopped", released: "released",
  // A scan whose worker died runs alone the next time, so that it takes no other scan with it.
  snoozed: "put off until no other scan runs beside it",
};
const BROKEN_OFF = "The scan was broken off. You need not do anything.";

const by = (id) => document.getElementById(id);
const path = `/api/v1/submissions/${by("submission").dataset.id}`;

by("job").texts = {
  queued: "We have your package",
  scheduled: "Starts again at {time}", // put off, see above: nobody plans a scan for later
  running: "Being scanned",
  backoff: "Starts again at {time}",
  backoff_note: BROKEN_OFF,
  recovering: "Starts again at {time}",
  recovering_note: BROKEN_OFF,
  no_worker: "Nobody is at work at the moment. It goes on by itself.",
  paused: "The scanner has a break. It goes on by itself.",
  reconnecting: AWAY,
};

async function call(url, options = {}) {
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(url, { ...options, signal, cache: "no-store" });
    return { status: answer.status, reply: await answer.json() };
  } catch {
    return { status: 0, reply: {} };
  }
}

let timer = null;
function later(ms) {
  clearTimeout(timer);
  timer = setTimeout(ask, ms);
}

let asked = 0; // how many questions: an older answer may come later
async function ask() {
  const number = (asked += 1);
  const { status, reply } = await call(path);
  if (number < asked) return;
  const away = status === 0 || status >= 500;
  if (status === 200) show(reply);
  else if (!away || by("job").hidden) setText(by("message"), away ? AWAY : reply.error);
  if (away) later(AGAIN_MS);
}

// What the page itself shows of a job. Its progress is none of that.
let heard = "";
by("job").addEventListener("change", ({ detail: job }) => {
  const { status, stage, attempt, staleness, recovery } = job;
  const now = JSON.stringify([status, stage, attempt, staleness?.stale, recovery]);
  if (now === heard) return;
  heard = now;
  later(GATHER_MS);
});
by("job").addEventListener("error", () => later(0)); // it is not there any more, perhaps
by("job").renew = async () => {
  const { status, reply } = await call(path);
  if (status !== 200) throw new Error(AWAY);
  return reply.job?.token ?? null;
};

function follow(job) {
  const element = by("job");
  element.hidden = job === null;
  if (job === null) element.removeAttribute("src");
  else if (!element.hasAttribute("src")) {
    element.setAttribute("token", job.token);
    element.setAttribute("src", job.src);
  }
}

function show(told) {
  const { state, staleness, fault } = told;
  const ended = ENDED.has(state);
  Object.assign(by("now").dataset, { state, fault: fault ?? "" });
  by("now").classList.toggle("stale", staleness.stale);
  showStages(state, told.stage);
  follow(told.job);
  setText(by("message"), ended ? told.message : "");
  const recovery = recoveryWords(told);
  by("recovery").hidden = recovery === "";
  setText(by("recovery"), recovery);
  setText(by("facts"), facts(told));
  by("again").hidden = fault !== "platform";
  by("another").hidden = !ended;
  list("findings", told.findings, ({ line, what, rule }) =>
    `${line === null ? "" : `Line ${line}: `}${what} (${rule})`);
  // One start that went well is nothing to tell.
  list("starts", told.attempts.length > (ended ? 1 : 0) ? told.attempts : [], startWords);
}

// `stage` is the last one it came to, also of one that has ended.
function showStages(state, stage) {
  const items = [...by("stages").children];
  setText(by("end"), state === "REJECTED" ? "Rejected" : "Published");
  const reached = items.findIndex((item) => item.dataset.stage === stage);
  const here = ENDED.has(state) ? items.length - 1 : reached;
  items.forEach((item, at) => {
    item.classList.toggle("here", at === here);
    item.classList.toggle("passed", at < here && at <= reached);
    item.classList.toggle("skipped", at < here && at > reached);
    if (at === here) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
}

function recoveryWords({ state, recovery }) {
  if (recovery === null || recovery.count === 0) return "";
  const often = `Started again ${recovery.count} of ${recovery.max} times`;
  if (ENDED.has(state)) return `${often}.`;
  const last = recovery.lastRetryAt ? `, last at ${time(recovery.lastRetryAt)}` : "";
  return `${often}${last}.${recovery.nextRetryAfter ? ` Next try at ${time(recovery.nextRetryAfter)}.` : ""}`;
}

function facts({ reason, createdAt, stageSince, endedAt }) {
  const parts = reason ? [`Reason: ${reason}`] : [];
  parts.push(`${reason ? "submitted" : "Submitted"} ${time(createdAt)}`);
  if (stageSince) parts.push(`in this stage since ${time(stageSince)}`);
  if (endedAt) parts.push(`ended ${time(endedAt)}`);
  return parts.join(" · ");
}

function startWords({ outcome, classification, startedAt, endedAt }) {
  const seconds = (new Date(endedAt) - new Date(startedAt)) / 1000;
  const named = classification ? ` (${classification})` : "";
  const words = CLASSES[classification] ?? OUTCOMES[outcome] ?? "failed";
  return `${time(startedAt)}, ${seconds.toFixed(1)} s: ${words}${named}`;
}

function list(id, items, words) {
  const place = by(id).querySelector(".list");
  by(id).hidden = items.length === 0;
  items.forEach((one, at) => {
    setText(place.children[at] ?? place.appendChild(document.createElement("li")), words(one));
  });
  [...place.children].slice(items.length).forEach((item) => item.remove());
}

by("again").addEventListener("click", async () => {
  const button = by("again");
  if (isDisabled(button)) return;
  disable(button);
  const { status, reply } = await call(`${path}/again`, { method: "POST" });
  if (reply.id) {
    remember(reply);
    location.assign(`/submit/${reply.id}`);
    return;
  }
  disable(button, false);
  setText(by("wrong"), status === 0 ? AWAY : reply.error);
});

ask();
