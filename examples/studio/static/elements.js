// Small things that the page and its cards do with elements.

// Written only when it changes, or a screen reader would read it out every 3 s.
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

// Newest first, by its id; whoever had the focus keeps it.
export function putInOrder(article, list) {
  const id = article.dataset.id;
  const others = [...list.children].filter((other) => other !== article);
  const next = others.find((other) => other.dataset.id < id) ?? null;
  if (article.parentElement === list && article.nextElementSibling === next) return;
  const focused = article.contains(document.activeElement) ? document.activeElement : null;
  list.insertBefore(article, next);
  focused?.focus({ preventScroll: true });
}
