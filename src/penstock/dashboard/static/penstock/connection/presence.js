// Whether the page is visible: a hidden tab sends no requests and refreshes when it is shown again.

const watches = new Set();

export function isHidden() {
  return document.visibilityState === "hidden";
}

/** Call `sleep`, `wake` and `hurry` (the network is back) of `watch`; returns how to stop that. */
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
