// The queue as a table, with totals; and the switches of the function. Asks every 3 s.

import { by, call, rest, rests, say, show } from "./elements.js";

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
  say(line.querySelector("th"), job.pupil ?? "–");
  // Whose marks were cleared since has no pupil any more.
  say(line.querySelector(".assignment"), titles.get(job.assignment) ?? "marks were cleared");
  line.querySelector(".badge").dataset.status = status;
  say(line.querySelector(".badge"), words);
  say(line.querySelector(".attempts"), job.attempt ? String(job.attempt) : "");
  say(line.querySelector(".asked"), time(job.created_at));
  say(line.querySelector(".took"), took(job));
  say(line.querySelector(".error"), job.error?.message ?? "");
  line.querySelector("button").hidden = !job.may_retry;
  line.querySelector("button").setAttribute("aria-label", `Retry: ${job.pupil}`);
  return line;
}

async function ask() {
  clearTimeout(timer);
  const said = await call("/api/ai-queue");
  say(by("wrong"), said.ok ? "" : said.error);
  if (said.ok) take(said);
  timer = setTimeout(ask, POLL_MS);
}

function take(said) {
  say(by("pending"), String(said.pending));
  say(by("processing"), String(said.processing));
  say(by("failed"), String(said.failed_today));
  say(by("average"), seconds(said.avg_processing_seconds));
  show(by("held-up"), said.message ?? "");
  say(by("there"), said.function.there ? "it answers" : "it does not answer");
  by("there").dataset.there = said.function.there;
  by("switches").hidden = !said.function.switch;
  by("switches").querySelector("[data-order=stop]").hidden = !said.function.there;
  by("switches").querySelector("[data-order=start]").hidden = said.function.there;
  by("empty").hidden = said.jobs.length > 0;
  by("table").hidden = said.jobs.length === 0;
  const wanted = said.jobs.map(row);
  const there = by("rows").children;
  if (wanted.some((line, at) => there[at] !== line) || there.length !== wanted.length) {
    by("rows").replaceChildren(...wanted);
  }
}

async function retry(line, id) {
  const button = line.querySelector("button");
  if (rests(button)) return;
  rest(button);
  const said = await call(`/api/ai-queue/${id}/retry`, {});
  await ask();
  if (!said.ok) say(by("wrong"), said.error);
  rest(button, false);
}

for (const button of by("switches").children) {
  button.addEventListener("click", async () => {
    if (rests(button)) return;
    rest(button);
    const { order } = button.dataset;
    const said = await call(`/api/function/${order}`, {});
    say(by("told"), said.ok ? TOLD[order] : said.error);
    await ask();
    rest(button, false);
  });
}

ask();
