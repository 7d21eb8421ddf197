// The teacher's page: all submissions, and the switches. One stream reports changes.

import { watch } from "/penstock/static/penstock.js";

// Changes of fifty jobs are collected for this time.
const CHANGES_MS = 1000;
// Without changes the page polls at this interval, because the stream does not report the model.
const POLL_MS = 10_000;
const AGAIN_MS = 3000;
const HEADERS = { "X-Requested-With": "aufgaben" };
const WORDS = {
  processing: "wird ausgewertet",
  retry: "neuer Versuch",
  pending: "wartet",
  completed: "fertig",
  failed: "fehlgeschlagen",
};
const ORDER = Object.keys(WORDS);
const COUNTED = { ...WORDS, processing: "in Auswertung", retry: "mit neuem Versuch", pending: "wartend" };

const by = (id) => document.getElementById(id);
const titles = new Map(
  [...by("titles").children].map((option) => [option.value, option.textContent]),
);
let timer = null;
let asking = false;
let hasChanged = false; // since the last poll
let live = null;

function askIn(ms) {
  clearTimeout(timer);
  timer = setTimeout(ask, ms);
}

function askSoon() {
  if (!hasChanged && !asking) askIn(CHANGES_MS);
  hasChanged = true;
}

async function ask() {
  clearTimeout(timer);
  asking = true;
  hasChanged = false;
  let answer;
  let reply;
  try {
    answer = await fetch("/api/klasse");
    reply = await answer.json();
  } catch {
    reply = { ok: false, error: "Die Seite ist gerade nicht verbunden; wir versuchen es weiter." };
  }
  if (answer?.status === 401) {
    location.reload();
    return;
  }
  complain(reply.ok ? "" : reply.error);
  asking = false;
  if (reply.ok) {
    show(reply);
    listen(reply.live);
  }
  askIn(!reply.ok ? AGAIN_MS : hasChanged ? CHANGES_MS : POLL_MS);
}

function listen({ src, token }) {
  live ??= watch(src, { token, renew, onchange: askSoon, onerror: () => { live = null; } });
}

async function renew() {
  const reply = await (await fetch("/api/klasse")).json();
  return reply.live?.token;
}

function complain(text) {
  if (by("wrong").textContent !== text) by("wrong").textContent = text;
}

function lamp(element, on, text) {
  element.dataset.lamp = on ? "on" : "off";
  if (element.textContent !== text) element.textContent = text;
}

function show({ queue_on: queueOn, model, submissions }) {
  lamp(by("model"), model.there, model.there ? "erreichbar" : "nicht erreichbar");
  lamp(by("queue"), queueOn, queueOn ? "an" : "aus: Abgeben wartet auf die Antwort");
  by("stop").hidden = !model.switch || !model.there;
  by("start").hidden = !model.switch || model.there;
  // During an outage all jobs count as waiting, whether they were tried before or not.
  for (const one of submissions) {
    if (one.held_up) one.feedback_status = "pending";
    one.word = one.held_up && !model.there ? "wartet auf die KI" : WORDS[one.feedback_status];
  }
  const rank = ({ feedback_status: status, queue_position: position, id }) =>
    [ORDER.indexOf(status), position ?? Infinity, status === "pending" ? id : -id];
  const sorted = submissions.toSorted((one, other) => compare(rank(one), rank(other)));
  by("empty").hidden = sorted.length > 0;
  by("table").hidden = sorted.length === 0;
  by("rows").replaceChildren(...sorted.map(row));
  by("counts").replaceChildren(...ORDER.map((status) => count(status, sorted)));
}

function compare(one, other) {
  const at = one.findIndex((value, index) => value !== other[index]);
  return at < 0 ? 0 : one[at] - other[at];
}

function count(status, submissions) {
  const item = document.createElement("li");
  const number = document.createElement("strong");
  number.textContent = submissions.filter((one) => one.feedback_status === status).length;
  item.append(number, ` ${COUNTED[status]}`);
  return item;
}

function row(submission) {
  const { pupil, simulated, task, feedback_status: status, queue_position: position } = submission;
  const line = document.createElement("tr");
  const badge = document.createElement("span");
  badge.className = "badge";
  badge.dataset.status = status;
  badge.textContent = submission.word;
  const wait = submission.wait_seconds;
  for (const content of [
    simulated ? `${pupil} (Probe)` : pupil,
    titles.get(task) ?? task,
    badge,
    position ?? "",
    wait === null ? "" : duration(wait),
  ]) {
    const cell = line.insertCell();
    cell.append(content);
    if (line.cells.length === 2) cell.className = "task";
    if (line.cells.length > 3) cell.className = line.cells.length === 4 ? "place number" : "wait number";
  }
  return line;
}

// Rounded to what can be promised.
function duration(seconds) {
  if (seconds <= 50) return `${Math.max(1, Math.ceil(seconds / 10)) * 10} Sekunden`;
  const minutes = Math.max(1, Math.round(seconds / 60));
  if (minutes < 60) return minutes === 1 ? "1 Minute" : `${minutes} Minuten`;
  const hours = Math.round(minutes / 60);
  return hours === 1 ? "1 Stunde" : `${hours} Stunden`;
}

async function command(button, path) {
  button.disabled = true;
  try {
    const answer = await fetch(path, { method: "POST", headers: HEADERS });
    const reply = await answer.json();
    await ask();
    if (!reply.ok) complain(reply.error);
  } catch {
    complain("Das hat nicht geklappt. Versuch es noch einmal.");
  } finally {
    button.disabled = false;
  }
}

by("fifty").addEventListener("click", () => command(by("fifty"), "/api/klasse/abgaben"));
by("stop").addEventListener("click", () => command(by("stop"), "/api/klasse/ki/anhalten"));
by("start").addEventListener("click", () => command(by("start"), "/api/klasse/ki/starten"));
ask();
