// The pupil's page: sends each text once; <penstock-job> shows the job until it has finished.

import { texts } from "./texts.js";

const AGAIN_MS = 3000;
const FINISHED = new Set(["completed", "failed"]);
const HEADERS = { "X-Requested-With": "aufgaben" };
const UNREACHABLE =
  "Die Seite ist gerade nicht verbunden. Was du abgegeben hast, ist sicher; wir versuchen es weiter.";

const user = document.body.dataset.user;
const offline = document.getElementById("offline");
const cards = new Map();
let timer = null;

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

// Some models must answer in JSON; people see the text inside.
function words(soFar) {
  if (!soFar.startsWith("{")) return soFar;
  for (const end of ["", "}", '"}']) {
    try {
      return JSON.parse(soFar + end).text ?? "";
    } catch { /* cut off elsewhere */ }
  }
  return "";
}

class Card {
  constructor(article) {
    this.article = article;
    this.task = article.dataset.task;
    this.draft = article.querySelector(".draft");
    this.text = article.querySelector("textarea");
    this.button = this.draft.querySelector("button");
    this.wrong = article.querySelector(".wrong");
    this.outcome = article.querySelector(".outcome");
    this.message = article.querySelector(".message");
    this.feedback = article.querySelector(".feedback");
    this.again = article.querySelector(".again");
    this.submission = null;
    this.rewriting = null; // the number of the submission that is being revised
    // One key per version of the text: a second click finds the same submission.
    this.key = null;
    this.draftName = `aufgaben:${user}:${this.task}`;
    // Keep what was typed before this script ran.
    this.text.value ||= this.kept();
    this.keep(this.text.value);
    this.draft.addEventListener("submit", (event) => this.send(event));
    this.text.addEventListener("input", () => { this.key = null; this.keep(this.text.value); });
    this.again.addEventListener("click", () => this.rewrite());
    this.job = article.querySelector("penstock-job");
    this.attend(this.job);
    this.sending(false);
  }

  kept() {
    try {
      return localStorage.getItem(this.draftName) ?? "";
    } catch {
      return ""; // a browser that keeps nothing: then a reload loses the draft
    }
  }

  keep(text) {
    try {
      localStorage.setItem(this.draftName, text);
    } catch { /* as above */ }
  }

  async send(event) {
    event.preventDefault();
    this.complain("");
    if (!this.text.value.trim()) {
      this.complain("Hier steht noch nichts. Schreib erst deinen Text.");
      this.text.focus();
      return;
    }
    this.sending(true);
    this.key ??= newKey();
    const body = new FormData();
    body.set("task", this.task);
    body.set("answer", this.text.value);
    body.set("submission_key", this.key);
    const reply = await call("/api/abgaben", { method: "POST", headers: HEADERS, body });
    this.sending(false);
    if (reply === null) {
      this.complain("Das kam nicht an. Dein Text ist noch da: Drück noch einmal auf Abgeben.");
    } else if (!reply.ok) {
      this.complain(reply.error);
      this.text.focus();
    } else {
      this.rewriting = null;
      this.keep("");
      this.show(reply.submission);
      this.outcome.scrollIntoView({ block: "nearest" });
    }
  }

  sending(busy) {
    this.button.disabled = busy;
    this.button.textContent = busy ? "Wird abgegeben …" : "Abgeben";
  }

  complain(text) {
    this.wrong.textContent = text;
    this.text.setAttribute("aria-invalid", text ? "true" : "false");
  }

  // Unfinished jobs come from the queue, finished ones from our own table.
  show(submission) {
    this.submission = submission;
    if (this.rewriting === submission.id) return;
    const { job, feedback_status: status } = submission;
    this.draft.hidden = true;
    this.outcome.hidden = false;
    this.article.dataset.state = status;
    this.watch(job);
    const message = job ? "" : submission.message;
    if (this.message.textContent !== message) this.message.textContent = message;
    if (!job) setText(this.feedback, submission.feedback ?? "");
    this.outcome.querySelector(".answer").textContent = submission.answer;
    this.again.hidden = !FINISHED.has(status);
  }

  watch(job) {
    this.job.hidden = job === null;
    if (job === null) {
      this.job.removeAttribute("src");
    } else if (this.job.getAttribute("src") !== job.src) {
      this.lowest = Infinity;
      this.hush();
      this.job.setAttribute("token", job.token);
      this.job.setAttribute("src", job.src);
    }
  }

  attend(job) {
    job.texts = texts({ shownPosition: (now) => (this.lowest = Math.min(this.lowest, now)) });
    // This page shows the result itself.
    job.render = () => {};
    job.renew = async () => {
      const reply = await call(`/api/abgaben/${this.submission.id}`);
      if (reply === null) throw new Error("not now");
      return reply.submission?.job?.token;
    };
    job.addEventListener("chunk", ({ detail }) => this.hear(detail));
    job.addEventListener("change", ({ detail }) => {
      if (detail.status === "queued" || detail.status === "scheduled") this.hush();
    });
    job.addEventListener("done", ask);
    job.addEventListener("error", ask);
  }

  hear({ attempt, data }) {
    if (attempt !== this.attempt) this.hush();
    this.attempt = attempt;
    this.soFar += data;
    setText(this.feedback, words(this.soFar));
  }

  hush() {
    this.soFar = "";
    setText(this.feedback, "");
  }

  rewrite() {
    this.rewriting = this.submission.id;
    this.key = null;
    this.text.value = this.submission.answer;
    this.keep(this.text.value);
    this.draft.hidden = false;
    this.again.hidden = true;
    this.text.focus();
  }
}

// Resolves with the answer; null if none came.
async function call(path, options) {
  try {
    const answer = await fetch(path, options);
    if (answer.status === 401) location.assign("/anmelden");
    return await answer.json();
  } catch {
    return null;
  }
}

async function ask() {
  clearTimeout(timer);
  const reply = await call("/api/abgaben");
  setText(offline, reply?.ok ? "" : UNREACHABLE);
  const found = reply?.ok ? reply.submissions : [];
  for (const submission of found) cards.get(submission.task)?.show(submission);
  if (!reply?.ok || found.some(isForgotten)) timer = setTimeout(ask, AGAIN_MS);
}

// The queue and its jobs were removed from the database for a while: there is nothing to watch.
function isForgotten({ job, feedback_status: status }) {
  return job === null && !FINISHED.has(status);
}

for (const article of document.querySelectorAll("article[data-task]")) {
  const card = new Card(article);
  cards.set(card.task, card);
}
ask();
