// Hears of every change of one assignment as it happens. Where that does not work, whoever uses
// this asks every 3 s instead; it is tried again all the while.

import { call } from "./elements.js";

export const POLL_MS = 3000;

export class Live {
  #source = null;
  #timer = null;

  constructor(path, { onchange, onstate }) {
    this.path = path;
    this.onchange = onchange;
    this.onstate = onstate;
    this.connected = false;
    this.#connect();
  }

  // A new address each time: the one before may be too old by now.
  async #connect() {
    const said = await call(this.path);
    if (!said.ok) {
      this.#lose();
      return;
    }
    this.#source = new EventSource(said.url);
    this.#source.addEventListener("open", () => this.#tell(true));
    for (const event of ["job", "batch", "resync"]) {
      this.#source.addEventListener(event, () => this.onchange());
    }
    this.#source.addEventListener("error", () => {
      if (this.#source.readyState === EventSource.CLOSED) this.#lose();
      else this.#tell(false); // the browser connects again by itself
    });
  }

  #lose() {
    this.#source?.close();
    this.#tell(false);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), POLL_MS);
  }

  #tell(connected) {
    this.connected = connected;
    this.onstate(connected);
  }
}
