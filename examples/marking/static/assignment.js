// The class: asks for marks, and shows them as they come.

import { by, call, rest, rests, say, show } from "./elements.js";
import { Live, POLL_MS } from "./live.js";

const LOOK_MS = 15_000; // all the same while changes are heard of: one may be missed
const GATHER_MS = 150; // changes that come together are read once
const QUIET_MS = 1000; // a slow double click is one click
const WORDS = { pending: "Pending", marking: "Marking", marked: "Marked", failed: "Failed" };
const PATH = `/api/assignments/${encodeURIComponent(document.body.dataset.assignment)}`;

const rows = new Map(); // by the answer's id
let timer = null;
let asked = 0; // how many questions
let shown = 0; // the number of the one that is shown: an older answer may come later
let working = false;

// --- what there is --------------------------------------------------------------------------

function place(answer) {
  if (!rows.has(answer.id)) {
    const row = by("row").content.firstElementChild.cloneNode(true);
    say(row.querySelector("th"), answer.pupil);
    say(row.querySelector(".answer"), answer.answer);
    row.querySelector("button").addEventListener("click", () => mark(row, answer.id));
    by("rows").append(row);
    rows.set(answer.id, row);
  }
  const row = rows.get(answer.id);
  const button = row.querySelector("button");
  const badge = row.querySelector(".badge");
  row.dataset.status = answer.status;
  badge.dataset.status = answer.status;
  show(badge, WORDS[answer.status] ?? "");
  say(row.querySelector(".mark"), answer.status === "marked" ? `${answer.score} / ${answer.out_of}` : "");
  show(row.querySelector(".message"), answer.feedback ?? answer.message);
  const may = answer.status === "unmarked" || answer.status === "failed";
  // What is hidden cannot have the focus.
  if (!may && document.activeElement === button) by("all").focus({ preventScroll: true });
  button.hidden = !may;
  say(button, answer.status === "failed" ? "Retry" : "Mark with AI");
  button.setAttribute("aria-label", `${button.textContent}: ${answer.pupil}`);
}

function take(said) {
  if (!said.ok || said.number < shown) return;
  shown = said.number;
  said.answers.forEach(place);
  const { totals } = said;
  for (const name of Object.keys(WORDS)) say(by(name), String(totals[name]));
  by("bar").style.width = `${(100 * totals.marked) / said.answers.length}%`;
  working = totals.pending + totals.marking > 0;
  const left = totals.unmarked + totals.failed;
  if (!rests(by("all"))) say(by("all"), left === said.answers.length ? "Mark all with AI" : `Mark ${left} with AI`);
  by("all").hidden = left === 0;
  by("clear").hidden = working || totals.marked + totals.failed === 0;
  const first = said.answers.find((one) => one.status === "pending" && one.position === 1);
  show(by("held-up"), first ? first.message.replace(/^#1 in the queue\. ?/, "") : "");
  say(by("said"), working ? "" : `${totals.marked} marked, ${totals.failed} failed.`);
}

// --- asking ---------------------------------------------------------------------------------

async function ask() {
  clearTimeout(timer);
  timer = null;
  const number = (asked += 1);
  const said = await call(PATH);
  take({ ...said, number });
  complain(said.ok ? "" : said.error, "connection");
  follow();
}

function follow() {
  later(live.connected || !working ? LOOK_MS : POLL_MS);
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
  say(by("wrong"), text);
}

// --- clicks ---------------------------------------------------------------------------------

async function send(button, path, body) {
  if (rests(button)) return;
  rest(button);
  const number = (asked += 1);
  const said = await call(path, body);
  take({ ...said, number });
  complain(said.ok ? "" : said.error, "click");
  later(said.ok ? QUIET_MS : GATHER_MS);
  setTimeout(() => rest(button, false), said.ok ? QUIET_MS : 0);
}

function mark(row, id) {
  return send(row.querySelector("button"), `${PATH}/mark`, { submission_id: id });
}

by("all").addEventListener("click", () => send(by("all"), `${PATH}/mark`, {}));
by("clear").addEventListener("click", () => send(by("clear"), `${PATH}/clear`, {}));
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") later(0);
});

const live = new Live(`${PATH}/live`, {
  onchange: () => later(GATHER_MS),
  onstate: (connected) => {
    by("lamp").dataset.lamp = connected ? "on" : "off";
    say(by("lamp"), connected ? "Live" : "Not live; asks every 3 seconds");
    // What happened in between is not told again.
    later(connected ? 0 : POLL_MS);
  },
});
ask();
