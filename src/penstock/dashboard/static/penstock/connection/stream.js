// One EventSource: its events, and when it cannot be relied on any more.

const EVENTS = ["job", "chunk", "batch", "account", "resync"];
const MOST_ERRORS = 2;
const ERRORS_MS = 30_000;
// The server sends a heartbeat every 15 s, but an EventSource does not show it. So silence proves
// nothing and causes a poll; only a change that the stream did not send makes the stream useless.
const SILENT_MS = 45_000;
// The first event comes at once, unless a proxy buffers it.
const FIRST_MS = 10_000;

export class Stream {
  #source;
  #callbacks;
  #errors = [];
  #timer = null;

  /** `callbacks`: event(type, data), opened(), cut() (it will reconnect), down(), silent(). */
  constructor(url, callbacks) {
    this.#callbacks = callbacks;
    this.last = "";
    this.heard = 0;
    this.opened = false;
    this.#source = new EventSource(url);
    for (const type of EVENTS) {
      this.#source.addEventListener(type, (event) => this.#hear(type, event));
    }
    this.#source.addEventListener("open", () => {
      this.opened = true;
      this.#callbacks.opened?.();
    });
    this.#source.addEventListener("error", () => this.#fail());
    this.#wait(FIRST_MS);
  }

  close() {
    clearTimeout(this.#timer);
    this.#source.close();
    this.#callbacks = {};
  }

  #hear(type, event) {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return; // not ours
    }
    this.heard += 1;
    if (event.lastEventId) this.last = event.lastEventId;
    this.#wait(SILENT_MS);
    this.#callbacks.event?.(type, data);
  }

  #fail() {
    // Closed: the answer was no stream. An EventSource hides the status, so the caller has to poll.
    if (this.#source.readyState === EventSource.CLOSED) return this.#callbacks.down?.();
    const now = Date.now();
    this.#errors = this.#errors.filter((at) => now - at < ERRORS_MS);
    this.#errors.push(now);
    if (this.#errors.length >= MOST_ERRORS) this.#callbacks.down?.();
    else this.#callbacks.cut?.();
  }

  #wait(ms) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#wait(SILENT_MS);
      this.#callbacks.silent?.();
    }, ms);
  }
}
