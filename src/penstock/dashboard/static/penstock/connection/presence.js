// Whether anybody looks at the page: a hidden tab asks for nothing, and wakes with the present.

const watches = new Set();

export function isHidden() {
  return document.visibilityState === "hidden";
}

/** `sleep`, `wake` and `hurry` (the network is back) are called; returns how to leave. */
export function attend(watch) {
  watches.add(watch);
  return () => watches.delete(watch);
}

document.addEventListener("visibilitychange", () => {
  for (const watch of [...watches]) isHidden() ? watch.sleep() : watch.wake();
});

addEventListener("online", () => {
  if (!isHidden()) for (const watch of [...watches]) watch.hurry();
});
