// <penstock-job>: an element that shows a job to the person who waits for it.

import { Address } from "../connection/address.js";
import { Announcer } from "./announcer.js";
import { asJob } from "./batch.js";
import { describe, isLive } from "./describe.js";
import { Language, languageOf } from "./language.js";
import { build, fill, isEmpty } from "./skeleton.js";
import { texts } from "./texts.js";
import { put } from "./values.js";
import { Wait } from "./eta.js";
import { watch } from "../connection/watch.js";

const OUTAGES = new Set(["unavailable", "overloaded", "rate_limited", "stalled", "timeout"]);
const LOST = new Set(["reconnecting", "offline"]);
// A shorter loss of the connection is not shown.
const LOST_MS = 4000;
const MOST_TOKENS = 100_000;
const OWN = ["texts", "render", "renew"];

export class PenstockJob extends HTMLElement {
  static observedAttributes = ["src", "token", "poll", "stream", "lang", "nocancel"];
  /** Texts by language and key; pages may change them and add languages. */
  static texts = texts;

  #parts;
  #announcer;
  #watch = null;
  #job = null;
  #latest = null;
  #failure = null;
  #link = null;
  #linkTimer = null;
  #clock = null;
  #restarting = false;
  #wait = new Wait();
  #outageAt = null;
  #startedHere = null;
  #attempt = 0;
  #cancelling = false;
  #refusal = null;
  #mayCancel = true;
  #own = { texts: null, render: null, renew: null };

  constructor() {
    super();
    this.#parts = build(this.attachShadow({ mode: "open" }));
    this.#announcer = new Announcer(this.#parts.announcement);
    this.#parts.cancel.addEventListener("click", () => this.#cancel());
    this.shadowRoot.addEventListener("slotchange", () => this.#draw());
  }

  /** The job as last received, or null. */
  get job() {
    return this.#latest;
  }

  /** The page's own texts: `{key: text}`, or `{de: {key: text}}`. */
  get texts() {
    return this.#own.texts;
  }
  set texts(value) {
    this.#own.texts = value;
    this.#draw();
  }

  /** `(job, root) => …` shows results and partial results; returning false keeps the default. */
  get render() {
    return this.#own.render;
  }
  set render(value) {
    this.#own.render = value;
    this.#draw();
  }

  /** `async () => token`, called when the token has expired. */
  get renew() {
    return this.#own.renew;
  }
  set renew(value) {
    this.#own.renew = value;
  }

  /** Resolves with the job. A refusal is also shown to the person. */
  cancel() {
    return this.#cancel();
  }

  connectedCallback() {
    for (const name of OWN) this.#adopt(name);
    // An element that was only moved keeps its watch.
    if (this.#watch === null) this.#restart();
  }

  disconnectedCallback() {
    queueMicrotask(() => {
      if (!this.isConnected) this.#stop();
    });
  }

  attributeChangedCallback(name, before, now) {
    if (before === now) return;
    if (name === "token") this.#allowCancel();
    if (name === "lang" || name === "nocancel") this.#draw();
    else this.#restart();
  }

  /** A page may have set the property before this module was loaded. */
  #adopt(name) {
    if (!Object.hasOwn(this, name)) return;
    const value = this[name];
    delete this[name];
    this[name] = value;
  }

  // --- watching ----------------------------------------------------------------------------------

  /** Start once, although several attributes may change at once. */
  #restart() {
    if (this.#restarting || !this.isConnected) return;
    this.#restarting = true;
    queueMicrotask(() => {
      this.#restarting = false;
      if (this.isConnected) this.#start();
    });
  }

  #start() {
    this.#stop();
    const src = this.getAttribute("src");
    const isOther = this.#job !== null && src && new Address(src).id !== this.#job.id;
    if (isOther || this.#failure) this.#forget();
    if (src) {
      const own = this.#own;
      this.#watch = watch(src, {
        // A getter, because the page may set it later.
        get renew() {
          return own.renew;
        },
        token: this.getAttribute("token") || null,
        stream: this.getAttribute("stream") || null,
        interval: Number(this.getAttribute("poll")) || 3000,
        onchange: (job) => this.#change(job),
        onchunk: (chunk) => this.#hearChunk(chunk),
        onstate: (state) => this.#hearState(state),
        ondone: (job) => this.#dispatch("done", job),
        onerror: (error) => this.#fail(error),
      });
    }
    this.#draw();
  }

  #stop() {
    this.#watch?.stop();
    this.#watch = null;
    this.#announcer.stop();
    clearTimeout(this.#linkTimer);
    clearInterval(this.#clock);
    this.#clock = this.#linkTimer = this.#link = null;
  }

  #forget() {
    this.#job = this.#latest = this.#failure = this.#outageAt = this.#startedHere = null;
    this.#allowCancel();
    this.#wait = new Wait();
    this.#attempt = 0;
    this.#parts.tokens.textContent = "";
  }

  /** Forget a refusal that another job or token got. */
  #allowCancel() {
    this.#mayCancel = true;
    this.#cancelling = false;
    this.#refusal = null;
  }

  #change(data) {
    const before = this.#job;
    const job = asJob(data);
    this.#latest = data;
    this.#job = job;
    this.#wait.update(job);
    this.#noteOutage(before, job);
    // Observed here, so the page's own clock is right, whatever the server's clock says.
    if (before && before.status !== "running" && job.status === "running") {
      this.#startedHere = Date.now();
    }
    if (job.attempt > this.#attempt) this.#beginAttempt(job.attempt);
    this.#draw();
    this.#dispatch("change", data);
  }

  #noteOutage(before, job) {
    if (job.waiting_for !== "circuit_open") {
      this.#outageAt = null;
    } else if (this.#outageAt === null) {
      const last = job.attempts?.at(-1);
      if (last && OUTAGES.has(last.error_class)) this.#outageAt = Date.parse(last.ended_at);
      else if (before) this.#outageAt = Date.now();
    }
  }

  #hearChunk(chunk) {
    if (chunk.attempt > this.#attempt) this.#beginAttempt(chunk.attempt);
    if (typeof chunk.data === "string") this.#write(chunk.data);
    this.#dispatch("chunk", chunk);
  }

  /** A new attempt starts with empty output. */
  #beginAttempt(attempt) {
    this.#attempt = attempt;
    this.#parts.tokens.textContent = "";
  }

  #write(token) {
    const { tokens } = this.#parts;
    const isAtEnd = tokens.scrollHeight - tokens.scrollTop - tokens.clientHeight < 8;
    if (!tokens.firstChild) tokens.append("");
    tokens.firstChild.appendData(token);
    const over = tokens.firstChild.length - MOST_TOKENS;
    if (over > 0) tokens.firstChild.deleteData(0, over);
    tokens.hidden = this.#hasResult;
    if (isAtEnd) tokens.scrollTop = tokens.scrollHeight;
  }

  #hearState(state) {
    clearTimeout(this.#linkTimer);
    this.#linkTimer = null;
    if (!LOST.has(state)) {
      this.#setLink(null);
    } else if (state === "offline" || this.#link) {
      this.#setLink(state);
    } else {
      this.#linkTimer = setTimeout(() => this.#setLink(state), LOST_MS);
    }
  }

  #setLink(state) {
    if (this.#link === state) return;
    this.#link = state;
    this.#draw();
  }

  #fail(error) {
    this.#failure = error;
    this.#draw();
    this.#dispatch("error", error);
  }

  async #cancel() {
    if (this.#watch === null || this.#cancelling || this.#job?.cancel_requested) return this.#latest;
    this.#cancelling = true;
    this.#refusal = null;
    this.#draw();
    try {
      return await this.#watch.cancel();
    } catch (error) {
      this.#mayCancel = error.code === "unreachable";
      this.#refusal = this.#mayCancel ? "cancel_failed" : "cancel_refused";
      return this.#latest;
    } finally {
      this.#cancelling = false;
      this.#draw();
    }
  }

  /** The events do not bubble: a form around the element would take `change` as a field's. */
  #dispatch(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // --- drawing -----------------------------------------------------------------------------------

  get #language() {
    return new Language(languageOf(this), [this.#own.texts, PenstockJob.texts]);
  }

  get #hasResult() {
    return this.#job?.status === "succeeded" && (this.#job.result ?? null) !== null;
  }

  #draw() {
    const language = this.#language;
    const view = this.#view(language);
    const parts = this.#parts;
    parts.box.dataset.mood = view.mood;
    parts.box.lang = language.name;
    parts.box.classList.toggle("lost", this.#link !== null);
    fill(parts.connection, view.connection);
    parts.words.textContent = view.status;
    for (const name of ["position", "wait", "stage", "banner", "note", "credits"]) {
      fill(parts[name], view[name]);
    }
    fill(parts.refusal, this.#refusal ? language.text(this.#refusal) : null);
    fill(parts.reason, view.error);
    parts.error.hidden = !view.error;
    this.#drawProgress(view, language);
    this.#drawElapsed(view, language);
    this.#drawValues(language);
    this.#drawCancel(language);
    if (this.#job || this.#failure || this.#link) {
      this.#announcer.hear({ ...view, number: this.#job?.position ?? null });
    }
  }

  #view(language) {
    const connection = this.#link ? language.text(this.#link) : null;
    if (this.#failure) {
      const code = language.knows(this.#failure.code) ? this.#failure.code : "unreadable";
      return { mood: "quiet", status: language.text(code) };
    }
    if (this.#job === null) {
      return { mood: "waiting", status: language.text("connecting"), connection };
    }
    const context = { now: Date.now(), wait: this.#wait.seconds, outageAt: this.#outageAt };
    return { ...describe(this.#job, language, context), connection };
  }

  #drawProgress({ progress }, language) {
    const { bar, progress: node, count } = this.#parts;
    bar.hidden = !progress;
    if (!progress) return;
    node.max = progress.total;
    node.value = Math.min(progress.done, progress.total);
    node.setAttribute("aria-label", language.text("progress"));
    fill(count, progress.words);
  }

  /** Update every second while the job is running. */
  #drawElapsed({ since = null }, language) {
    const from = this.#startedHere ?? since;
    const { elapsed } = this.#parts;
    clearInterval(this.#clock);
    this.#clock = null;
    if (since === null || this.#watch === null) return fill(elapsed, null);
    const tick = () => {
      const length = language.length((Date.now() - from) / 1000);
      fill(elapsed, language.text("elapsed", { length }));
    };
    tick();
    if (this.#link === null) this.#clock = setInterval(tick, 1000);
  }

  #drawValues(language) {
    const { tokens, partial, partialValue, result, resultValue, rendered } = this.#parts;
    const job = this.#failure ? null : this.#job;
    const isDone = job?.status === "succeeded";
    const made = job?.progress?.partial ?? null;
    const own = job !== null && this.#own.render?.(this.#latest, rendered) !== false;
    const isOwn = own && Boolean(this.#own.render);
    tokens.setAttribute("aria-label", language.text("tokens"));
    tokens.hidden = !tokens.textContent || job === null || (isDone && this.#hasResult);
    rendered.hidden = !isOwn;
    const context = { language, upload: (id) => this.#uploadAddress(id) };
    put(resultValue, isDone && !isOwn ? job.result : null, context);
    result.hidden = isOwn || !isDone || isEmpty(this.#parts.resultSlot);
    const isPartial = job !== null && !this.#hasResult && made !== null && !isOwn;
    put(partialValue, isPartial ? made : null, context);
    partial.hidden = !isPartial || isEmpty(this.#parts.partialSlot);
  }

  #uploadAddress(id) {
    return new Address(this.getAttribute("src")).upload(id, this.#watch?.token);
  }

  #drawCancel(language) {
    const { actions, cancel, status } = this.#parts;
    const isAsked = this.#cancelling || Boolean(this.#job?.cancel_requested);
    const isShown =
      isLive(this.#job) && !this.#failure && this.#mayCancel && !this.hasAttribute("nocancel");
    // Hiding the focused button would move the focus to the beginning of the page.
    if (!isShown && this.shadowRoot.activeElement === cancel) status.focus();
    fill(cancel, isShown ? language.text(isAsked ? "cancelling" : "cancel") : null);
    cancel.setAttribute("aria-disabled", String(isAsked));
    actions.hidden = !isShown && isEmpty(this.#parts.actionsSlot);
  }
}
