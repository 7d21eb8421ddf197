// What a job says while it runs, as it says it. The page has the beginning; this adds what comes.

import { watch } from "./penstock.js";

const section = document.getElementById("output");
const tokens = document.getElementById("tokens");
// What the page shows already.
let { attempt, seq } = { attempt: Number(tokens.dataset.attempt), seq: Number(tokens.dataset.seq) };

function isNew(chunk) {
  return chunk.attempt > attempt || (chunk.attempt === attempt && chunk.seq > seq);
}

function show(chunk) {
  if (!isNew(chunk)) return;
  const atEnd = tokens.scrollTop + tokens.clientHeight >= tokens.scrollHeight - 4;
  const text = typeof chunk.data === "string" ? chunk.data : `${JSON.stringify(chunk.data)}\n`;
  // A new start begins anew.
  if (chunk.attempt === attempt) tokens.append(text);
  else tokens.textContent = text;
  ({ attempt, seq } = chunk);
  section.hidden = false;
  if (atEnd) tokens.scrollTop = tokens.scrollHeight; // unless somebody reads further up
}

/** The page itself has another token, as long as one is signed in. */
async function renew() {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.getElementById("tokens")?.dataset.token ?? null;
}

watch(tokens.dataset.watch, { token: tokens.dataset.token, onchunk: show, renew });
