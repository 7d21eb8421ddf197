// The queue as a table, with totals; and the switches of the function. Asks every 3 s.

import { by, call, disable, isDisabled, setText, show } from "./elements.js";

const POLL_MS = 3000;
const WORDS = {
  scheduled: ["pending", "Pending, tried again later"],
  queued: ["pending", "Pending"],
  running: ["marking", "Marking"],
  awaiting: ["marking", "Marking"],
  succeeded: ["marked", "Marked"],
  failed: ["failed", "Failed"],
  cancelled: ["failed", "Cancelled"],
};
const TOLD = {
  stop: "Stopped. What waits is safe, and goes on when it is back.",
  start: "Started.",
  fail: "The next one will fail.",
  repeat: "From now on it says everything twice. Each mark is written once all the same.",
};

const titles = new Map([...by("titles").children].map((option) => [option.value, option.textContent]));
let timer = null;

function seconds(number) {
  return number === null ? "–" : `${number.toFixed(1)} s`;
}

function time(moment) {
  const then = new Date(moment);
  const isToday = then.toDateString() === new Date().toDateString();
  const form = isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" };
  return new Intl.DateTimeFormat(document.documentElement.lang, form).format(then);
}

function took({ started_at: from, finished_at: to }) {
  return from && to ? seconds((new Date(to) - new Date(from)) / 1000) : "";
}

// Rows stay who they are: a click on one of them is not lost when the table is read again.
const rows = new Map();

function row(job) {
  if (!rows.has(job.id)) {
    const made = by("row").content.firstElementChild.cloneNode(true);
    made.querySelector("button").addEventListener("click", () => retry(made, job.id));
    rows.set(job.id, made);
  }
  const line = rows.get(job.id);
  const [status, words] = WORDS[job.status];
  setText(line.querySelector("th"), job.pupil ?? "–");
  // Whose marks were cleared since has no pupil any more.
  setText(line.querySelector(".assignment"), titles.get(job.assignment) ?? "marks were cleared");
  line.querySelector(".badge").dataset.status = status;
  setText(line.querySelector(".badge"), words);
  setText(line.querySelector(".attempts"), job.attempt ? String(job.attempt) : "");
  setText(line.querySelector(".asked"), time(job.created_at));
  setText(line.querySelector(".took"), took(job));
  setText(line.querySelector(".error"), job.error?.message ?? "");
  line.querySelector("button").hidden = !job.may_retry;
  line.querySelector("button").setAttribute("aria-label", `Retry: ${job.pupil}`);
  return line;
}

async function ask() {
  clearTimeout(timer);
  const reply = await call("/api/ai-queue");
  setText(by("wrong"), reply.ok ? "" : reply.error);
  if (reply.ok) take(reply);
  timer = setTimeout(ask, POLL_MS);
}

function take(reply) {
  setText(by("pending"), String(reply.pending));
  setText(by("processing"), String(reply.processing));
  setText(by("failed"), String(reply.failed_today));
  setText(by("average"), seconds(reply.avg_processing_seconds));
  show(by("held-up"), reply.message ?? "");
  setText(by("there"), reply.function.there ? "it answers" : "it does not answer");
  by("there").dataset.there = reply.function.there;
  by("switches").hidden = !reply.function.switch;
  by("switches").querySelector("[data-order=stop]").hidden = !reply.function.there;
  by("switches").querySelector("[data-order=start]").hidden = reply.function.there;
  by("empty").hidden = reply.jobs.length > 0;
  by("table").hidden = reply.jobs.length === 0;
  const wanted = reply.jobs.map(row);
  const there = by("rows").children;
  if (wanted.some((line, at) => there[at] !== line) || there.length !== wanted.length) {
    by("rows").replaceChildren(...wanted);
  }
}

async function retry(line, id) {
  const button = line.querySelector("button");
  if (isDisabled(button)) return;
  disable(button);
  const reply = await call(`/api/ai-queue/${id}/retry`, {});
  await ask();
  if (!reply.ok) setText(by("wrong"), reply.error);
  disable(button, false);
}

for (const button of by("switches").children) {
  button.addEventListener("click", async () => {
    if (isDisabled(button)) return;
    disable(button);
    const { order } = button.dataset;
    const reply = await call(`/api/function/${order}`, {});
    setText(by("told"), reply.ok ? TOLD[order] : reply.error);
    await ask();
    disable(button, false);
  });
}

ask();
