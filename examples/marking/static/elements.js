// Small things that the pages do with elements, and their way to ask.

const HEADERS = { "X-Requested-With": "marking", "Content-Type": "application/json" };
const ANSWER_MS = 30_000; // an answer that takes longer does not come
export const UNREACHABLE = "The page is not connected at the moment; it keeps asking.";

export const by = (id) => document.getElementById(id);

// Written only when it changes, or a screen reader would read it out each time.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, text) {
  setText(element, text);
  element.hidden = !text;
}

// A disabled button here keeps the focus, which `disabled` would lose; clicks on it do nothing.
export function isDisabled(button) {
  return button.getAttribute("aria-disabled") === "true";
}

export function disable(button, disabled = true) {
  if (disabled) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

// An answer that is lost has status 0.
export async function call(path, body = null) {
  const sent = body === null ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  let reply;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    answer = await fetch(path, { ...sent, signal, cache: "no-store", headers: HEADERS });
    reply = await answer.json();
  } catch {
    return { ok: false, status: 0, error: UNREACHABLE };
  }
  if (answer.status === 401) location.reload();
  return { ...reply, ok: reply.ok === true, status: answer.status };
}
