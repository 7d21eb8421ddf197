// One order: its sentence, a place for each picture, what it cost, and a button to stop it.

import { credits, localDay } from "./words.js";

const TITLES = {
  tryon: "Try-on", product: "Product", freestyle: "Freestyle", workflow: "Workflow", video: "Video",
};
const WHY = { refused: "refused by the model", broken: "did not come", cancelled: "cancelled", failed: "did not come" };
const LIVE = new Set(["queued", "generating"]);

export class Card {
  constructor(template, cancel) {
    this.article = template.content.cloneNode(true).querySelector("article");
    this.status = null;
    this.part = (name) => this.article.querySelector(name);
    this.part(".cancel").addEventListener("click", () => {
      this.part(".cancel").disabled = true;
      cancel();
    });
  }

  // `wait` is a sentence, or "".
  show(generation, wait) {
    const { status, prompt, message, images, quality } = generation;
    this.status = status;
    this.article.dataset.status = status;
    this.article.dataset.id = generation.job_id;
    say(this.part("h3"), prompt);
    const facts = [
      TITLES[generation.job_type], `${images} ${images === 1 ? "image" : "images"}`, `${quality} quality`,
    ];
    if (generation.jobs > 1) facts.push(`${generation.jobs} jobs`);
    facts.push(localDay(generation.completed_at ?? generation.created_at));
    say(this.part(".facts"), facts.join(" · "));
    say(this.part(".message"), [message, wait].filter(Boolean).join(" "));
    const list = this.part(".pictures");
    generation.pictures.forEach((picture, at) => {
      showPicture(list.children[at] ?? list.appendChild(document.createElement("li")), picture, prompt);
    });
    say(this.part(".credits"), LIVE.has(status) ? reserved(generation.credits) : spent(generation.credits));
    this.part(".cancel").hidden = !LIVE.has(status);
  }
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function reserved({ reserved: number }) {
  return `${credits(number)} reserved`;
}

function spent({ charged, refunded }) {
  const parts = [`${credits(charged)} charged`];
  if (refunded > 0) parts.push(`${credits(refunded)} refunded`);
  return parts.join(" · ");
}

// Made anew only when its state changes: a picture is fetched once.
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
