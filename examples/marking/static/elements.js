// Small things that the pages do with elements, and their way to ask.

const HEADERS = { "X-Requested-With": "marking", "Content-Type": "application/json" };
const ANSWER_MS = 30_000; // an answer that takes longer does not come
export const UNREACHABLE = "The page is not connected at the moment; it keeps asking.";

export const by = (id) => document.getElementById(id);

// Written only when it changes, or a screen reader would read it out each time.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, text) {
  say(element, text);
  element.hidden = !text;
}

// A button that rests keeps the focus, which a disabled one would lose; clicks on it do nothing.
export function rests(button) {
  return button.getAttribute("aria-disabled") === "true";
}

export function rest(button, resting = true) {
  if (resting) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

// An answer that is lost has status 0.
export async function call(path, body = null) {
  const sent = body === null ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  let said;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    answer = await fetch(path, { ...sent, signal, cache: "no-store", headers: HEADERS });
    said = await answer.json();
  } catch {
    return { ok: false, status: 0, error: UNREACHABLE };
  }
  if (answer.status === 401) location.reload();
  return { ...said, ok: said.ok === true, status: answer.status };
}
