// Submit: paste a job file; it is checked as you type, tried, and brought once you have seen what it would cost.

import { ask } from "./actions.js";
import { post } from "./api.js";
import { facts, fill, h, say } from "./dom.js";
import { DASH, interval, rent, span, usd } from "./figures.js";
import { may } from "./state.js";

const CALM_MS = 400;
const EXAMPLE = "name: my-job\nworkdir: /path/of/my/code\nrun: python train.py\nelastic: {workers: 1..2}\n";

/** What a job that has to wait would take once it need not. */
const then = (expected) => (expected ? `${expected.shape}, ${rent(expected.usd_per_h)}${expected.usd === null ? " for as long as it takes" : `, about ${usd(expected.usd)}`}` : "what it costs is not known");

export function submitView(place) {
  const text = h("textarea", { id: "job-text", rows: 14, spellcheck: "false", "aria-describedby": "job-check", value: EXAMPLE, oninput: () => soon() });
  const check = h("p", { id: "job-check", role: "status" });
  const found = h("div", {});
  const bring = h("button", { type: "button", disabled: true, onclick: () => submit() }, "Submit");
  fill(place, h("h2", {}, "Submit a job"), may("user") ? null : h("p", {}, "Your token may look, and change nothing."),
    h("p", {}, h("label", { for: "job-text" }, "Job file (YAML; sublet schema says what may be there; workdir is on the machine of the controller)")), text, check, h("p", { class: "buttons" }, bring), found);
  let waits = 0;
  let job = null;
  let tried = null;

  function soon() {
    job = null;
    bring.disabled = true;
    clearTimeout(waits);
    waits = setTimeout(look, CALM_MS);
  }

  async function look() {
    const asked = text.value;
    try {
      const told = await post("/v1/job-files/check", { text: asked });
      tried = await post("/v1/dry-run", { job: told.job });
      if (asked !== text.value) return;
      job = told.job;
      say(check, `${told.name} is right.${told.notes.length ? ` ${told.notes.join("; ")}` : ""}`);
      fill(found, facts([["Would get", tried.shape || "nothing now: it would wait"], ...(tried.shape ? [["Rent", rent(tried.usd_per_h)]] : [["Then", then(tried.expected)]]), ["Starts in", span(tried.starts_s)],
        ["Ends in", interval(tried.finish_s, span)], ["Costs", interval(tried.cost_usd, usd)], ["On demand", usd(tried.usd_on_demand)], ["Why", tried.reason],
        ["Assumed", tried.notes.join("; ") || DASH]]));
      bring.disabled = !may("user");
    } catch (error) {
      if (asked !== text.value) return;
      say(check, error.message);
      fill(found);
    }
  }

  function submit() {
    const cost = tried.cost_usd ? `about ${interval(tried.cost_usd, usd)}` : `${rent(tried.usd_per_h)} for as long as it takes`;
    const told = tried.shape ? `It would get ${tried.shape}, and cost ${cost}.` : `It would get nothing now, and wait. Then: ${then(tried.expected)}.`;
    ask("Submit this job?", [told], [], "Submit it", async (_, key) => {
      const told = await post("/v1/jobs", { job }, key);
      location.hash = `#job/${encodeURIComponent(told.job_id)}`;
    });
  }

  look();
  return () => clearTimeout(waits);
}
