// The studio: shows the price before, sends each order once, and reads again what has changed, of
// which one stream of the customer's account tells; where none comes through, it asks every 3 s.

import { watch } from "/penstock/static/penstock.js";
import { Card } from "./card.js";
import { putInOrder, disable, isDisabled, setText } from "./elements.js";
import { credits, localTimeAfter } from "./words.js";

const AGAIN_MS = 3000; // after an answer that did not come
const GATHER_MS = 150; // changes that come together are read once
const ANSWER_MS = 30_000; // an answer that takes longer does not come
const QUIET_MS = 1000; // a slow double click is one click
const TRIES = 4;
const ENDED = new Set(["completed", "failed", "cancelled"]);
// The page is of one customer, the cookie of all tabs: the server compares.
const HEADERS = {
  "X-Requested-With": "studio", "X-Account": document.body.dataset.account, "Content-Type": "application/json",
};
const UNREACHABLE = "The studio cannot be reached at the moment. What you ordered is safe; this page keeps asking.";
const UNSURE = "We do not know whether it arrived.";
const ANOTHER = "You are signed in as another customer in this browser now.";

const by = (id) => document.getElementById(id);
const form = by("form");
const cards = new Map(); // by the order's id
const timers = {}; // each by the name of what it is for: none is lost to another
let balance = null;
let asked = 0; // how many questions
let shown = 0; // the number of the one whose account is shown: an older answer may come later
// The key of an order stays until an answer says what became of it: sent again, it is the same order.
let key = null;
let another = false; // somebody else is signed in now
let live = null; // what is watched, and a token for it
let watching = null;
let tooDear = false; // that is what was reply last

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function later(name, work, ms) {
  clearTimeout(timers[name]);
  if (!another) timers[name] = setTimeout(work, ms);
}

function pause(ms) {
  return new Promise((done) => { setTimeout(done, ms); });
}

async function call(path, body = null, headers = {}) {
  const sent = body === null ? {} : { method: "POST", body: JSON.stringify(body) };
  const number = (asked += 1);
  let answer;
  let reply;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    // Without the cache: there, a question would wait for the same one before it.
    answer = await fetch(path, { ...sent, signal, cache: "no-store", headers: { ...HEADERS, ...headers } });
    reply = await answer.json();
  } catch {
    return { ok: false, status: 0, number, error: UNSURE };
  }
  const { status } = answer;
  if (status === 401 && !path.startsWith("/api/operator")) location.assign("/sign-in");
  if (status === 409 && reply.code === "another_customer") {
    leave();
    return { ok: false, status, number, error: ANOTHER };
  }
  return { ...reply, status, number };
}

const away = ({ status }) => status === 0 || status >= 500;

// Nothing on this page is the other customer's: it asks no more, and what is written in it can be kept.
function leave() {
  another = true;
  Object.values(timers).forEach(clearTimeout);
  watching?.stop();
  for (const card of cards.values()) card.follow(null);
  const link = document.createElement("a");
  link.href = "/";
  setText(link, "Go on as this one");
  by("offline").replaceChildren(`${ANOTHER} `, link);
  by("offline").hidden = false;
}

// --- the order ------------------------------------------------------------------------------

function order() {
  const fields = new FormData(form);
  return {
    job_type: fields.get("job_type"),
    prompt: fields.get("prompt").trim(),
    images: Number(fields.get("images")),
    quality: fields.get("quality"),
  };
}

function price({ job_type: kind, images, quality }) {
  const chosen = form.querySelector(`[name="job_type"][value="${kind}"]`);
  return Number(chosen.dataset[quality]) * images;
}

function showPrice() {
  const wanted = order();
  const total = price(wanted);
  const { perJob } = document.body.dataset;
  const jobs = Math.ceil(wanted.images / Number(perJob));
  setText(by("images-shown"), String(wanted.images));
  setText(by("split"), jobs > 1 ? `Drawn as ${jobs} jobs of at most ${perJob} images, shown as one.` : "");
  const each = wanted.images > 1 ? `${credits(total / wanted.images)} each, ` : "";
  setText(by("price"), `${each}${credits(total)} in all.`);
  const left = balance === null ? "" : `You have ${balance}.`;
  setText(by("left"), balance !== null && total > balance ? `${left} That is not enough.` : left);
  by("left").classList.toggle("short", balance !== null && total > balance);
  const example = form.querySelector('[name="job_type"]:checked').dataset.example;
  by("prompt").placeholder = `For example: ${example}`;
  if (tooDear && total <= balance) complain("");
  if (!isDisabled(by("generate"))) setText(by("generate"), `Generate for ${credits(total)}`);
}

function complain(text, field = null) {
  tooDear = false;
  setText(by("wrong"), field === "prompt" ? "" : text);
  setText(by("prompt-wrong"), field === "prompt" ? text : "");
  by("prompt").setAttribute("aria-invalid", field === "prompt" ? "true" : "false");
  if (field === "prompt") by("prompt").focus();
}

async function send(event) {
  event.preventDefault();
  const button = by("generate");
  if (isDisabled(button)) return;
  complain("");
  const wanted = order();
  if (!wanted.prompt) {
    complain("Say what you would like to see.", "prompt");
    return;
  }
  disable(button);
  setText(button, "Sending …");
  const reply = await deliver(wanted);
  if (!reply.ok) {
    disable(button, false);
    showPrice();
    refuse(reply);
    return;
  }
  complain("");
  setText(button, "Ordered");
  later("generate", () => { disable(button, false); showPrice(); }, QUIET_MS);
  await ask([reply.job_id]);
  const card = cards.get(reply.job_id);
  if (!card) load(); // the answer was lost: that one goes on asking
  else if (document.activeElement === button) card.article.focus({ preventScroll: true });
  card?.article.scrollIntoView({ block: "nearest" });
}

// An answer that is lost says nothing: the same order is sent again, with the same key.
async function deliver(wanted) {
  key ??= newKey();
  for (let tries = 1; ; tries += 1) {
    const reply = await call("/api/enqueue-generation", wanted, { "Idempotency-Key": key });
    if (!away(reply)) key = null;
    if (reply.status !== 0 || tries === TRIES) return reply;
    complain(`${UNSURE} It is sent again; it is ordered only once.`);
    await pause(AGAIN_MS);
  }
}

function refuse(reply) {
  if (reply.status === 0) {
    complain(`${UNSURE} Press Generate to send it again; it is ordered only once.`);
  } else if (reply.code === "idempotency_key_reused") {
    complain("The order before this one did arrive. Press Generate again for this one.");
  } else {
    complain(withLocalTime(reply), reply.field);
  }
  // Perhaps it is there.
  if (away(reply) || reply.code === "idempotency_key_reused") load();
  if (reply.status !== 402) return;
  tooDear = true;
  if (isNewest(reply)) showBalance(reply.balance);
}

// The server says a time in UTC; the reader's clock may say another one.
function withLocalTime({ error, next_at: next }) {
  if (!next || new Date().getTimezoneOffset() === 0) return error;
  return `${error} (${localTimeAfter(next)} on your clock.)`;
}

// --- what there is --------------------------------------------------------------------------

function showBalance(now) {
  balance = now;
  setText(by("balance"), credits(now));
  showPrice();
}

function isNewest({ number }) {
  if (number < shown) return false;
  shown = number;
  return true;
}

function showAccount(reply) {
  if (!isNewest(reply)) return;
  const { account } = reply;
  showBalance(account.balance);
  setText(by("plan"), account.plan);
  const { concurrency, per_hour: perHour, submitted_last_hour: used, priority } = account;
  const lines = [
    `${concurrency ?? "any number of"} ${concurrency === 1 ? "job" : "jobs"} at a time; ${account.running} running, ${account.queued} waiting`,
    `${perHour ?? "any number of"} orders an hour; ${used} used (more than ${document.body.dataset.perJob} images count as two)`,
    `priority ${priority} (lower goes first)`,
  ];
  if (account.next_submit_at) lines.push(`the next order will pass at ${localTimeAfter(account.next_submit_at)}`);
  [...lines, ""].forEach((line, at) => {
    const list = by("limits");
    if (!line) { [...list.children].slice(lines.length).forEach((item) => item.remove()); return; }
    setText(list.children[at] ?? list.appendChild(document.createElement("li")), line);
  });
}

function place(generation, number) {
  const id = generation.job_id;
  if (!cards.has(id)) cards.set(id, new Card(by("card"), { renew, onend: () => due(id) }));
  const card = cards.get(id);
  if (number < card.asked) return;
  card.asked = number;
  card.show(generation, live?.token);
}

// What has ended is no longer under "Now".
function tidy() {
  by("now").hidden = by("history").hidden = false; // what is hidden cannot have the focus
  for (const { article, status } of cards.values()) putInOrder(article, by(ENDED.has(status) ? "past" : "current"));
  by("now").hidden = by("current").children.length === 0;
  by("empty").hidden = cards.size > 0;
  by("history").hidden = cards.size > 0 && by("past").children.length === 0;
}

function take(reply) {
  showAccount(reply);
  place(reply.generation, reply.number);
  tidy();
}

// --- asking ---------------------------------------------------------------------------------

const changed = new Set(); // the orders to be read again

function due(id) {
  changed.add(id);
  later("ask", ask, GATHER_MS);
}

async function ask(ids = [...changed]) {
  ids.forEach((id) => changed.delete(id));
  const answers = await Promise.all(ids.map((id) => call(`/api/generations/${id}`)));
  answers.forEach((reply, at) => {
    if (reply.ok) take(reply);
    if (reply.status === 404) cards.get(ids[at])?.lose();
    if (away(reply)) changed.add(ids[at]);
  });
  tidy();
  offline(answers.some(away));
  if (changed.size) later("ask", ask, AGAIN_MS);
}

async function refresh() {
  const reply = await call("/api/balance");
  if (reply.ok) showAccount(reply);
  else if (away(reply)) later("refresh", refresh, AGAIN_MS);
}

// --- watching -------------------------------------------------------------------------------

async function renew() {
  const reply = await call("/api/history");
  if (away(reply)) throw new Error(UNREACHABLE);
  if (reply.ok) live = reply.live;
  return reply.ok ? live.token : null;
}

function listen() {
  watching ??= watch(live.src, { token: live.token, renew, onchange, onstate });
}

// What is told again and again is a place in the queue, which the card shows by itself.
const heard = new Map();
function onchange(told, type) {
  if (type === "account") { later("refresh", refresh, GATHER_MS); return; }
  const { id, batch, status, attempt, progress, waiting_for: why } = told;
  const news = JSON.stringify([status, attempt, progress?.done, told.cancel_requested, why]);
  if (heard.get(id) === news) return;
  heard.set(id, news);
  const known = [...cards].find(([, card]) => card.job.getAttribute("src")?.endsWith(`/${batch}`));
  if (known) due(known[0]);
  else later("look", load, GATHER_MS); // ordered in another tab
}

let wasLost = false;
function onstate(state) {
  clearTimeout(timers.offline);
  if (state === "reconnecting" || state === "offline") {
    wasLost = true;
    later("offline", () => offline(true), AGAIN_MS);
  } else if (wasLost && (state === "live" || state === "polling")) {
    wasLost = false;
    load(); // what else happened in between is not told
  }
}

function offline(gone) {
  if (another) return;
  setText(by("offline"), gone ? UNREACHABLE : "");
  by("offline").hidden = !gone;
}

async function load(before = null) {
  const reply = await call(before ? `/api/history?before=${before}` : "/api/history");
  offline(away(reply));
  if (away(reply)) later(before ? "older" : "look", () => load(before), AGAIN_MS);
  if (!reply.ok) return;
  live ??= reply.live;
  showAccount(reply);
  // Where none of the newest is known yet, those between them and the known ones are older.
  const known = by("older").dataset.before !== undefined && reply.items.some((one) => cards.has(one.job_id));
  for (const generation of reply.items) place(generation, reply.number);
  if (before || !known) {
    by("older").hidden = reply.before === null;
    by("older").dataset.before = reply.before ?? "";
  }
  tidy();
  listen();
}

// When somebody comes back: what happened in another tab meanwhile.
function look() {
  if (document.visibilityState === "visible") load();
}

// --- the operator's corner ------------------------------------------------------------------

function operate(button, path, body, told) {
  button?.addEventListener("click", async () => {
    if (isDisabled(button)) return;
    disable(button);
    const reply = await call(path, body());
    setText(by("operator-said"), reply.ok ? told(reply) : reply.error);
    later(button.id, () => disable(button, false), reply.ok ? QUIET_MS : 0);
  });
}

// One reference for one purchase: it stays until an answer says that it was bought.
let purchase = null;
operate(by("buy"), "/api/operator/credits", () => ({ reference: purchase ??= newKey() }), (reply) => {
  purchase = null;
  refresh();
  return `Bought. The balance is ${credits(reply.balance)}.`;
});
for (const button of [by("break"), by("refuse")]) {
  operate(button, "/api/operator/fault", () => ({ fault: button.dataset.fault }),
    () => "The next image will not come. It will be refunded.");
}

form.addEventListener("submit", send);
form.addEventListener("input", () => { if (key === null) complain(""); showPrice(); });
by("older").addEventListener("click", () => load(by("older").dataset.before));
document.addEventListener("visibilitychange", look);
showPrice();
load();
