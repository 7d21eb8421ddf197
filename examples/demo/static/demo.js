// Keeps the landing page current: polls once a second, and not while the tab is hidden.

const EVERY_MS = 1000;
const ANSWER_MS = 8000;
// A job that has just finished stays for this time before the next one replaces it.
const READ_MS = 900;
const FINISHED = new Set(["succeeded", "failed", "cancelled"]);
const AT_WORK = new Set(["running", "awaiting"]);

const language = document.body.dataset.language;
const story = document.getElementById("story");
const gone = document.getElementById("gone");
const idle = document.getElementById("idle");
const finishedAt = new WeakMap();
let turn = 0;

async function ask(url, options = {}) {
  const answer = await fetch(url, {
    ...options,
    headers: { accept: "application/json" },
    signal: AbortSignal.timeout(ANSWER_MS),
  });
  if (answer.status === 401) location.reload(); // redirects to the sign-in form
  if (!answer.ok) throw new Error(answer.status);
  return answer.json();
}

async function poll() {
  const mine = ++turn;
  try {
    const now = await ask(`demo/now?lang=${language}`);
    if (mine !== turn) return; // a newer answer has been shown
    gone.hidden = true;
    show(now);
  } catch {
    gone.hidden = false;
  }
}

async function keepPolling() {
  if (document.visibilityState === "visible") await poll();
  setTimeout(keepPolling, EVERY_MS);
}

function show(now) {
  for (const [key, figures] of Object.entries(now.systems)) {
    showSystem(document.querySelector(`[data-system="${key}"]`), figures);
  }
  for (const part of ["model", "worker"]) {
    showPart(document.querySelector(`[data-part="${part}"]`), now[part]);
  }
  showStory(now.story);
  idle.hidden = !now.idle;
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

/** A square for each of the newest jobs; existing squares stay, so that only new ones appear. */
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

/** Whether this job may replace the one that is shown. */
function mayGo(element, next) {
  const { job } = element;
  if (!element.hasAttribute("src")) return true;
  if (!job) return false;
  if (!FINISHED.has(job.status)) return next.is_at_work && !AT_WORK.has(job.status);
  if (!finishedAt.has(job)) finishedAt.set(job, Date.now());
  return Date.now() - finishedAt.get(job) >= READ_MS;
}

function showPart(node, { state, text }) {
  node.dataset.state = state;
  write(node.querySelector("[data-text]"), text);
  if (node.dataset.part === "worker") return;
  const hadFocus = node.contains(document.activeElement);
  for (const form of node.querySelectorAll("form")) {
    form.hidden = (form.dataset.order === "start") !== (state === "off");
  }
  // The button that replaces the pressed one gets its focus.
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
  // Only if it changed: a screen reader would read it again.
  if (node.textContent !== String(text)) node.textContent = text;
}

async function press(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const button = form.querySelector("button");
  // Not `disabled`, which would lose the focus.
  if (button.ariaDisabled === "true") return;
  button.ariaDisabled = "true";
  try {
    const body = new URLSearchParams(new FormData(form));
    turn += 1; // answers to earlier polls are older than this one
    show(await ask(form.action, { method: "POST", body }));
  } catch {
    gone.hidden = false;
  } finally {
    button.ariaDisabled = "false";
  }
}

for (const time of story.querySelectorAll("time")) time.textContent = clock(time.dateTime);
for (const form of document.querySelectorAll(".part form")) form.addEventListener("submit", press);
// Results are shown on the systems' own pages; here they would move the layout.
for (const job of document.querySelectorAll("penstock-job")) job.render = () => {};
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") poll();
});
keepPolling();
