// Where things are: a job, a batch, a topic or an account, and what belongs to it.

const PATH = /^(.*?\/v1)\/(jobs|batches|topics|accounts)\/(.+?)\/?$/;
const KINDS = { jobs: "job", batches: "batch", topics: "topic", accounts: "account" };
// Of a topic or account with more jobs, the newest are looked at while there is no stream.
const PAGE = 200;

/** An app may put its own address before ours: what has another form is taken for a job. */
export class Address {
  constructor(url) {
    this.url = new URL(url, document.baseURI);
    this.url.hash = "";
    const match = PATH.exec(this.url.pathname);
    this.root = match ? match[1] : null;
    this.kind = match ? KINDS[match[2]] : "job";
    this.id = decodeURIComponent(match ? match[3] : this.url.pathname.split("/").at(-1));
  }

  /** Whether it is about many jobs, which come and go: there is no end to it. */
  get isScope() {
    return this.kind === "topic" || this.kind === "account";
  }

  get self() {
    return this.url.href;
  }

  /** An EventSource sends no headers: the token, and the last event, go with the address. */
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
