// watch(): reports the changes of a job, by a stream if that works and by polls otherwise.
//
//   begin ── a slot is free ──> listen ── 2 errors in 30 s, refused, or events are missing ──┐
//     │                           ^                                                         │
//     └── none is free ──> poll ──┴── every 2 min, or after the server was unavailable <────┘
//
// A hidden tab does neither. The watch ends when the job has finished.

import { Address } from "./address.js";
import { later } from "./turns.js";
import { isFinal, isGood, fetchState, print } from "./poll.js";
import { takeSlot, whenFree } from "./stream_slots.js";
import { attend, isHidden } from "./presence.js";
import { finalError, send, WatchError } from "./request.js";
import { joinStream } from "./shared_stream.js";
import { Stream } from "./stream.js";
import { renewed } from "./tokens.js";

const INTERVAL_MS = 3000;
const LONGEST_MS = 30_000;
const AGAIN_MS = 120_000;
// The time by which a stream may lag behind a poll.
const GRACE_MS = 3000;
const MOST_SEEN = 2000;

/** Watch a job, a batch, or all jobs of a topic or an account. See docs/howto/browser.md. */
export function watch(url, options = {}) {
  const watching = new Watch(url, options);
  return {
    stop: () => watching.stop(),
    cancel: () => watching.cancel(),
    get job() {
      return watching.job;
    },
    get token() {
      return watching.token;
    },
  };
}

class Watch {
  #address;
  #options;
  #token;
  #interval;
  #shared;
  #sharing = null;
  #leave;
  #turn = 0;
  #closers = new Set();
  #stopPolls = () => {};
  #state = null;
  #over = false;
  #barredUntil = 0;
  #failures = 0;
  #mayRenew = true;
  #memory = {};
  #seen = new Map();
  #last = "";
  #chunk = [0, 0];
  job = null;

  constructor(url, options) {
    this.#address = new Address(url);
    this.#options = options;
    this.#token = options.token ?? null;
    this.#interval = Math.max(250, Number(options.interval) || INTERVAL_MS);
    const many = options.stream ? new Address(options.stream) : null;
    const isSame = this.#address.self === many?.self;
    this.#shared = this.#address.kind === "job" || isSame ? many : null;
    this.#leave = attend(this);
    // Not before the caller has the returned object.
    queueMicrotask(() => (isHidden() ? this.sleep() : this.wake()));
  }

  /** The newest token. */
  get token() {
    return this.#token;
  }

  stop() {
    if (this.#over) return;
    this.#over = true;
    this.#end();
    this.#leave();
    this.#show("over");
  }

  async cancel() {
    if (this.#address.isScope) {
      throw new WatchError("not_possible", "only a job or a batch can be cancelled");
    }
    const post = () => send(this.#address.cancel(), { token: this.#token, method: "POST" });
    let answer = await post();
    if (answer.status === 401 && (await this.#renew()) === "renewed") answer = await post();
    if (!isGood(answer)) {
      throw finalError(answer) ?? new WatchError("unreachable", "no answer came", answer.status);
    }
    if (!this.#over) this.#hear(this.#address.kind, answer.body);
    return answer.body;
  }

  // --- called by presence.js ---------------------------------------------------------------------

  sleep() {
    if (this.#over) return;
    this.#end();
    this.#show("hidden");
  }

  wake() {
    if (!this.#over) this.#begin();
  }

  hurry() {
    this.#barredUntil = 0;
    this.#sharing?.hurry();
    this.wake();
  }

  // --- streams and polls -------------------------------------------------------------------------

  async #begin() {
    const turn = this.#end();
    this.#show("connecting");
    if (this.#shared) return this.#share(turn);
    if (!(await this.#listen(turn))) this.#poll(turn, 0);
  }

  /** Close everything; answers that still come belong to an older turn and are ignored. */
  #end() {
    this.#turn += 1;
    this.#stopPolls();
    for (const close of this.#closers) close();
    this.#closers.clear();
    this.#sharing = null;
    return this.#turn;
  }

  /** False: no stream now. True: a stream is open, or this turn is over. */
  async #listen(turn) {
    if (this.#shared || Date.now() < this.#barredUntil) return turn !== this.#turn;
    const release = await takeSlot();
    if (turn !== this.#turn) release?.();
    if (turn !== this.#turn || !release) return turn !== this.#turn;
    const stream = new Stream(this.#address.events(this.#token, this.#last), {
      event: (type, data) => {
        this.#last = stream.last;
        this.#listens();
        this.#hear(type, data);
      },
      opened: () => this.#address.isScope && this.#listens(),
      cut: () => this.#lost(),
      down: () => this.#fallBack(),
      silent: () => this.#doubt(turn, stream),
    });
    this.#stopPolls();
    this.#closers.add(() => stream.close()).add(release);
    return true;
  }

  #listens() {
    this.#failures = 0;
    this.#mayRenew = true;
    this.#show("live");
  }

  #fallBack() {
    this.#barredUntil = Date.now() + AGAIN_MS;
    this.#poll(this.#end(), 0);
  }

  /** No event came for a while: poll, to find out whether the stream has missed a change. */
  async #doubt(turn, stream) {
    const heard = stream.heard;
    const began = this.#address.isScope ? stream.opened : heard > 0;
    const result = await this.#refresh(turn);
    if (turn !== this.#turn) return;
    if (!began || result.failed) return this.#fallBack();
    if (!result.changed) return;
    const timer = setTimeout(() => {
      if (turn === this.#turn && stream.heard === heard) this.#fallBack();
    }, GRACE_MS);
    this.#closers.add(() => clearTimeout(timer));
  }

  #share(turn) {
    const { isScope, id } = this.#address;
    this.#sharing = joinStream(this.#shared, this.#token, isScope ? null : id, {
      event: (type, data) => {
        this.#listens();
        this.#hear(type, data);
      },
      up: () => {
        this.#stopPolls();
        if (isScope || this.job !== null) this.#listens();
      },
      down: () => this.#poll(turn, 0),
      cut: () => this.#lost(),
      refresh: () => this.#refreshSoon(turn, 0),
      hasChanged: async () => {
        const result = await this.#refresh(turn);
        return result.changed || result.failed;
      },
    });
    this.#closers.add(this.#sharing.leave);
  }

  #poll(turn, ms) {
    if (turn !== this.#turn) return;
    this.#stopPolls();
    let on = true;
    const remove = later(ms, async () => {
      if (await this.#listen(turn)) return;
      const result = await this.#refresh(turn);
      if (turn !== this.#turn || !on) return;
      if (!result.failed) this.#show("polling");
      if (result.isBack) return this.#comeBack();
      this.#poll(turn, result.ms);
    });
    const mayListen = !this.#shared && Date.now() >= this.#barredUntil;
    const forget = mayListen ? whenFree(() => this.#begin()) : () => {};
    this.#stopPolls = () => {
      on = false;
      remove();
      forget();
    };
  }

  /** The server is available again, so try a stream again. */
  #comeBack() {
    this.#barredUntil = 0;
    if (!this.#sharing) return this.#begin();
    this.#sharing.hurry();
    this.#poll(this.#turn, this.#interval);
  }

  // --- one poll ----------------------------------------------------------------------------------

  /** Poll beside a stream, which does not send everything, until an answer came. */
  #refreshSoon(turn, ms) {
    const remove = later(ms, async () => {
      this.#closers.delete(remove);
      const result = await this.#refresh(turn);
      if (turn !== this.#turn) return;
      if (result.failed) this.#refreshSoon(turn, result.ms);
      else this.#listens();
    });
    this.#closers.add(remove);
  }

  async #refresh(turn) {
    if (turn !== this.#turn) return {};
    const abort = new AbortController();
    const close = () => abort.abort();
    this.#closers.add(close);
    const answer = await fetchState(this.#address, this.#token, this.#memory, abort.signal);
    this.#closers.delete(close);
    if (turn !== this.#turn) return {};
    if (isGood(answer)) return this.#take(answer);
    if (answer.status === 401) {
      const renewal = await this.#renew();
      if (turn !== this.#turn) return {};
      if (renewal === "renewed") {
        this.hurry();
        return {};
      }
      if (renewal === "failed") return this.#miss(answer);
    }
    const error = finalError(answer);
    if (error === null) return this.#miss(answer);
    this.#finish("onerror", error);
    return {};
  }

  #take({ items, retryAfterMs }) {
    const isBack = this.#failures > 0;
    this.#failures = 0;
    this.#mayRenew = true;
    let changed = false;
    for (const [type, data] of items) changed = this.#hear(type, data, true) || changed;
    return { changed, isBack, ms: Math.max(this.#interval, retryAfterMs) };
  }

  #miss({ retryAfterMs }) {
    this.#failures += 1;
    this.#lost();
    const backoff = Math.min(LONGEST_MS, this.#interval * 2 ** Math.min(6, this.#failures - 1));
    return { failed: true, ms: Math.max(backoff, retryAfterMs) };
  }

  async #renew() {
    if (!this.#options.renew || !this.#mayRenew) return "refused";
    try {
      const token = await renewed(this.#options.renew, this.#token);
      this.#mayRenew = false;
      if (!token) return "refused";
      this.#token = token;
      return "renewed";
    } catch {
      return "failed"; // the issuer of tokens cannot be reached now
    }
  }

  // --- events ------------------------------------------------------------------------------------

  /** Returns whether it was new. `isRead`: from a poll, whose lists omit position and ETA. */
  #hear(type, data, isRead = false) {
    if (this.#over) return false;
    if (type === "chunk") return this.#hearChunk(data);
    if (type === "resync") return void this.#refreshSoon(this.#turn, 0);
    const many = this.#address.isScope;
    const key = `${type} ${data.id}`;
    const seen = this.#seen.get(key);
    if (seen && data.version < seen.version) return false;
    const finished = isFinal(type, data);
    // Of many jobs, results are not kept: a finished job does not change.
    const text = many && finished ? "finished" : JSON.stringify(data);
    // The same version in a list, without its position, has less than we know.
    const isPoorer = isRead && many && type === "job" && data.version === seen?.version;
    if (isPoorer || text === seen?.text) return false;
    const now = { version: data.version, text, print: print(data) };
    this.#remember(key, now);
    if (!many || type === "account") this.job = data;
    this.#call("onchange", data, type);
    if (finished && !many) this.#finish("ondone", data);
    // In a topic, a job that finished before the watch is not new.
    return seen ? seen.print !== now.print : !(many && finished);
  }

  #hearChunk(chunk) {
    const [attempt, seq] = this.#chunk;
    if (chunk.attempt < attempt || (chunk.attempt === attempt && chunk.seq <= seq)) return false;
    this.#chunk = [chunk.attempt, chunk.seq];
    this.#call("onchunk", chunk);
    return true;
  }

  #remember(key, now) {
    this.#seen.delete(key);
    this.#seen.set(key, now);
    if (this.#seen.size > MOST_SEEN) this.#seen.delete(this.#seen.keys().next().value);
  }

  #lost() {
    this.#show(navigator.onLine === false ? "offline" : "reconnecting");
  }

  #finish(callback, values) {
    if (this.#over) return;
    this.stop();
    this.#call(callback, values);
  }

  #show(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#call("onstate", state);
  }

  /** An error in the page's own code is reported and does not stop the watch. */
  #call(name, ...values) {
    try {
      this.#options[name]?.(...values);
    } catch (error) {
      reportError(error);
    }
  }
}
