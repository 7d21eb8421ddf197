// The inside of <penstock-job>: built once and updated in place, so that nothing flickers.

import { adoptStyle } from "./style.js";

/** Build the parts and return them by name, the name of `::part(name)`. */
export function build(root) {
  adoptStyle(root);
  const parts = {};
  const make = (tag, name, options = {}, children = []) => {
    const made = document.createElement(tag);
    if (name) {
      made.setAttribute("part", name);
      made.className = options.class ?? name;
      parts[name] = made;
    }
    for (const [key, value] of Object.entries(options.attributes ?? {})) {
      made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const slot = (name, ...children) => {
    const made = make("slot", null, { attributes: { name } }, children);
    parts[`${name}Slot`] = made;
    return made;
  };
  const words = make("span", "words");
  parts.words = words;
  const head = make("div", null, {}, [
    make("p", "status", { attributes: { tabindex: "-1" } }, [
      make("span", "mark", { attributes: { "aria-hidden": "true" } }),
      words,
    ]),
    make("p", "position"),
    make("p", "wait", { class: "muted" }),
    make("p", "stage"),
    make("p", "elapsed", { class: "elapsed muted" }),
  ]);
  head.className = "head";
  const known = make("div", null, {}, [
    head,
    make("p", "banner"),
    make("div", "bar", {}, [make("progress", "progress"), make("span", "count")]),
    make("div", "error", {}, [slot("error", make("p", "reason"))]),
    make("p", "note", { class: "muted" }),
    make("p", "credits", { class: "muted" }),
    make("div", "tokens", { attributes: { tabindex: "0", role: "region" } }),
    make("div", "partial", {}, [slot("partial", make("div", "partialValue"))]),
    make("div", "result", {}, [slot("result", make("div", "resultValue"))]),
    make("div", "rendered"),
  ]);
  known.className = "known";
  const box = make("div", "box", {}, [
    make("p", "connection", { class: "muted" }),
    known,
    make("p", "refusal", { class: "muted" }),
    make("div", "actions", {}, [
      make("button", "cancel", { attributes: { type: "button" } }),
      slot("actions"),
    ]),
    make("div", "announcement", { class: "heard", attributes: { role: "status" } }),
  ]);
  root.append(box);
  return parts;
}

/** Set the text of a node, or hide the node if there is none. */
export function fill(node, words) {
  const text = words ?? "";
  if (node.textContent !== text) node.textContent = text;
  node.hidden = text === "";
}

/** Whether a slot has content neither from the page nor from us. */
export function isEmpty(slot) {
  return slot.assignedNodes().length === 0 && !slot.firstElementChild?.firstChild;
}
