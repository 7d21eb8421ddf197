// The operator's page: what is stuck, what has been submitted, what was broken off; asks every 3 s.
// The secret comes behind the # of the printed link, which no server and no log sees, and stays in
// this tab.

import { line, setText, STATES } from "./elements.js";
import { time } from "./times.js";

const POLL_MS = 3000;
const UNAUTHORIZED = 401;
const AWAY = "The scanner cannot be reached at the moment; this page keeps asking.";
const CLASSES = { stalled: "no news for too long", worker_lost: "its worker died", timeout: "over its time" };
const OUTCOMES = {
  succeeded: "scanned to the end", failed: "given up", cancelled: "stopped", released: "released",
  snoozed: "put off until no other scan runs", retried: "failed, to be tried again",
  stuck: "broken off", lost: "broken off, its worker died", timed_out: "broken off, over its time",
};

const by = (id) => document.getElementById(id);
let secret = decodeURIComponent(location.hash.slice(1)) || sessionStorage.getItem("scanner-secret");
if (location.hash) history.replaceState(null, "", location.pathname);

async function call(path) {
  const headers = { Authorization: `Bearer ${secret ?? ""}` };
  const answer = await fetch(`/api/v1/admin/${path}`, { headers, cache: "no-store" });
  if (!answer.ok) throw answer;
  return answer.json();
}

async function ask() {
  try {
    const [status, list, metrics] = await Promise.all(
      ["queue/status", "submissions", "queue/metrics?hours=24"].map(call),
    );
    sessionStorage.setItem("scanner-secret", secret);
    setText(by("wrong"), "");
    show(status, list, metrics);
  } catch (failed) {
    if (failed.status === UNAUTHORIZED) return enter();
    setText(by("wrong"), AWAY);
  }
  setTimeout(ask, POLL_MS);
}

function enter() {
  by("board").hidden = true;
  by("enter").hidden = false;
  setText(by("enter-wrong"), secret ? "This is not the operator's secret." : "");
  by("secret").focus();
}

function show(status, { submissions }, { timeouts, throughput }) {
  by("enter").hidden = true;
  by("board").hidden = false;
  setText(by("pending"), String(status.pending));
  setText(by("processing"), String(status.processing));
  setText(by("stuck-count"), String(status.stuck.length));
  setText(by("workers"), String(status.workers.length));
  fill("stuck", status.stuck.map(({ submissionId, name, stage, classification, since, recovery }) => [
    submissionId ? { text: name, href: `/submit/${submissionId}` } : { text: "–" },
    { text: STATES[stage] ?? stage, state: stage },
    { text: `${CLASSES[classification] ?? classification}, since ${time(since)}` },
    { text: `started again ${recovery.count} of ${recovery.max} times${
      recovery.nextRetryAfter ? `, next at ${time(recovery.nextRetryAfter)}` : ""}` },
  ]));
  fill("packages", submissions.map(({ id, name, state, reason, createdAt }) => [
    { text: name, href: `/submit/${id}` },
    { text: STATES[state], state },
    { text: reason ?? "" },
    { text: time(createdAt) },
  ]));
  fill("timeouts", timeouts.map(({ hour, classification, count, totalDurationMs }) => [
    { text: time(hour) },
    { text: CLASSES[classification] ?? classification },
    { text: `${count === 1 ? "once" : `${count} times`}, after ${seconds(totalDurationMs / count)} on average` },
  ]));
  fill("throughput", throughput.map(({ hour, outcome, count, totalDurationMs }) => [
    { text: time(hour) },
    { text: OUTCOMES[outcome] ?? outcome },
    { text: `${count}, after ${seconds(totalDurationMs / count)} on average` },
  ]));
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`;
}

function fill(id, rows) {
  by(id).tBodies[0].replaceChildren(...rows.map(line));
  document.querySelector(`[data-empty="${id}"]`).hidden = rows.length > 0;
}

by("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  secret = by("secret").value.trim();
  ask();
});
ask();
