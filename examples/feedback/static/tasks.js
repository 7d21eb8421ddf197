// The pupil's page: sends each text once, and asks every 3 s until everything has its answer.

import { sentence, settled } from "./settled.js";

const POLL_MS = 3000;
const ENDED = new Set(["completed", "failed"]);
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

// Written only when it changes, or a screen reader would read it out every 3 s.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
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
    this.submission = null;
    this.calm = null; // place and wait as they are shown
    this.first = null; // the place it was first shown at
    this.rewriting = false; // the number of the submission that is being revised
    // One key per text as it is: a second click finds the same submission.
    this.key = null;
    this.draftName = `aufgaben:${user}:${this.task}`;
    this.text.value = this.kept();
    this.draft.addEventListener("submit", (event) => this.send(event));
    this.text.addEventListener("input", () => { this.key = null; this.keep(this.text.value); });
    article.querySelector(".again").addEventListener("click", () => this.rewrite());
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

  get waits() {
    return this.submission !== null && !ENDED.has(this.submission.feedback_status);
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
    let answer;
    let said;
    try {
      answer = await fetch("/api/abgaben", { method: "POST", headers: HEADERS, body });
      said = await answer.json();
    } catch {
      this.sending(false);
      this.complain("Das kam nicht an. Dein Text ist noch da: Drück noch einmal auf Abgeben.");
      return;
    }
    this.sending(false);
    if (signedOut(answer)) return;
    if (!said.ok) {
      this.complain(said.error);
      this.text.focus();
      return;
    }
    this.rewriting = false;
    this.keep("");
    this.show(said.submission);
    this.outcome.scrollIntoView({ block: "nearest" });
    follow();
  }

  sending(busy) {
    this.button.disabled = busy;
    this.button.textContent = busy ? "Wird abgegeben …" : "Abgeben";
  }

  complain(text) {
    this.wrong.textContent = text;
    this.text.setAttribute("aria-invalid", text ? "true" : "false");
  }

  show(submission) {
    if (this.submission?.id !== submission.id) {
      this.calm = null;
      this.first = null;
    }
    this.submission = submission;
    if (this.rewriting === submission.id) return;
    const { feedback_status: status, so_far: soFar, feedback } = submission;
    const part = (name) => this.outcome.querySelector(name);
    this.draft.hidden = true;
    this.outcome.hidden = false;
    this.article.dataset.state = submission.held_up ? "held-up" : status;
    this.calm = settled(this.calm, {
      place: submission.queue_position, wait: submission.wait_seconds,
    });
    say(part(".message"), this.message());
    say(part(".stale"), submission.stale ?? "");
    this.showTrack(part(".track"));
    say(part(".feedback"), feedback ?? (status === "processing" ? soFar ?? "" : ""));
    part(".answer").textContent = submission.answer;
    part(".again").hidden = !ENDED.has(status);
  }

  message() {
    const { feedback_status: status, message, next_try_at: nextTry } = this.submission;
    if (status === "pending") return sentence(this.calm) ?? message;
    if (status !== "retry" || !nextTry) return message;
    const time = new Date(nextTry).toLocaleTimeString("de-DE", { hour: "2-digit", minute: "2-digit" });
    return `${message} Ab ${time} Uhr bist du wieder an der Reihe.`;
  }

  // How far the line has moved since the first look.
  showTrack(track) {
    const { place } = this.calm;
    track.hidden = this.submission.feedback_status !== "pending" || place === null;
    if (track.hidden) return;
    this.first ??= place;
    track.firstElementChild.style.width = `${100 - (place / (this.first + 1)) * 100}%`;
  }

  rewrite() {
    this.rewriting = this.submission.id;
    this.key = null;
    this.text.value = this.submission.answer;
    this.keep(this.text.value);
    this.draft.hidden = false;
    this.outcome.querySelector(".again").hidden = true;
    this.text.focus();
  }
}

function signedOut(answer) {
  if (answer.status === 401) location.assign("/anmelden");
  return answer.status === 401;
}

// The next question is asked only after the answer to the last one: they never pile up.
function follow() {
  clearTimeout(timer);
  if ([...cards.values()].some((card) => card.waits)) timer = setTimeout(ask, POLL_MS);
}

async function ask() {
  clearTimeout(timer);
  let answer;
  let said;
  try {
    answer = await fetch("/api/abgaben");
    said = await answer.json();
  } catch {
    said = { ok: false };
  }
  if (answer && signedOut(answer)) return;
  say(offline, said.ok ? "" : UNREACHABLE);
  if (!said.ok) {
    timer = setTimeout(ask, POLL_MS);
    return;
  }
  for (const submission of said.submissions) cards.get(submission.task)?.show(submission);
  follow();
}

for (const article of document.querySelectorAll("article[data-task]")) {
  const card = new Card(article);
  cards.set(card.task, card);
}
ask();
