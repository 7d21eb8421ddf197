// The list of packages: moments on the reader's clock, and links to what this browser has submitted.

import { line, STATES } from "./elements.js";
import { mine } from "./mine.js";
import { time } from "./times.js";

for (const at of document.querySelectorAll("time")) at.textContent = time(at.dateTime);

const here = document.getElementById("mine");
for (const { id, name } of mine()) {
  const answer = await fetch(`/api/v1/submissions/${id}`, { cache: "no-store" }).catch(() => null);
  if (!answer?.ok) continue; // of a scanner that was begun anew, perhaps
  const { state, createdAt } = await answer.json();
  const cells = [{ text: name, href: `/submit/${id}` }, { text: STATES[state], state }, { text: time(createdAt) }];
  here.querySelector("tbody").append(line(cells));
  here.hidden = false;
}
