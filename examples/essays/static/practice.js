// The practice page: counts words, sends the essay once, and asks every 2 s until it has ended.

const POLL_MS = 2000;
const LARGEST_IMAGE = 5 * 1024 * 1024;
const ENDED = new Set(["done", "failed"]);
const CRITERIA = {
  task_response: "Task response",
  coherence_and_cohesion: "Coherence and cohesion",
  lexical_resource: "Lexical resource",
  grammatical_range: "Grammatical range and accuracy",
};
const WORDS = { pending: "Waiting", processing: "Processing", done: "Done", failed: "Failed" };

const by = (id) => document.getElementById(id);
const form = by("form");
const task = by("task");
const essay = by("essay");
const image = by("image");
const draftName = `essays-draft:${document.body.dataset.user}`;

// One key per essay as it is: a second click, or a second try after a lost answer, sends the same
// one and gets the same submission. Any change makes a new one.
let key = null;
let timer = null;

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// --- the form -------------------------------------------------------------------------------

function countWords() {
  const words = essay.value.trim() ? essay.value.trim().split(/\s+/).length : 0;
  const least = Number(task.selectedOptions[0].dataset.least);
  by("count").textContent =
    `${words} ${words === 1 ? "word" : "words"} · at least ${least} are asked for`;
}

function showTask() {
  const { prompt, image: takesImage } = task.selectedOptions[0].dataset;
  by("prompt").textContent = prompt;
  by("picture").hidden = takesImage !== "yes";
  countWords();
}

function showImage() {
  const [file] = image.files;
  const preview = by("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.removeAttribute("src");
  preview.hidden = true;
  by("remove").hidden = !file;
  if (file) {
    preview.onload = () => { preview.hidden = false; };
    preview.src = URL.createObjectURL(file);
  }
  showWrong("image", file && file.size > LARGEST_IMAGE ? "The image is larger than 5 MB." : "");
}

function showWrong(field, sentence) {
  const place = by(`${field}-wrong`) ?? by("form-wrong");
  place.textContent = sentence;
  by(field)?.setAttribute("aria-invalid", sentence ? "true" : "false");
}

function clearWrong() {
  for (const field of ["essay", "image", "form"]) showWrong(field, "");
}

function keepDraft() {
  try {
    localStorage.setItem(draftName, JSON.stringify({ task: task.value, essay: essay.value }));
  } catch { /* a browser that keeps nothing: then a reload loses the draft */ }
}

function bringDraft() {
  try {
    const draft = JSON.parse(localStorage.getItem(draftName) ?? "null");
    if (draft === null) return;
    essay.value = draft.essay;
    if ([...task.options].some((option) => option.value === draft.task)) task.value = draft.task;
  } catch { /* as above */ }
}

async function send(event) {
  event.preventDefault();
  clearWrong();
  if (!essay.value.trim()) {
    showWrong("essay", "The essay is empty. Write something first.");
    essay.focus();
    return;
  }
  setRunning(true, "Sending …");
  key ??= newKey();
  const body = new FormData();
  body.set("task", task.value);
  body.set("essay", essay.value);
  body.set("submission_key", key);
  if (!by("picture").hidden && image.files[0]) body.set("image", image.files[0]);
  let answer;
  try {
    const headers = { "X-Requested-With": "practice" };
    answer = await fetch("/api/submission-save", { method: "POST", headers, body });
  } catch {
    setRunning(false);
    showWrong("form", "The server cannot be reached. Your essay is still here: press Analyze again.");
    return;
  }
  if (signedOut(answer)) return;
  const said = await saidIn(answer);
  if (!said.ok) {
    setRunning(false);
    showWrong(said.field ?? "form", said.error);
    by(said.field)?.focus();
    return;
  }
  history.pushState(null, "", `?submission=${said.submission_id}`);
  show(said.submission);
  by("outcome").scrollIntoView({ block: "nearest" });
  follow(said.submission);
}

async function saidIn(answer) {
  try {
    return await answer.json();
  } catch {
    return { ok: false, error: "The server could not take the essay. Please try again." };
  }
}

function signedOut(answer) {
  if (answer.status === 401) location.assign("/sign-in");
  return answer.status === 401;
}

function setRunning(running, label = "Analyzing …") {
  by("analyze").disabled = running;
  by("analyze").textContent = running ? label : "Analyze";
}

// --- the analysis ---------------------------------------------------------------------------

function follow(submission) {
  clearTimeout(timer);
  const ended = ENDED.has(submission.status);
  setRunning(!ended);
  // The next question is asked only after the answer to the last one: they never pile up.
  if (!ended) timer = setTimeout(ask, POLL_MS, submission.id);
}

async function ask(id) {
  clearTimeout(timer);
  let answer;
  let said;
  try {
    answer = await fetch(`/api/essay-status?id=${encodeURIComponent(id)}`);
    said = await answer.json();
  } catch {
    say("The server does not answer at the moment. Your essay is safe; this page keeps asking.");
    timer = setTimeout(ask, POLL_MS, id);
    return;
  }
  if (signedOut(answer)) return;
  if (answer.status >= 500) {
    say("The server has a problem at the moment. This page keeps asking.");
    timer = setTimeout(ask, POLL_MS, id);
    return;
  }
  if (!said.ok) {
    by("outcome").hidden = true;
    setRunning(false);
    showWrong("form", said.error);
    return;
  }
  show(said.submission);
  follow(said.submission);
}

function show(submission) {
  const { status, analysis_result: result, error_message: why } = submission;
  by("outcome").hidden = false;
  by("badge").textContent = WORDS[status];
  by("badge").dataset.status = status;
  say(submission.message);
  by("facts").textContent = facts(submission);
  by("result").hidden = status !== "done";
  by("failure").hidden = status !== "failed";
  by("failure").textContent = status === "failed" ? `${why} You can press Analyze again.` : "";
  by("again").hidden = !ENDED.has(status);
  if (status === "done") showResult(result);
  if (status === "failed") key = null;
}

// Written only when it changes, or a screen reader would read it out every 2 s.
function say(sentence) {
  if (by("message").textContent !== sentence) by("message").textContent = sentence;
}

function facts({ word_count, submitted_at, processed_at, next_try_at }) {
  const time = (moment) => new Date(moment).toLocaleTimeString();
  const parts = [`${word_count} words`, `submitted ${time(submitted_at)}`];
  if (processed_at) parts.push(`processed ${time(processed_at)}`);
  if (next_try_at) parts.push(`next try ${time(next_try_at)}`);
  return parts.join(" · ");
}

function showResult(result) {
  by("band").textContent = result.band.toFixed(1);
  by("feedback").textContent = result.feedback;
  by("criteria").replaceChildren(
    ...Object.keys(CRITERIA).filter((name) => name in result.criteria).flatMap((name) => {
      const band = result.criteria[name];
      const term = document.createElement("dt");
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.append(document.createElement("span"));
      bar.firstChild.style.width = `${(band / 9) * 100}%`;
      term.append(CRITERIA[name], bar);
      const number = document.createElement("dd");
      number.textContent = band.toFixed(1);
      return [term, number];
    }),
  );
}

function startOver() {
  clearTimeout(timer);
  history.pushState(null, "", location.pathname);
  by("outcome").hidden = true;
  essay.value = "";
  image.value = "";
  key = null;
  keepDraft();
  showImage();
  countWords();
  setRunning(false);
  essay.focus();
}

// The number of the submission is in the address, so a reload, or the way back, finds it again.
function open() {
  clearTimeout(timer);
  const id = new URLSearchParams(location.search).get("submission");
  by("outcome").hidden = true;
  setRunning(id !== null);
  if (id !== null) ask(id);
}

form.addEventListener("submit", send);
form.addEventListener("input", () => { key = null; keepDraft(); });
essay.addEventListener("input", countWords);
task.addEventListener("change", showTask);
image.addEventListener("change", showImage);
by("remove").addEventListener("click", () => { image.value = ""; key = null; showImage(); });
by("again").addEventListener("click", startOver);
window.addEventListener("popstate", open);

bringDraft();
showTask();
open();
