// The form: sends a package once, and goes on to the page that follows it.

import { newKey, disable, isDisabled, setText } from "./elements.js";
import { remember } from "./mine.js";

const UNSURE = "The scanner cannot be reached. Your package is still here: press Submit again.";
const FIELDS = ["name", "text"];

const by = (id) => document.getElementById(id);
const form = by("form");
const button = by("submit");

// One key per package as it is: a second click, or a second try after a lost answer, sends the same
// one and gets the same submission. Any change makes a new one.
let key = null;

function complain(sentence, field = null) {
  for (const one of FIELDS) {
    const here = one === field && sentence !== "";
    setText(by(`${one}-wrong`), here ? sentence : "");
    by(one).setAttribute("aria-invalid", String(here));
  }
  const own = FIELDS.includes(field);
  setText(by("wrong"), own ? "" : sentence);
  if (own && sentence) by(field).focus();
}

async function send(event) {
  event.preventDefault();
  if (isDisabled(button)) return;
  complain("");
  disable(button);
  setText(button, "Sending …");
  key ??= newKey();
  const body = JSON.stringify(Object.fromEntries(new FormData(form)));
  let answer;
  let reply;
  try {
    answer = await fetch("/api/v1/submissions", { method: "POST", headers: { "Idempotency-Key": key }, body });
    reply = await answer.json();
  } catch {
    reply = { error: UNSURE };
  }
  if (answer?.ok && reply.id) {
    remember(reply);
    location.assign(`/submit/${reply.id}`);
    return;
  }
  stand();
  complain(reply.error, reply.field);
}

function stand() {
  disable(button, false);
  setText(button, "Submit");
}

form.addEventListener("submit", send);
form.addEventListener("input", () => { key = null; });
// Back from the next page, as a browser keeps it: the button rests no more, and what is sent is new.
window.addEventListener("pageshow", (event) => { if (event.persisted) { key = null; stand(); } });
