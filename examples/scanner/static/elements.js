// Small things that both pages do with elements.

// Written only when it changes, or a screen reader would read it out every 2 s.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A button that rests keeps the focus, which a disabled one would lose; clicks on it do nothing.
export function rests(button) {
  return button.getAttribute("aria-disabled") === "true";
}

export function rest(button, resting = true) {
  if (resting) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
