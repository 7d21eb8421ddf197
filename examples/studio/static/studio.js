// The studio: shows the price before, sends each order once, and asks every 3 s until all has ended.

import { Card } from "./card.js";
import { credits, duration, localTime } from "./words.js";

const POLL_MS = 3000;
const ENDED = new Set(["completed", "failed", "cancelled"]);
const HEADERS = { "X-Requested-With": "studio", "Content-Type": "application/json" };
const UNREACHABLE = "The studio cannot be reached at the moment. What you ordered is safe; this page keeps asking.";

const by = (id) => document.getElementById(id);
const form = by("form");
const cards = new Map(); // by the order's id
let balance = null;
// One key per order as it is: a second click sends the same one and gets the same job.
let key = null;
let timer = null;

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Written only when it changes, or a screen reader would read it out every 3 s.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

async function call(path, body = null, headers = {}) {
  const asked = body === null ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  let said;
  try {
    answer = await fetch(path, { ...asked, headers: { ...HEADERS, ...headers } });
    said = await answer.json();
  } catch {
    return { ok: false, status: 0, error: "That did not arrive. Nothing was charged twice: try again." };
  }
  if (answer.status === 401 && !path.startsWith("/api/operator")) location.assign("/sign-in");
  return { ...said, status: answer.status };
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
  say(by("images-shown"), String(wanted.images));
  say(by("split"), jobs > 1 ? `Drawn as ${jobs} jobs of at most ${perJob} images, shown as one.` : "");
  const each = wanted.images > 1 ? `${credits(total / wanted.images)} each, ` : "";
  say(by("price"), `${each}${credits(total)} in all.`);
  const left = balance === null ? "" : `You have ${balance}.`;
  say(by("left"), balance !== null && total > balance ? `${left} That is not enough.` : left);
  by("left").classList.toggle("short", balance !== null && total > balance);
  const example = form.querySelector('[name="job_type"]:checked').dataset.example;
  by("prompt").placeholder = `For example: ${example}`;
  if (!by("generate").disabled) say(by("generate"), `Generate for ${credits(total)}`);
}

function complain(text, field = null) {
  say(by("wrong"), field === "prompt" ? "" : text);
  say(by("prompt-wrong"), field === "prompt" ? text : "");
  by("prompt").setAttribute("aria-invalid", field === "prompt" ? "true" : "false");
  if (field === "prompt") by("prompt").focus();
}

async function send(event) {
  event.preventDefault();
  complain("");
  const wanted = order();
  if (!wanted.prompt) {
    complain("Say what you would like to see.", "prompt");
    return;
  }
  by("generate").disabled = true;
  say(by("generate"), "Sending …");
  key ??= newKey();
  const said = await call("/api/enqueue-generation", wanted, { "Idempotency-Key": key });
  by("generate").disabled = false;
  showPrice();
  if (!said.ok) {
    complain(withLocalTime(said), said.field);
    if (said.status === 402) showBalance(said.balance);
    return;
  }
  key = null;
  showBalance(said.new_balance);
  await ask([said.job_id]);
  cards.get(said.job_id)?.article.scrollIntoView({ block: "nearest" });
}

// The server says a time in UTC; the reader's clock may say another one.
function withLocalTime({ error, next_at: next }) {
  if (!next || new Date().getTimezoneOffset() === 0) return error;
  return `${error} (${localTime(next)} on your clock.)`;
}

// --- what there is --------------------------------------------------------------------------

function showBalance(now) {
  balance = now;
  say(by("balance"), credits(now));
  showPrice();
}

function showAccount(account) {
  showBalance(account.balance);
  say(by("plan"), account.plan);
  const { concurrency, per_hour: perHour, submitted_last_hour: used, priority } = account;
  const lines = [
    `${concurrency ?? "any number of"} ${concurrency === 1 ? "job" : "jobs"} at a time; ${account.running} running, ${account.queued} waiting`,
    `${perHour ?? "any number of"} starts an hour; ${used} used`,
    `priority ${priority} (lower goes first)`,
  ];
  if (account.next_submit_at) lines.push(`the next start will pass at ${localTime(account.next_submit_at)}`);
  [...lines, ""].forEach((line, at) => {
    const list = by("limits");
    if (!line) { [...list.children].slice(lines.length).forEach((item) => item.remove()); return; }
    say(list.children[at] ?? list.appendChild(document.createElement("li")), line);
  });
}

function place(generation, where) {
  const id = generation.job_id;
  if (!cards.has(id)) {
    const card = new Card(by("card"), () => cancel(id));
    cards.set(id, card);
    where(card.article);
  }
  cards.get(id).show(generation, generation.eta_seconds === null ? "" : `About ${duration(generation.eta_seconds)}.`);
}

function tidy() {
  by("now").hidden = by("current").children.length === 0;
  by("empty").hidden = cards.size > 0;
  by("history").hidden = cards.size > 0 && by("past").children.length === 0;
}

async function cancel(id) {
  const said = await call(`/api/generations/${id}/cancel`, {});
  if (said.ok) take(said);
  else complain(said.error);
  follow();
}

function take(said) {
  showAccount(said.account);
  place(said.generation, (article) => by("current").prepend(article));
  tidy();
}

// --- asking ---------------------------------------------------------------------------------

function live() {
  return [...cards].filter(([, card]) => !ENDED.has(card.status)).map(([id]) => id);
}

// The next question is asked only after the answer to the last one: they never pile up.
function follow() {
  clearTimeout(timer);
  timer = live().length ? setTimeout(ask, POLL_MS) : null;
}

async function ask(ids = live()) {
  clearTimeout(timer);
  const answers = await Promise.all(ids.map((id) => call(`/api/generations/${id}`)));
  for (const said of answers) if (said.ok) take(said);
  offline(answers.some((said) => said.status === 0 || said.status >= 500));
  follow();
}

function offline(away) {
  say(by("offline"), away ? UNREACHABLE : "");
  by("offline").hidden = !away;
}

async function load(before = null) {
  const said = await call(before ? `/api/history?before=${before}` : "/api/history");
  offline(!said.ok);
  if (!said.ok) {
    timer = setTimeout(() => load(before), POLL_MS);
    return;
  }
  showAccount(said.account);
  for (const generation of said.items) {
    const where = ENDED.has(generation.status) ? by("past") : by("current");
    place(generation, (article) => where.append(article));
  }
  by("older").hidden = said.before === null;
  by("older").dataset.before = said.before ?? "";
  tidy();
  follow();
}

// Somebody who comes back to this page sees what happened elsewhere meanwhile, as a purchase.
async function look() {
  if (document.visibilityState !== "visible" || timer !== null) return;
  const said = await call("/api/balance");
  if (said.ok) showAccount(said.account);
}

// --- the operator's corner ------------------------------------------------------------------

function operate(button, path, body, told) {
  button?.addEventListener("click", async () => {
    const said = await call(path, body());
    say(by("operator-said"), said.ok ? told(said) : said.error);
  });
}

// One reference for one purchase: clicks that come before its answer are the same one.
let purchase = null;
operate(by("buy"), "/api/operator/credits", () => ({ reference: purchase ??= newKey() }), (said) => {
  purchase = null;
  showBalance(said.balance);
  return `Bought. The balance is ${credits(said.balance)}.`;
});
for (const button of [by("break"), by("refuse")]) {
  operate(button, "/api/operator/fault", () => ({ fault: button.dataset.fault }),
    () => "The next image will not come. It will be refunded.");
}

form.addEventListener("submit", send);
form.addEventListener("input", () => { key = null; complain(""); showPrice(); });
by("older").addEventListener("click", () => load(by("older").dataset.before));
document.addEventListener("visibilitychange", look);
showPrice();
load();
