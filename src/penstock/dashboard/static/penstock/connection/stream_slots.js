// How many streams may be open. Browsers allow six connections to a host over HTTP/1.1, for all
// tabs together: whoever takes them all keeps every other call waiting, also those of the app.

const MOST = 4;
const taken = new Set();
const waiting = new Set();

/** Resolves with a function that gives the place back; null: there is none. */
export async function takePlace() {
  for (let n = 1; n <= MOST; n++) {
    if (taken.has(n)) continue;
    taken.add(n);
    const unlock = await lock(`penstock stream ${n}`);
    if (unlock) return once(() => free(n, unlock));
    taken.delete(n);
  }
  return null;
}

/** `wake` is called once, when a place of this page is free; returns how to take it back. */
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

/** Other tabs of this origin hold the same locks. Where there are none, each page counts alone. */
function lock(name) {
  if (!navigator.locks) return Promise.resolve(() => {});
  return new Promise((resolve) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (got) => {
        if (!got) return resolve(null);
        return new Promise((unlock) => resolve(unlock));
      })
      // In a sandboxed frame they are refused.
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
