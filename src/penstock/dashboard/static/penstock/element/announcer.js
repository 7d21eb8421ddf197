// Announces changes to screen readers: not every token, second or position in the queue.

// Changes within this time are announced together.
const GATHER_MS = 300;
// Then the text is removed: otherwise a person who reads line by line would find it twice.
const KEPT_MS = 10_000;
const WORDS = ["status", "stage", "banner", "error", "note", "credits", "connection"];

export class Announcer {
  #node;
  #announced = {};
  #due = [];
  #speaks = null;
  #leaves = null;
  #number = null;
  #quarter = null;

  constructor(node) {
    this.#node = node;
  }

  hear(view) {
    for (const name of WORDS) {
      const words = view[name] ?? null;
      // Compared without numbers: "no progress for 5 minutes" is not new after "for 4 minutes".
      const heard = words?.replace(/\d+/g, "") ?? null;
      if (heard !== null && heard !== this.#announced[name]) this.#due.push(words);
      this.#announced[name] = heard;
    }
    this.#hearPosition(view);
    this.#hearProgress(view);
    if (this.#due.length && this.#speaks === null) {
      this.#speaks = setTimeout(() => this.#speak(), GATHER_MS);
    }
  }

  stop() {
    clearTimeout(this.#speaks);
    clearTimeout(this.#leaves);
    this.#speaks = null;
  }

  /** Announce a position when it is new, has halved or doubled, or is 1. */
  #hearPosition({ position, number = null, wait }) {
    const worth = this.#number === null || number <= this.#number / 2 || number > 2 * this.#number;
    if (number !== null && number !== this.#number && worth) {
      this.#due.push([position, wait].filter(Boolean).join(", "));
    }
    if (number === null || worth) this.#number = number;
  }

  #hearProgress({ progress }) {
    const quarter = progress ? Math.floor((4 * progress.done) / progress.total) : null;
    if (quarter > 0 && quarter !== this.#quarter) this.#due.push(progress.words);
    this.#quarter = quarter;
  }

  #speak() {
    // Each text once: a stage may have the same words as the status.
    const words = [...new Set(this.#due.splice(0))];
    this.#node.textContent = words.map((text) => text.replace(/[.,;…\s]+$/, "")).join(". ");
    this.#speaks = null;
    clearTimeout(this.#leaves);
    this.#leaves = setTimeout(() => (this.#node.textContent = ""), KEPT_MS);
  }
}
