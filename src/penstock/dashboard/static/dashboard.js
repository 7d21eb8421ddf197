// Keeps an open page current: refreshes it when the server says that something has changed.
//
// On the event `refresh`, #main requests its own page (htmx) and is morphed into the answer. So
// nothing flickers, and selections, open details and unfinished input stay.

const FIRST_PAUSE_MS = 1000;
// A slow page is requested less often: its requests take at most a fifth of the time.
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
  // Dropped while a filter requests the page: that answer is as new.
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
  // The whole path is compared: an account may be called login.
  if (xhr.responseURL.split(/[?#]/)[0] === new URL(login, location.href).href) {
    location.assign(login);
  } else if (successful) {
    showConnection("");
  } else if (xhr.status === 503) {
    // A page that was loaded during the outage says so itself and shows no old data.
    if (document.getElementById("unavailable") === null) {
      showConnection(
        "The database cannot be reached. This page shows old data. Jobs are safe and continue.",
      );
    }
    setTimeout(refresh, AGAIN_MS);
  }
  if (due) refresh();
}

function onUnreachable() {
  showConnection(
    "The server cannot be reached. This page shows old data and reconnects automatically.",
  );
  setTimeout(refresh, AGAIN_MS);
}

function listen() {
  if (source !== null || document.hidden) return;
  source = new EventSource(live);
  source.addEventListener("change", refresh);
  source.addEventListener("error", () => {
    // An EventSource reconnects after a lost connection, but not after a refusal.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, AGAIN_MS);
    }
    refresh(); // shows the cause
  });
}

function keepCurrent() {
  document.addEventListener("htmx:beforeRequest", forMain(() => { isAsking = true; }));
  document.addEventListener("htmx:afterRequest", forMain(onAnswer));
  document.addEventListener("htmx:sendError", forMain(onUnreachable));
  // A hidden tab sends no requests.
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
  // Keep what a person changed on the page: the server does not know it.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => {
    if (name === "open" && node.tagName === "DETAILS") return false;
    if (name === "checked" || name === "data-dirty") return false;
    if (name === "selected") return node.closest("select")?.dataset.dirty === undefined;
    return !(name === "value" && node.dataset?.dirty !== undefined);
  };
  // Keep what was loaded into the page later (data-keep): the answer does not contain it.
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => node.dataset?.keep === undefined;
  document.addEventListener("input", (event) => {
    event.target.dataset.dirty = "";
  });
  // htmx is ready only now: an earlier event would have no listener.
  document.addEventListener("DOMContentLoaded", keepCurrent);
}
