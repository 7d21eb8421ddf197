// All polls of a page stand in one line: a few at a time, a moment apart, however many there are.

const GAP_MS = 100;
// Two, so that one that hangs does not hold up all others.
const MOST_AT_ONCE = 2;

const waiting = new Set();
let running = 0;
let timer = null;
let lastAt = 0;

/** Runs `work`, which may return a promise, in its turn after `ms`; returns how to take it out. */
export function later(ms, work) {
  const entry = { at: Date.now() + ms, work };
  waiting.add(entry);
  arrange();
  return () => {
    waiting.delete(entry);
    arrange();
  };
}

function arrange() {
  clearTimeout(timer);
  if (waiting.size === 0 || running >= MOST_AT_ONCE) return;
  const first = [...waiting].reduce((a, b) => (b.at < a.at ? b : a));
  const at = Math.max(first.at, lastAt + GAP_MS);
  timer = setTimeout(() => run(first), Math.max(0, at - Date.now()));
}

async function run(entry) {
  waiting.delete(entry);
  lastAt = Date.now();
  running += 1;
  arrange();
  try {
    await entry.work();
  } finally {
    running -= 1;
    arrange();
  }
}
