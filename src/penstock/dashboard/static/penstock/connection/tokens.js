// A token's time is over: the page is asked for a new one, once for all who had the same.

// Who comes later with the old one gets the new one too: they may share a stream by it.
const KEPT_MS = 60_000;
const requests = new Map();

/** The new token; null where the page has none to give. Rejected where it could not be asked. */
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
