// The practice page: counts words, sends the essay once; <penstock-job> shows how it goes on until
// it has ended, and then the result is ours to show.

const AGAIN_MS = 2000;
const LARGEST_IMAGE = 5 * 1024 * 1024;
const ENDED = new Set(["done", "failed"]);
const STATES = {
  pending: () => "Queued",
  processing: () => "Being analyzed",
  done: ({ analysis_result: result }) => `Band ${result.band.toFixed(1)}`,
  failed: () => "Failed",
};
const LIVE = { scheduled: "pending", queued: "pending", running: "processing", awaiting: "processing" };
const CRITERIA = {
  task_response: "Task response",
  coherence_and_cohesion: "Coherence and cohesion",
  lexical_resource: "Lexical resource",
  grammatical_range: "Grammatical range and accuracy",
};

const by = (id) => document.getElementById(id);
const form = by("form");
const task = by("task");
const essay = by("essay");
const image = by("image");
const job = by("job");
const draftName = `essays-draft:${document.body.dataset.user}`;

// One key per essay as it is: a second click, or a second try after a lost answer, sends the same
// one and gets the same submission. Any change makes a new one.
let key = null;
let timer = null;
let shown = null; // the submission, as our own server told it last
let kept = null; // the submission whose image goes along again, unless another one is chosen

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// --- the form -------------------------------------------------------------------------------

function countWords() {
  const words = essay.value.trim() ? essay.value.trim().split(/\s+/).length : 0;
  const least = Number(task.selectedOptions[0].dataset.least);
  by("count").textContent = `${count(words)} · at least ${least} are asked for`;
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
  if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
  preview.removeAttribute("src");
  preview.hidden = true;
  if (file) kept = null;
  by("remove").hidden = !file && kept === null;
  if (file || kept) {
    preview.onload = () => { preview.hidden = false; };
    preview.src = file ? URL.createObjectURL(file) : kept.image;
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
    // Who was faster than this script has written already.
    if (draft === null || essay.value) return;
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
  if (!by("picture").hidden) {
    if (image.files[0]) body.set("image", image.files[0]);
    else if (kept !== null) body.set("image_of", kept.id);
  }
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
  const reply = await bodyOf(answer);
  if (!reply.ok) {
    setRunning(false);
    showWrong(reply.field ?? "form", reply.error);
    by(reply.field)?.focus();
    return;
  }
  history.pushState(null, "", `?submission=${reply.submission_id}`);
  show(reply.submission);
  by("outcome").scrollIntoView({ block: "nearest" });
}

async function bodyOf(answer) {
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

async function ask(id) {
  clearTimeout(timer);
  const answer = await fetch(`/api/essay-status?id=${encodeURIComponent(id)}`).catch(() => null);
  if (answer && signedOut(answer)) return;
  const reply = answer?.status < 500 ? await bodyOf(answer) : null;
  by("outcome").hidden = reply?.ok === false;
  if (reply === null) {
    setText("The server does not answer at the moment. Your essay is safe; this page keeps asking.");
    timer = setTimeout(ask, AGAIN_MS, id);
  } else if (reply.ok) {
    show(reply.submission);
  } else {
    setRunning(false);
    showWrong("form", reply.error);
  }
}

// What waits or runs, the queue knows; what has ended stands in our own table.
function show(submission) {
  const { status, analysis_result: result, error_message: why } = submission;
  const ended = ENDED.has(status);
  shown = submission;
  setRunning(!ended);
  watchJob(submission.job);
  by("outcome").hidden = false;
  by("outcome").dataset.status = status;
  setText(ended ? submission.message : "");
  by("facts").textContent = facts(submission);
  by("result").hidden = status !== "done";
  by("failure").hidden = status !== "failed";
  by("failure").textContent = status === "failed" ? `${why} You can press Analyze again.` : "";
  by("again").hidden = !ended;
  showSent(submission);
  past.set(submission.id, submission);
  completed.add(submission.task);
  list();
  if (status === "done") showResult(result);
  if (status === "failed") bringBack(submission);
}

function showSent({ task: name, question, essay: text, image: picture }) {
  by("sent-task").textContent = titleOf(name);
  by("question").textContent = question;
  by("sent-essay").textContent = text;
  if (picture && by("sent-image").getAttribute("src") !== picture) by("sent-image").src = picture;
  by("sent-image").hidden = !picture;
}

// To be sent again, also where this browser has not written it: in the form as it was sent.
function bringBack(submission) {
  key = null;
  if (essay.value.trim() && essay.value.trim() !== submission.essay.trim()) return;
  essay.value = submission.essay;
  task.value = submission.task;
  if (submission.image && !image.files[0]) kept = submission;
  keepDraft();
  showTask();
  showImage();
}

function titleOf(name) {
  return [...task.options].find((option) => option.value === name)?.dataset.title ?? name;
}

// --- what was sent in before ----------------------------------------------------------------

// By number; the page has them as of when it was loaded, and what is shown since.
const past = new Map(JSON.parse(by("past").dataset.known).map((one) => [one.id, one]));
const completed = new Set(JSON.parse(by("past").dataset.completed));

function list() {
  by("past").hidden = past.size === 0;
  by("completed").textContent =
    `Tasks completed (a task counts from its first essay on): ${[...completed].map(titleOf).join(", ")}`;
  for (const option of task.options) {
    option.textContent = option.dataset.title + (completed.has(option.value) ? " (completed)" : "");
  }
  const newest = [...past.values()].sort((one, other) => other.id - one.id);
  by("list").replaceChildren(...newest.map(line));
}

function line(submission) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = `?submission=${submission.id}`;
  link.textContent = titleOf(submission.task);
  if (submission.id === shown?.id) link.setAttribute("aria-current", "true");
  const state = document.createElement("strong");
  state.dataset.status = submission.status;
  state.textContent = STATES[submission.status](submission);
  const about = document.createElement("span");
  about.className = "quiet small";
  about.textContent = `${count(submission.word_count)} · ${day(submission.submitted_at)}`;
  item.append(link, state, about);
  return item;
}

function watchJob(opened) {
  job.hidden = opened === null;
  if (opened === null) {
    job.removeAttribute("src");
  } else if (job.getAttribute("src") !== opened.src) {
    job.setAttribute("token", opened.token);
    job.setAttribute("src", opened.src);
  }
}

// Written only when it changes, or a screen reader would read it out again.
function setText(sentence) {
  if (by("message").textContent !== sentence) by("message").textContent = sentence;
}

function facts({ status, word_count, submitted_at, processed_at }) {
  const parts = [count(word_count), `submitted ${day(submitted_at)}`];
  if (processed_at) parts.push(`${status === "done" ? "analyzed" : "ended"} ${day(processed_at)}`);
  return parts.join(" · ");
}

function count(words) {
  return `${words} ${words === 1 ? "word" : "words"}`;
}

// The same clock as <penstock-job>'s; with the day where that is another.
function day(moment) {
  const then = new Date(moment);
  const isToday = then.toDateString() === new Date().toDateString();
  const form = isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" };
  return new Intl.DateTimeFormat(document.documentElement.lang, form).format(then);
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
  history.pushState(null, "", location.pathname);
  by("outcome").hidden = true;
  essay.value = "";
  image.value = "";
  key = kept = shown = null;
  keepDraft();
  showImage();
  countWords();
  setRunning(false);
  list();
  essay.focus();
}

// The number of the submission is in the address, so a reload, or the way back, finds it again.
function open() {
  clearTimeout(timer);
  watchJob(null);
  const id = new URLSearchParams(location.search).get("submission");
  by("outcome").hidden = true;
  setRunning(id !== null);
  if (id !== null) ask(id);
}

// Why it waits, in the words of who met it: the next try may well succeed. A connection that was
// not made has words for programmers only.
function why(error) {
  if (error?.class === "unavailable") return "The model cannot be reached.";
  return error?.message ?? "It did not work.";
}
job.texts = {
  backoff_note: () => `${why(job.job.error)} You do not need to do anything.`,
};
job.render = () => {}; // the result is ours to show
job.renew = async () => {
  const answer = await fetch(`/api/essay-status?id=${shown.id}`);
  if (signedOut(answer)) return null;
  return (await answer.json()).submission?.job?.token;
};
// The list says the same of it as what is shown above.
job.addEventListener("change", ({ detail: { status } }) => {
  const now = LIVE[status];
  if (shown === null || ENDED.has(shown.status) || !now || now === shown.status) return;
  shown.status = now;
  list();
});
job.addEventListener("done", () => ask(shown.id));
job.addEventListener("error", () => ask(shown.id));

form.addEventListener("submit", send);
form.addEventListener("input", () => { key = null; keepDraft(); });
essay.addEventListener("input", countWords);
task.addEventListener("change", showTask);
image.addEventListener("change", showImage);
by("remove").addEventListener("click", () => { image.value = ""; key = kept = null; showImage(); });
by("again").addEventListener("click", startOver);
window.addEventListener("popstate", open);

bringDraft();
keepDraft();
showTask();
open();
list();
