// One call to the API, and what its answer means for a watch.

const TIMEOUT_MS = 15_000;

/** Why a watch ended or a cancel was refused. `code`: ours or the API's; `status`: of HTTP. */
export class WatchError extends Error {
  constructor(code, message, status = 0) {
    super(message);
    this.name = "WatchError";
    this.code = code;
    this.status = status;
  }
}

/** Resolves with `{status, body, etag, retryAfterMs}`; status 0 means no answer. */
export async function send(url, { token, method = "GET", etag, signal } = {}) {
  const ours = new AbortController();
  const abort = () => ours.abort();
  const timer = setTimeout(abort, TIMEOUT_MS);
  signal?.addEventListener("abort", abort);
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (etag) headers["If-None-Match"] = etag;
  try {
    const answer = await fetch(url, { method, headers, cache: "no-store", signal: ours.signal });
    return {
      status: answer.status,
      body: answer.status === 304 ? null : await json(answer),
      etag: answer.headers.get("ETag"),
      retryAfterMs: milliseconds(answer.headers.get("Retry-After")),
    };
  } catch {
    return { status: 0, body: null, etag: null, retryAfterMs: 0 };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

/** The error that ends the watch after this answer; null if the call is worth repeating. */
export function finalError({ status, body }) {
  const detail = body?.detail;
  if (status === 401) {
    return new WatchError("unauthorized", detail ?? "the token is not valid any more", status);
  }
  if (status === 403) return new WatchError("not_allowed", detail ?? "this is not allowed", status);
  if (status === 404 || status === 410) {
    return new WatchError("gone", "this job is not there any more", status);
  }
  if (status >= 400 && status < 500 && status !== 408 && status !== 425 && status !== 429) {
    return new WatchError(body?.code ?? "refused", detail ?? `the answer was ${status}`, status);
  }
  return null;
}

async function json(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text);
  } catch {
    // The page of a proxy. An answer with status 200 that is no JSON counts as a failure.
    return null;
  }
}

function milliseconds(retryAfter) {
  const seconds = Number(retryAfter);
  return Number.isFinite(seconds) && seconds > 0 ? seconds * 1000 : 0;
}
