// One stream of a topic or an account that all its jobs on a page share.

import { takeSlot, whenFree } from "./stream_slots.js";
import { Stream } from "./stream.js";

const AGAIN_MS = 120_000;
// The snapshot comes at once. A job that is not in it finished long ago; its member polls it.
const SNAPSHOT_MS = 2000;
const GRACE_MS = 3000;

const open = new Map();

/** `id`: of a job; null for all events.
    `callbacks`: event(type, data), up(), down(), cut(), refresh(), hasChanged(). Returns `{leave, hurry}`. */
export function joinStream(address, token, id, callbacks) {
  const key = `${address.self}\n${token}`;
  if (!open.has(key)) open.set(key, new SharedStream(address, token, () => open.delete(key)));
  const stream = open.get(key);
  const member = { id: id?.toLowerCase() ?? null, callbacks, heard: false };
  stream.join(member);
  return { leave: () => stream.leave(member), hurry: () => stream.hurry() };
}

class SharedStream {
  #address;
  #token;
  #onEmpty;
  #members = new Set();
  #stream = null;
  #release = null;
  #timers = new Set();
  #forget = () => {};
  #state = "closed";

  constructor(address, token, onEmpty) {
    this.#address = address;
    this.#token = token;
    this.#onEmpty = onEmpty;
  }

  join(member) {
    this.#members.add(member);
    if (this.#state === "closed") this.#open();
    else if (this.#state === "live") this.#greet(member);
    else if (this.#state === "down") queueMicrotask(() => member.callbacks.down());
  }

  leave(member) {
    if (!this.#members.delete(member) || this.#members.size > 0) return;
    this.#close("over");
    this.#onEmpty();
  }

  hurry() {
    if (this.#state === "down") this.#open();
  }

  async #open() {
    this.#close("opening");
    const release = await takeSlot();
    if (this.#state !== "opening") return release?.();
    if (release === null) {
      this.#forget = whenFree(() => this.#open());
      return this.#goDown();
    }
    this.#release = release;
    const stream = (this.#stream = new Stream(this.#address.events(this.#token), {
      opened: () => this.#goUp(),
      event: (type, data) => this.#hear(type, data),
      cut: () => this.#callAll("cut"),
      down: () => {
        this.#close("down");
        this.#goDown();
      },
      silent: () => this.#doubt(stream),
    }));
  }

  #close(state) {
    this.#state = state;
    this.#stream?.close();
    this.#release?.();
    this.#forget();
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
    this.#stream = this.#release = null;
    this.#forget = () => {};
  }

  #goUp() {
    this.#state = "live";
    // Members of all events have received the snapshot.
    for (const member of this.#members) member.heard = member.id === null;
    this.#callAll("up");
    this.#after(SNAPSHOT_MS, () => {
      for (const member of this.#members) if (!member.heard) member.callbacks.refresh();
    });
  }

  #goDown() {
    this.#state = "down";
    this.#after(AGAIN_MS, () => this.#open());
    this.#callAll("down");
  }

  #greet(member) {
    queueMicrotask(() => {
      member.callbacks.up();
      member.callbacks.refresh();
    });
  }

  #hear(type, data) {
    if (type === "resync") return this.#callAll("refresh");
    for (const member of [...this.#members]) {
      if (member.id !== null && (type !== "job" || member.id !== data.id.toLowerCase())) continue;
      member.heard = true;
      member.callbacks.event(type, data);
    }
  }

  /** One member polls for all of them; each time another one. */
  async #doubt(stream) {
    const [member] = this.#members;
    const heard = stream.heard;
    this.#members.delete(member);
    this.#members.add(member);
    const changed = this.#state !== "live" || (await member.callbacks.hasChanged());
    if (stream !== this.#stream || !changed) return;
    this.#after(this.#state === "live" ? GRACE_MS : 0, () => {
      if (stream.heard !== heard) return;
      this.#close("down");
      this.#goDown();
    });
  }

  #after(ms, work) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      work();
    }, ms);
    this.#timers.add(timer);
  }

  #callAll(name) {
    for (const member of [...this.#members]) member.callbacks[name]();
  }
}
