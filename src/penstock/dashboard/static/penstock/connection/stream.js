// One EventSource: what it tells, and when it is not to be relied on any more.

const EVENTS = ["job", "chunk", "batch", "account", "resync"];
const MOST_ERRORS = 2;
const ERRORS_MS = 30_000;
// The server beats every 15 s, but an EventSource does not show that. So silence proves nothing:
// it is a reason to ask, and only an answer that the stream has not told makes it useless.
const SILENT_MS = 45_000;
// Its first event comes at once, where nothing on the way keeps it back.
const FIRST_MS = 10_000;

export class Stream {
  #source;
  #callbacks;
  #errors = [];
  #timer = null;

  /** `callbacks`: event(type, data), opened(), cut() it comes back by itself, down(), silent(). */
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
    // Closed: the answer was no stream. A status is not to be seen here, so somebody has to ask.
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
