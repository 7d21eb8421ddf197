// Ticking many jobs. While some are ticked, the page stays at the rows it shows: newer jobs would
// push them down, and off the page with their ticks.

const boxes = () => [...document.querySelectorAll('#job-rows input[name="job"]')];
const ticked = () => boxes().filter((box) => box.checked);

function show() {
  const all = document.getElementById("tick-all");
  const buttons = document.querySelectorAll("#bulk-buttons button");
  const count = ticked().length;
  for (const button of buttons) button.disabled = count === 0;
  if (!all) return;
  all.hidden = false;
  all.checked = count > 0 && count === boxes().length;
  all.indeterminate = count > 0 && !all.checked;
}

document.addEventListener("change", (event) => {
  if (event.target.id === "tick-all") {
    for (const box of boxes()) box.checked = event.target.checked;
  }
  show();
});

document.addEventListener("htmx:configRequest", ({ detail: { elt, parameters } }) => {
  if (elt.id === "main" && ticked().length > 0) parameters.from = boxes()[0].value;
  // An address that people share says only what is asked for.
  if (elt.id === "filters") {
    for (const name of Object.keys(parameters)) {
      if (parameters[name] === "") delete parameters[name];
    }
  }
});

document.addEventListener("htmx:afterSettle", show);
show();
