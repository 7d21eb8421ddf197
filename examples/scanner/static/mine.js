// What this browser has submitted: there is no sign-in, and a submission is opened by its id.

const NAME = "scanner-submissions";
const MOST = 10;

export function mine() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? [];
  } catch {
    return []; // a browser that keeps nothing
  }
}

export function remember({ id, name }) {
  const others = mine().filter((one) => one.id !== id);
  try {
    localStorage.setItem(NAME, JSON.stringify([{ id, name }, ...others].slice(0, MOST)));
  } catch { /* as above */ }
}
