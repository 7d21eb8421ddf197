// One queue for all polls of a page: at most two at a time, with a gap between them.

const GAP_MS = 100;
// Two, so that a poll that hangs does not block all others.
const MOST_AT_ONCE = 2;

const waiting = new Set();
let running = 0;
let timer = null;
let lastAt = 0;

/** Run `work`, which may return a promise, in its turn after `ms`; returns a function to cancel. */
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
