// Adds the output of a running job to the page as it comes. The page contains the earlier output.

import { watch } from "./penstock.js";

const section = document.getElementById("output");
const tokens = document.getElementById("tokens");
// The last chunk that the page shows.
let { attempt, seq } = { attempt: Number(tokens.dataset.attempt), seq: Number(tokens.dataset.seq) };

function isNew(chunk) {
  return chunk.attempt > attempt || (chunk.attempt === attempt && chunk.seq > seq);
}

function show(chunk) {
  if (!isNew(chunk)) return;
  const atEnd = tokens.scrollTop + tokens.clientHeight >= tokens.scrollHeight - 4;
  const text = typeof chunk.data === "string" ? chunk.data : `${JSON.stringify(chunk.data)}\n`;
  // A new attempt starts with empty output.
  if (chunk.attempt === attempt) tokens.append(text);
  else tokens.textContent = text;
  ({ attempt, seq } = chunk);
  section.hidden = false;
  if (atEnd) tokens.scrollTop = tokens.scrollHeight; // unless the reader has scrolled up
}

/** Read a new token from the page, which has one while the session lasts. */
async function renew() {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.getElementById("tokens")?.dataset.token ?? null;
}

watch(tokens.dataset.watch, { token: tokens.dataset.token, onchunk: show, renew });
