// Keeps the landing page as things are: one question a second, and none while nobody looks.

const EVERY_MS = 1000;
const ANSWER_MS = 8000;
// A job that has just ended is left to be read before the next one takes its place.
const READ_MS = 900;
const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const AT_WORK = new Set(["running", "awaiting"]);

const language = document.body.dataset.language;
const story = document.getElementById("story");
const gone = document.getElementById("gone");
const resting = document.getElementById("resting");
const endedAt = new WeakMap();
let turn = 0;

async function ask(url, options = {}) {
  const answer = await fetch(url, {
    ...options,
    headers: { accept: "application/json" },
    signal: AbortSignal.timeout(ANSWER_MS),
  });
  if (answer.status === 401) location.reload(); // to the page that asks who is there
  if (!answer.ok) throw new Error(answer.status);
  return answer.json();
}

async function look() {
  const mine = ++turn;
  try {
    const now = await ask(`demo/now?lang=${language}`);
    if (mine !== turn) return; // something newer has been shown meanwhile
    gone.hidden = true;
    show(now);
  } catch {
    gone.hidden = false;
  }
}

async function keepLooking() {
  if (document.visibilityState === "visible") await look();
  setTimeout(keepLooking, EVERY_MS);
}

function show(now) {
  for (const [key, figures] of Object.entries(now.systems)) {
    showSystem(document.querySelector(`[data-system="${key}"]`), figures);
  }
  for (const part of ["model", "worker"]) {
    showPart(document.querySelector(`[data-part="${part}"]`), now[part]);
  }
  showStory(now.story);
  resting.hidden = !now.resting;
}

function showSystem(card, figures) {
  for (const node of card.querySelectorAll("[data-figure]")) {
    write(node, figures[node.dataset.figure]);
  }
  const note = card.querySelector("[data-note]");
  write(note, figures.note);
  note.hidden = !figures.note;
  showStrip(card.querySelector("[data-strip]"), figures.newest);
  const job = card.querySelector("penstock-job");
  if (!figures.job || job.getAttribute("src") === figures.job.src || !mayGo(job, figures.job)) return;
  card.querySelector("[data-none]").hidden = true;
  write(card.querySelector("[data-name]"), figures.job.name);
  job.hidden = false;
  job.setAttribute("token", figures.job.token);
  job.setAttribute("src", figures.job.src);
}

/** A square for each of the newest jobs; those that are there stay, so that new ones can appear. */
function showStrip(strip, jobs) {
  const known = new Map([...strip.children].map((node) => [node.dataset.id, node]));
  for (const { id, status } of jobs) {
    const node = known.get(id) ?? strip.appendChild(document.createElement("i"));
    known.delete(id);
    node.dataset.id = id;
    node.dataset.status = status;
  }
  for (const node of known.values()) node.remove();
}

/** Whether the job that is shown may make room for this one. */
function mayGo(element, next) {
  const { job } = element;
  if (!element.hasAttribute("src")) return true;
  if (!job) return false;
  if (!ENDED.has(job.status)) return next.is_at_work && !AT_WORK.has(job.status);
  if (!endedAt.has(job)) endedAt.set(job, Date.now());
  return Date.now() - endedAt.get(job) >= READ_MS;
}

function showPart(node, { state, text }) {
  node.dataset.state = state;
  write(node.querySelector("[data-text]"), text);
  if (node.dataset.part === "worker") return;
  const hadFocus = node.contains(document.activeElement);
  for (const form of node.querySelectorAll("form")) {
    form.hidden = (form.dataset.order === "start") !== (state === "off");
  }
  // Who has just pressed the one goes on with the other that takes its place.
  if (hadFocus) node.querySelector("form:not([hidden]) button").focus();
}

function showStory(lines) {
  const known = new Map([...story.children].map((node) => [node.dataset.number, node]));
  for (const line of [...lines].reverse()) {
    const node = known.get(String(line.number)) ?? newLine(line);
    known.delete(String(line.number));
    node.dataset.tone = line.tone;
    write(node.querySelector("span"), line.text);
  }
  for (const node of known.values()) node.remove();
}

function newLine({ number, at }) {
  const node = document.createElement("li");
  node.dataset.number = number;
  const time = document.createElement("time");
  time.dateTime = at;
  time.textContent = clock(at);
  node.append(time, " ", document.createElement("span"));
  story.prepend(node);
  return node;
}

function clock(at) {
  return new Date(at).toLocaleTimeString(language, { hour12: false });
}

function write(node, text) {
  // Only what is new: a screen reader would say it all again.
  if (node.textContent !== String(text)) node.textContent = text;
}

async function press(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const button = form.querySelector("button");
  // Not `disabled`: it would lose the focus.
  if (button.ariaDisabled === "true") return;
  button.ariaDisabled = "true";
  try {
    const body = new URLSearchParams(new FormData(form));
    turn += 1; // what was asked before is older than the answer to this
    show(await ask(form.action, { method: "POST", body }));
  } catch {
    gone.hidden = false;
  } finally {
    button.ariaDisabled = "false";
  }
}

for (const time of story.querySelectorAll("time")) time.textContent = clock(time.dateTime);
for (const form of document.querySelectorAll(".part form")) form.addEventListener("submit", press);
// Results are for the systems' own pages; here they would push everything about.
for (const job of document.querySelectorAll("penstock-job")) job.render = () => {};
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") look();
});
keepLooking();
