/* Watch Penstock jobs from a web page. No dependency; works from another origin, too.

   import { watch } from "https://queue.example/static/penstock.js";
   const { stop, cancel } = watch("/v1/jobs/ID", { token, onchange: (job) => … });

   <script type="module" src="https://queue.example/static/penstock.js"></script>
   <penstock-job src="/v1/jobs/ID" token="…"></penstock-job>

   Import this file only; the files in penstock/ may change. */

import { PenstockJob } from "./penstock/element/element.js";
import { WatchError } from "./penstock/connection/request.js";
import { watch } from "./penstock/connection/watch.js";

// A page may load this file from two addresses; the first one defines the element.
if (!customElements.get("penstock-job")) {
  customElements.define("penstock-job", PenstockJob);
}

export { PenstockJob, WatchError, watch };
