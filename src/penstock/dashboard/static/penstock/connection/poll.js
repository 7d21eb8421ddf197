// Reads the present state: one call for a job or a batch, pages for a topic or an account.

import { send } from "./request.js";

const MOST_PAGES = 5;
const FINAL = new Set(["succeeded", "failed", "cancelled"]);

/** `memory` keeps the ETag between polls. Resolves with the last answer and `items`. */
export async function fetchState(address, token, memory, signal) {
  if (!address.isScope) return await readOne(address, token, memory, signal);
  const items = [];
  if (address.kind === "account") {
    const answer = await send(address.self, { token, signal });
    if (!isGood(answer)) return { ...answer, items };
    items.push(["account", answer.body]);
  }
  let answer;
  let cursor = null;
  for (let page = 0; page < MOST_PAGES && (page === 0 || cursor); page++) {
    answer = await send(address.jobs(cursor), { token, signal });
    if (!isGood(answer) || !Array.isArray(answer.body.items)) return { ...answer, items: [] };
    items.push(...answer.body.items.map((job) => ["job", job]));
    cursor = answer.body.next_cursor;
  }
  return { ...answer, items };
}

async function readOne(address, token, memory, signal) {
  const answer = await send(address.self, { token, etag: memory.etag, signal });
  const items = isGood(answer) && answer.body !== null ? [[address.kind, answer.body]] : [];
  if (items.length) memory.etag = answer.etag;
  return { ...answer, items };
}

/** Whether the answer can be used, which includes 304. */
export function isGood({ status, body }) {
  return status === 304 || (status >= 200 && status < 300 && body !== null);
}

export function isFinal(type, data) {
  if (type === "job") return FINAL.has(data.status);
  return type === "batch" && data.running === 0 && data.queued === 0;
}

/** The values whose changes a stream sends. The ETA is left out: it changes every second. */
export function print(data) {
  return JSON.stringify([
    data.status, data.attempt, data.stage, data.stage_label, data.progress, data.cancel_requested,
    data.staleness?.since, data.balance, data.succeeded, data.failed, data.running, data.queued,
  ]);
}
