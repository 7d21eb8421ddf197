// Renews an expired token: the page is asked once for all watches with the same token.

// A watch that renews the same token later gets the same new one, so they can share a stream.
const KEPT_MS = 60_000;
const requests = new Map();

/** Resolves with the new token; null if the page has none. Rejects if asking failed. */
export function renewed(renew, old) {
  const key = old ?? renew;
  if (!requests.has(key)) {
    const forget = () => requests.delete(key);
    const answer = Promise.resolve()
      .then(renew)
      .then((token) => (typeof token === "string" && token ? token : null));
    requests.set(key, answer);
    answer.then(() => setTimeout(forget, KEPT_MS), forget);
  }
  return requests.get(key);
}
