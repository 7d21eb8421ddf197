// One order: its sentence, a place for each picture, what it cost, and a button to stop it.

import { rest, rests, say } from "./elements.js";
import { credits, localDay } from "./words.js";

const TITLES = {
  tryon: "Try-on", product: "Product", freestyle: "Freestyle", workflow: "Workflow", video: "Video",
};
const WHY = { refused: "refused by the model", broken: "did not come", cancelled: "cancelled", failed: "did not come" };
const LIVE = new Set(["queued", "generating"]);
const STOPPING = "Stopping; what has come stays yours.";
const LOST = "This order is not there any more.";

export class Card {
  // `cancel` comes to a sentence where it failed, or "".
  constructor(template, cancel) {
    this.article = template.content.cloneNode(true).querySelector("article");
    this.status = null;
    this.asked = 0; // the number of the question whose answer is shown
    this.message = this.wait = this.wrong = "";
    this.stopping = false;
    this.part = (name) => this.article.querySelector(name);
    this.part(".cancel").addEventListener("click", () => this.stop(cancel));
  }

  async stop(cancel) {
    if (rests(this.part(".cancel"))) return;
    this.stopping = true;
    this.wrong = "";
    this.tell();
    this.wrong = await cancel();
    this.stopping = !this.wrong;
    this.tell();
  }

  // `wait` is a sentence, or "".
  show(generation, wait) {
    const { status, prompt, message, images, quality } = generation;
    Object.assign(this, { status, message, wait });
    this.article.dataset.id = generation.job_id;
    this.article.setAttribute("aria-label", prompt);
    say(this.part("h3"), prompt);
    const facts = [
      TITLES[generation.job_type], `${images} ${images === 1 ? "image" : "images"}`, `${quality} quality`,
    ];
    if (generation.jobs > 1) facts.push(`${generation.jobs} jobs`);
    facts.push(localDay(generation.completed_at ?? generation.created_at));
    say(this.part(".facts"), facts.join(" · "));
    const list = this.part(".pictures");
    generation.pictures.forEach((picture, at) => {
      showPicture(list.children[at] ?? list.appendChild(document.createElement("li")), picture, prompt);
    });
    say(this.part(".credits"), LIVE.has(status) ? reserved(generation.credits) : spent(generation.credits));
    this.tell();
  }

  // The server does not know it: nothing more will come.
  lose() {
    Object.assign(this, { status: "failed", message: LOST });
    this.article.querySelectorAll("li:not([data-state=ready])").forEach((item) => item.remove());
    this.tell();
  }

  tell() {
    const live = LIVE.has(this.status);
    const button = this.part(".cancel");
    this.article.dataset.status = this.status;
    const lines = live ? [this.stopping ? STOPPING : this.message, this.wrong] : [this.message];
    say(this.part(".message"), lines.filter(Boolean).join(" "));
    // Not in the sentence that is read out: it changes all the time.
    say(this.part(".wait"), live && !this.stopping ? this.wait : "");
    rest(button, this.stopping);
    if (!live && button === document.activeElement) this.article.focus({ preventScroll: true });
    button.hidden = !live;
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
