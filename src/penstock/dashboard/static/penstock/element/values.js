// Shows the result of a job. It comes from a model, so it is shown as text only: no markup, no
// scripts, and nothing is loaded from other sites automatically.

const PICTURE = /^data:image\/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]+$/;
const LINK = /^https?:\/\/[^\s]+$/i;
const MOST_ENTRIES = 100;

const prints = new WeakMap();

/** Not rebuilt while the value is the same: pictures would flicker and selections be lost. */
export function put(node, value, context) {
  const print = `${context.language.name} ${JSON.stringify(value)}`;
  if (prints.get(node) === print) return;
  prints.set(node, print);
  const shown = show(value, context);
  node.replaceChildren(...(shown === null ? [] : [shown]));
}

/** The value as elements; null if it is empty, or too deeply nested to be shown generically. */
function show(value, { language, upload }) {
  if (value === null || value === undefined || value === "") return null;
  const context = { language, upload };
  return (
    plain(value, context) ??
    (Array.isArray(value) ? list(value, context) : definitions(value, context))
  );
}

function plain(value, { language, upload }) {
  if (typeof value === "string") return PICTURE.test(value) ? picture(value) : words(value);
  if (typeof value === "number") return text(new Intl.NumberFormat(language.name).format(value));
  if (typeof value === "boolean") return text(language.text(value ? "yes" : "no"));
  const id = value?.upload;
  const isFile = typeof id === "string" && Object.keys(value).length === 1;
  return isFile ? file(upload(id), language) : null;
}

function list(values, context) {
  const there = values.slice(0, MOST_ENTRIES).filter((entry) => entry !== null);
  const parts = there.map((entry) => plain(entry, context));
  if (parts.length === 0 || parts.includes(null)) return null;
  return element("ul", ...parts.map((part) => element("li", part)));
}

function definitions(value, context) {
  const rows = [];
  for (const [name, entry] of Object.entries(value).slice(0, MOST_ENTRIES)) {
    if (entry === null || entry === "") continue;
    const shown = plain(entry, context) ?? (Array.isArray(entry) ? list(entry, context) : null);
    if (shown === null) return null;
    rows.push(element("dt", name.replaceAll("_", " ")), element("dd", shown));
  }
  return rows.length ? element("dl", ...rows) : null;
}

function words(value) {
  return LINK.test(value) ? link(value, value) : text(value);
}

function text(value) {
  const shown = element("span", value);
  shown.className = "text";
  return shown;
}

function picture(src) {
  const shown = element("img");
  shown.alt = "";
  shown.src = src;
  return shown;
}

/** Most files are pictures; a file that is not becomes a link. */
function file(url, language) {
  const shown = picture(url);
  shown.alt = language.text("file");
  shown.addEventListener("error", () => shown.replaceWith(link(url, language.text("file"))));
  return shown;
}

function link(url, words_) {
  const shown = element("a", words_);
  shown.href = url;
  shown.rel = "noopener noreferrer";
  shown.target = "_blank";
  return shown;
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}
