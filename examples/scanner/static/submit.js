// The form: sends a package once, and goes on to the page that follows it.

import { newKey, rest, rests, say } from "./elements.js";
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
    say(by(`${one}-wrong`), here ? sentence : "");
    by(one).setAttribute("aria-invalid", String(here));
  }
  const own = FIELDS.includes(field);
  say(by("wrong"), own ? "" : sentence);
  if (own && sentence) by(field).focus();
}

async function send(event) {
  event.preventDefault();
  if (rests(button)) return;
  complain("");
  rest(button);
  say(button, "Sending …");
  key ??= newKey();
  const body = JSON.stringify(Object.fromEntries(new FormData(form)));
  let answer;
  let said;
  try {
    answer = await fetch("/api/v1/submissions", { method: "POST", headers: { "Idempotency-Key": key }, body });
    said = await answer.json();
  } catch {
    said = { error: UNSURE };
  }
  if (answer?.ok && said.id) {
    remember(said);
    location.assign(`/submit/${said.id}`);
    return;
  }
  stand();
  complain(said.error, said.field);
}

function stand() {
  rest(button, false);
  say(button, "Submit");
}

form.addEventListener("submit", send);
form.addEventListener("input", () => { key = null; });
// Back from the next page, as a browser keeps it: the button rests no more, and what is sent is new.
window.addEventListener("pageshow", (event) => { if (event.persisted) { key = null; stand(); } });
