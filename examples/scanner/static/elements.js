// Small things that both pages do with elements.

// Written only when it changes, or a screen reader would read it out every 2 s.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A disabled button here keeps the focus, which `disabled` would lose; clicks on it do nothing.
export function isDisabled(button) {
  return button.getAttribute("aria-disabled") === "true";
}

export function disable(button, disabled = true) {
  if (disabled) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const STATES = {
  RECEIVED: "Received",
  TIER1_SCANNING: "Tier 1 scanning",
  TIER2_SCANNING: "Tier 2 scanning",
  PUBLISHED: "Published",
  REJECTED: "Rejected",
};

// A row of a table: a cell is a text, which may be a link or the state of a submission.
export function line(cells) {
  const row = document.createElement("tr");
  for (const { text, href, state } of cells) {
    const cell = row.appendChild(document.createElement(row.children.length ? "td" : "th"));
    if (cell.tagName === "TH") cell.scope = "row";
    const inner = href || state ? cell.appendChild(document.createElement(href ? "a" : "span")) : cell;
    if (href) inner.href = href;
    if (state) Object.assign(inner, { className: "state" }).dataset.state = state;
    inner.textContent = text;
  }
  return row;
}
