// One order: how it goes on, as <penstock-job> shows it; a place for each picture; what it cost.

import { setText } from "./elements.js";
import { credits, localDay } from "./words.js";

const TITLES = {
  tryon: "Try-on", product: "Product", freestyle: "Freestyle", workflow: "Workflow", video: "Video",
};
const WHY = { refused: "refused by the model", broken: "did not come", cancelled: "cancelled", failed: "did not come" };
const LIVE = new Set(["queued", "generating"]);
const LOST = "This order is not there any more.";
const WORDS = {
  queued: "You are in the queue",
  running: "Generating your images…",
  backoff_note: "",
  recovering_note: "",
  cancelling: "Stopping…",
  cancel_failed: "The studio could not be reached. Press Cancel again.",
  // Said once, above the cards.
  reconnecting: "",
  offline: "",
};

export class Card {
  constructor(template, { renew, onend }) {
    this.article = document.importNode(template.content, true).querySelector("article");
    this.status = null;
    this.asked = 0; // the number of the question whose answer is shown
    this.part = (name) => this.article.querySelector(name);
    this.job = this.part("penstock-job");
    // Pictures are shown below, and what they cost is the app's to say.
    Object.assign(this.job, { texts: WORDS, renew, render: () => {} });
    this.job.addEventListener("done", onend);
    this.job.addEventListener("error", onend);
  }

  // `token` opens what is this customer's.
  show(generation, token) {
    const { status, prompt, message, images, quality } = generation;
    this.article.dataset.id = generation.job_id;
    this.article.setAttribute("aria-label", prompt);
    setText(this.part("h3"), prompt);
    const facts = [
      TITLES[generation.job_type], `${images} ${images === 1 ? "image" : "images"}`, `${quality} quality`,
    ];
    if (generation.jobs > 1) facts.push(`${generation.jobs} jobs`);
    facts.push(localDay(generation.completed_at ?? generation.created_at));
    setText(this.part(".facts"), facts.join(" · "));
    const list = this.part(".pictures");
    generation.pictures.forEach((picture, at) => {
      showPicture(list.children[at] ?? list.appendChild(document.createElement("li")), picture, prompt);
    });
    setText(this.part(".credits"), LIVE.has(status) ? reserved(generation.credits) : spent(generation.credits));
    if (status === "generating" && !generation.stopping) this.job.texts = { ...WORDS, running: message };
    // What holds it up: of an order's jobs together the app knows more than their batch says.
    setText(this.part(".note"), generation.note);
    this.follow(generation.job, token);
    this.tell(status, message);
  }

  follow(job, token) {
    if (job === null) {
      this.job.removeAttribute("src");
    } else if (token && !this.job.hasAttribute("src")) {
      this.job.setAttribute("token", token);
      this.job.setAttribute("src", job.src);
    }
  }

  // The server does not know it: nothing more will come.
  lose() {
    this.article.querySelectorAll("li:not([data-state=ready])").forEach((item) => item.remove());
    this.follow(null);
    this.tell("failed", LOST);
  }

  tell(status, message) {
    const isLive = LIVE.has(status);
    this.status = this.article.dataset.status = status;
    setText(this.part(".message"), isLive ? "" : message);
    if (!isLive) setText(this.part(".note"), "");
    // What is hidden cannot have the focus.
    if (!isLive && this.job === document.activeElement) this.article.focus({ preventScroll: true });
    this.job.hidden = !isLive;
  }
}

function reserved({ reserved: number }) {
  return `${credits(number)} reserved`;
}

function spent({ charged, refunded }) {
  const parts = [`${credits(charged)} charged`];
  if (refunded > 0) parts.push(`${credits(refunded)} refunded`);
  return parts.join(" · ");
}

// Made anew only when its state changes: a picture is fetched once, and again only if it did not come.
function showPicture(item, picture, prompt) {
  if (item.dataset.state === picture.state) return;
  item.dataset.state = picture.state;
  if (picture.state === "ready") {
    const link = document.createElement("a");
    link.href = picture.url;
    link.target = "_blank";
    const image = document.createElement("img");
    image.src = picture.url;
    image.width = image.height = 256;
    image.alt = `${prompt} (image ${picture.number})`;
    image.addEventListener("error", () => { item.dataset.state = "missing"; });
    link.append(image);
    item.replaceChildren(link);
    return;
  }
  const words = {
    waiting: [`Image ${picture.number}`],
    drawing: [`Image ${picture.number}`, "is being drawn"],
    failed: [WHY[picture.why] ?? "did not come", "will be refunded"],
    refunded: [WHY[picture.why] ?? "did not come", `${credits(picture.credits)} refunded`],
  }[picture.state];
  item.replaceChildren(...words.map((line, at) => {
    const text = document.createElement(at === words.length - 1 && at > 0 ? "strong" : "span");
    text.textContent = line;
    return text;
  }));
}
