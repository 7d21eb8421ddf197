// Selects jobs for bulk actions. While some are selected, newer jobs are not shown: they would push
// the selected ones off the page.

const boxes = () => [...document.querySelectorAll('#job-rows input[name="job"]')];
const selected = () => boxes().filter((box) => box.checked);

function show() {
  const all = document.getElementById("tick-all");
  const buttons = document.querySelectorAll("#bulk-buttons button");
  const count = selected().length;
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
  if (elt.id === "main" && selected().length > 0) parameters.from = boxes()[0].value;
  // The address, which people share, has only the filters that are set.
  if (elt.id === "filters") {
    for (const name of Object.keys(parameters)) {
      if (parameters[name] === "") delete parameters[name];
    }
  }
});

document.addEventListener("htmx:afterSettle", show);
show();
