// The class: asks for marks, and shows them as they come. How a job goes on, <penstock-job> shows;
// all rows and the page itself hear of it by one stream.

import { watch } from "/static/penstock.js";
import { by, call, disable, isDisabled, setText, show } from "./elements.js";

const AGAIN_MS = 3000; // after an answer that did not come
const GATHER_MS = 150; // changes that come together are read once
const QUIET_MS = 1000; // a slow double click is one click
const WORDS = { pending: "Pending", marking: "Marking", marked: "Marked", failed: "Failed" };
const JOB_WORDS = {
  queued: "Pending",
  running: "Being marked …",
  awaiting: "Being marked …",
  failed: "Failed",
  cancelled: "Failed",
  backoff_note: "That did not work yet; it is tried again by itself.",
  // Said once, above the rows.
  circuit_open: "",
  circuit_open_since: "",
  no_worker: "",
  paused: "",
  reconnecting: "",
  offline: "",
};
const LIVE = "Live";
const NOT_LIVE = "Not live; asks every 3 seconds";
const LAMPS = {
  live: ["on", LIVE],
  polling: ["off", NOT_LIVE],
  reconnecting: ["off", NOT_LIVE],
  offline: ["off", "You are offline"],
};
const PATH = `/api/assignments/${encodeURIComponent(document.body.dataset.assignment)}`;

const rows = new Map(); // by the answer's id
let topic = null; // what is watched, and a token for it; null: not known yet
let timer = null;
let asked = 0; // how many questions
let shown = 0; // the number of the one that is shown: an older answer may come later

// --- what there is --------------------------------------------------------------------------

function place(answer) {
  if (!rows.has(answer.id)) rows.set(answer.id, newRow(answer));
  const row = rows.get(answer.id);
  row.dataset.status = answer.status;
  const isWatched = follow(row.querySelector("penstock-job"), answer);
  const badge = row.querySelector(".badge");
  badge.dataset.status = answer.status;
  show(badge, isWatched ? "" : (WORDS[answer.status] ?? ""));
  show(row.querySelector(".message"), isWatched ? "" : (answer.feedback ?? answer.message));
  setText(row.querySelector(".reason"), answer.status === "failed" ? answer.message : "");
  setText(row.querySelector(".mark"), answer.status === "marked" ? `${answer.score} / ${answer.out_of}` : "");
  const button = row.querySelector("button");
  const may = answer.status === "unmarked" || answer.status === "failed";
  // What is hidden cannot have the focus.
  if (!may && document.activeElement === button) by("all").focus({ preventScroll: true });
  button.hidden = !may;
  setText(button, answer.status === "failed" ? "Retry" : "Mark with AI");
  button.setAttribute("aria-label", `${button.textContent}: ${answer.pupil}`);
  const correct = row.querySelector(".correct");
  correct.hidden = answer.status !== "marked" && answer.status !== "failed";
  correct.setAttribute("aria-label", `Correct: ${answer.pupil}`);
  correct.onclick = () => openCorrection(answer);
  row.querySelector(".by-hand").hidden = !answer.corrected;
}

function newRow(answer) {
  const row = document.importNode(by("row").content, true).firstElementChild;
  setText(row.querySelector("th"), answer.pupil);
  setText(row.querySelector(".answer"), answer.answer);
  row.querySelector("button").addEventListener("click", () => mark(row, answer.id));
  // The mark is the page's to show.
  Object.assign(row.querySelector("penstock-job"), { texts: JOB_WORDS, renew, render: () => {} });
  by("rows").append(row);
  return row;
}

// Whether the row's job is one to be shown by it.
function follow(element, { job }) {
  const isWatched = topic !== null && job !== null;
  element.hidden = !isWatched;
  if (!isWatched) {
    element.removeAttribute("src");
    return false;
  }
  for (const [name, value] of Object.entries({ ...job, token: topic.token, stream: topic.src })) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  return true;
}

function take(reply) {
  if (!reply.ok || reply.number < shown) return;
  shown = reply.number;
  reply.answers.forEach(place);
  const { totals } = reply;
  for (const name of Object.keys(WORDS)) setText(by(name), String(totals[name]));
  by("bar").style.width = `${(100 * totals.marked) / reply.answers.length}%`;
  const working = totals.pending + totals.marking > 0;
  const left = totals.unmarked + totals.failed;
  if (!isDisabled(by("all"))) setText(by("all"), left === reply.answers.length ? "Mark all with AI" : `Mark ${left} with AI`);
  by("all").hidden = left === 0;
  by("clear").hidden = working || totals.marked + totals.failed === 0;
  const first = reply.answers.find((one) => one.status === "pending" && one.position === 1);
  show(by("held-up"), first ? first.message.replace(/^#1 in the queue\. ?/, "") : "");
  setText(by("said"), working ? "" : `${totals.marked} marked, ${totals.failed} failed.`);
}

// --- asking ---------------------------------------------------------------------------------

async function ask() {
  clearTimeout(timer);
  timer = null;
  const number = (asked += 1);
  const reply = await call(PATH);
  take({ ...reply, number });
  complain(reply.ok ? "" : reply.error, "connection");
  if (!reply.ok) later(AGAIN_MS);
}

// A look that is due sooner stays.
let due = Infinity;
function later(ms) {
  const at = performance.now() + ms;
  if (timer !== null && due <= at) return;
  clearTimeout(timer);
  due = at;
  timer = setTimeout(ask, ms);
}

// Of two complaints that of the last click stays; a lost connection is said until it is back.
let about = null;
function complain(text, what) {
  if (!text && about !== what) return;
  about = text ? what : null;
  setText(by("wrong"), text);
}

// --- watching -------------------------------------------------------------------------------

// A new token, when the time of the one before is over. Who is not signed in any more gets none.
async function renew() {
  const reply = await call(`${PATH}/live`);
  if (reply.status === 0 || reply.status >= 500) throw new Error(reply.error);
  if (reply.ok) topic = reply;
  return reply.ok ? reply.token : null;
}

async function listen() {
  try {
    await renew();
  } catch {
    setTimeout(listen, AGAIN_MS);
    return;
  }
  if (topic === null) return;
  watch(topic.src, { token: topic.token, stream: topic.src, renew, onchange, onstate });
  later(0);
}

// What is told again and again is its place, which the row shows; a look is for what has changed.
const heard = new Map();
function onchange({ id, status, waiting_for: why }) {
  const news = `${status} ${why}`;
  if (heard.get(id) === news) return;
  heard.set(id, news);
  later(GATHER_MS);
}

function onstate(state) {
  const [lamp, words] = LAMPS[state] ?? ["unknown", "Connecting …"];
  by("lamp").dataset.lamp = lamp;
  setText(by("lamp"), words);
  // What else happened in between, other tabs' clicks for one, is not told.
  if (state === "live" || state === "polling") later(0);
  // Until an answer comes, it is said that none does.
  if (state === "reconnecting") later(AGAIN_MS);
}

// --- clicks ---------------------------------------------------------------------------------

async function send(button, path, body) {
  if (isDisabled(button)) return;
  disable(button);
  const number = (asked += 1);
  const reply = await call(path, body);
  take({ ...reply, number });
  complain(reply.ok ? "" : reply.error, "click");
  later(reply.ok ? QUIET_MS : GATHER_MS);
  setTimeout(() => disable(button, false), reply.ok ? QUIET_MS : 0);
}

function mark(row, id) {
  return send(row.querySelector("button"), `${PATH}/mark`, { submission_id: id });
}

// --- by hand --------------------------------------------------------------------------------

let corrected = null; // the answer in the dialog

function openCorrection(answer) {
  corrected = answer;
  setText(by("correct-title"), `${answer.pupil}'s mark`);
  setText(by("correct-answer"), answer.answer);
  setText(by("out-of"), answer.out_of === null ? "" : `(of ${answer.out_of})`);
  by("score").max = answer.out_of ?? "";
  by("score").value = answer.score ?? "";
  by("feedback").value = answer.feedback ?? "";
  setText(by("correct-wrong"), "");
  by("correct").showModal();
  by("score").focus();
}

async function sendCorrection(event) {
  event.preventDefault();
  const score = by("score").value.trim() === "" ? null : Number(by("score").value);
  if (!by("score").checkValidity()) {
    setText(by("correct-wrong"), `Points may be a whole number from 0 to ${by("score").max || "the most there are"}.`);
    by("score").focus();
    return;
  }
  const number = (asked += 1);
  const body = { submission_id: corrected.id, score, feedback: by("feedback").value };
  const reply = await call(`${PATH}/correct`, body);
  take({ ...reply, number });
  setText(by("correct-wrong"), reply.ok ? "" : reply.error);
  if (reply.ok) by("correct").close();
}

by("correction").addEventListener("submit", sendCorrection);
by("correct-cancel").addEventListener("click", () => by("correct").close());
by("all").addEventListener("click", () => send(by("all"), `${PATH}/mark`, {}));
by("clear").addEventListener("click", () => send(by("clear"), `${PATH}/clear`, {}));

ask();
listen();
