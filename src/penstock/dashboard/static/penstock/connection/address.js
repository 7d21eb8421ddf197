// Addresses of a job, a batch, a topic or an account, and of their streams, cancels and uploads.

const PATH = /^(.*?\/v1)\/(jobs|batches|topics|accounts)\/(.+?)\/?$/;
const KINDS = { jobs: "job", batches: "batch", topics: "topic", accounts: "account" };
// The page size when a topic or account is polled; of more jobs, the newest are read.
const PAGE = 200;

/** An app may use addresses of its own: one of another form is taken as that of a job. */
export class Address {
  constructor(url) {
    this.url = new URL(url, document.baseURI);
    this.url.hash = "";
    const match = PATH.exec(this.url.pathname);
    this.root = match ? match[1] : null;
    this.kind = match ? KINDS[match[2]] : "job";
    this.id = decodeURIComponent(match ? match[3] : this.url.pathname.split("/").at(-1));
  }

  /** Whether it is a topic or an account, whose jobs come and go: watching it never ends. */
  get isScope() {
    return this.kind === "topic" || this.kind === "account";
  }

  get self() {
    return this.url.href;
  }

  /** An EventSource sends no headers, so token and last event id are in the address. */
  events(token, last) {
    const url = this.#below("events");
    if (token) url.searchParams.set("token", token);
    if (last) url.searchParams.set("last_event_id", last);
    return url.href;
  }

  cancel() {
    return this.#below("cancel").href;
  }

  /** The jobs of a topic or an account, newest first. */
  jobs(cursor) {
    const url = new URL(`${this.root}/jobs`, this.url);
    url.searchParams.set(this.kind, this.id);
    url.searchParams.set("limit", PAGE);
    if (cursor) url.searchParams.set("cursor", cursor);
    return url.href;
  }

  upload(id, token) {
    const root = this.root ?? new URL(".", this.url).pathname.replace(/\/[^/]*\/$/, "");
    const url = new URL(`${root}/uploads/${encodeURIComponent(id)}`, this.url);
    if (token) url.searchParams.set("token", token);
    return url.href;
  }

  #below(name) {
    const url = new URL(this.url);
    url.pathname = `${url.pathname.replace(/\/$/, "")}/${name}`;
    return url;
  }
}
