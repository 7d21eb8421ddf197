// Keeps an open page true: looks again when the server says that something has changed.
//
// #main asks for its own page on the event `refresh` (htmx), and is morphed into what comes, so that
// nothing flickers and what somebody is doing (a ticked box, an open detail, half a word) stays.

const FIRST_PAUSE_MS = 1000;
// A page that takes long to make is asked for less often: a fifth of the time at most.
const PAUSE_FACTOR = 4;
const AGAIN_MS = 2000;

const main = () => document.getElementById("main");
const connection = document.getElementById("connection");
const { live, login } = document.body.dataset;

let source = null;
let due = false;
let isAsking = false;
let begun = 0;
let pausedUntil = 0;
let timer = null;

function showConnection(text) {
  connection.hidden = text === "";
  if (connection.textContent !== text) connection.textContent = text;
}

function refresh() {
  due = true;
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  const wait = pausedUntil - performance.now();
  if (wait > 0) {
    timer = setTimeout(refresh, wait);
    return;
  }
  due = false;
  begun = performance.now();
  // Drops it while a filter is asking for the page: what that brings is as new.
  main().dispatchEvent(new CustomEvent("refresh"));
}

function forMain(handle) {
  return (event) => {
    if (event.detail.elt?.id === "main") handle(event.detail);
  };
}

function onAnswer({ successful, xhr }) {
  isAsking = false;
  const now = performance.now();
  pausedUntil = now + Math.max(FIRST_PAUSE_MS, PAUSE_FACTOR * (now - begun));
  // Not by its last word alone: an account may be called login.
  if (xhr.responseURL.split(/[?#]/)[0] === new URL(login, location.href).href) {
    location.assign(login);
  } else if (successful) {
    showConnection("");
  } else if (xhr.status === 503) {
    // A page that came while it was away says so itself, and shows nothing of before.
    if (document.getElementById("unavailable") === null) {
      showConnection(
        "The database cannot be reached; this page shows how it was. Jobs are safe, and go on.",
      );
    }
    setTimeout(refresh, AGAIN_MS);
  }
  if (due) refresh();
}

function onUnreachable() {
  showConnection(
    "The server cannot be reached; this page shows how it was. It looks again by itself.",
  );
  setTimeout(refresh, AGAIN_MS);
}

function listen() {
  if (source !== null || document.hidden) return;
  source = new EventSource(live);
  source.addEventListener("change", refresh);
  source.addEventListener("error", () => {
    // Where it does not come back by itself (a refusal, not a break), we do.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, AGAIN_MS);
    }
    refresh(); // says what is the matter
  });
}

function keepCurrent() {
  document.addEventListener("htmx:beforeRequest", forMain(() => { isAsking = true; }));
  document.addEventListener("htmx:afterRequest", forMain(onAnswer));
  document.addEventListener("htmx:sendError", forMain(onUnreachable));
  // A tab that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else {
      listen();
      refresh();
    }
  });
  listen();
}

if (main().hasAttribute("hx-get")) {
  // What somebody has done on the page is theirs: the server knows nothing of it.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => {
    if (name === "open" && node.tagName === "DETAILS") return false;
    if (name === "checked" || name === "data-dirty") return false;
    if (name === "selected") return node.closest("select")?.dataset.dirty === undefined;
    return !(name === "value" && node.dataset?.dirty !== undefined);
  };
  // What was fetched into the page since (data-keep) is no part of what comes.
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => node.dataset?.keep === undefined;
  document.addEventListener("input", (event) => {
    event.target.dataset.dirty = "";
  });
  // htmx reads the page at this moment, just before: what is told earlier, nobody would hear.
  document.addEventListener("DOMContentLoaded", keepCurrent);
}
