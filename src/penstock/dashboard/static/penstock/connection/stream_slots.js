// Bounds the open streams. Browsers allow six connections to a host over HTTP/1.1, for all tabs
// together: if streams took them all, every other call would wait, including those of the app.

const MOST = 4;
const taken = new Set();
const waiting = new Set();

/** Resolves with a function that releases the slot; null if no slot is free. */
export async function takeSlot() {
  for (let n = 1; n <= MOST; n++) {
    if (taken.has(n)) continue;
    taken.add(n);
    const unlock = await lock(`penstock stream ${n}`);
    if (unlock) return once(() => free(n, unlock));
    taken.delete(n);
  }
  return null;
}

/** Call `wake` once, when a slot of this page is free; returns a function to withdraw. */
export function whenFree(wake) {
  waiting.add(wake);
  return () => waiting.delete(wake);
}

function free(n, unlock) {
  taken.delete(n);
  unlock();
  const [first] = waiting;
  if (first) {
    waiting.delete(first);
    first();
  }
}

/** Tabs of one origin share these locks. In browsers without locks each page counts alone. */
function lock(name) {
  if (!navigator.locks) return Promise.resolve(() => {});
  return new Promise((resolve) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (got) => {
        if (!got) return resolve(null);
        return new Promise((unlock) => resolve(unlock));
      })
      // Sandboxed frames refuse locks.
      .catch(() => resolve(() => {}));
  });
}

function once(work) {
  let done = false;
  return () => {
    if (!done) {
      done = true;
      work();
    }
  };
}
