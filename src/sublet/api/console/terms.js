// Other terms for the plan: drag the value of time or the limit of the rent, see the plan; nothing is changed until Apply.

import { ask } from "./actions.js";
import { post } from "./api.js";
import { fill, h, row, say, table } from "./dom.js";
import { rent, span, usd } from "./figures.js";
import { may, state } from "./state.js";

const CALM_MS = 250;
const COLUMNS = [["Job"], ["Now"], ["Then"], ["Rent now", "figure"], ["Rent then", "figure"], ["Time left now", "figure"], ["Time left then", "figure"]];

/** Two sliders; `shown(options)` is called with what the tried plan weighed for the job, `applied()` once terms hold. */
export function termsOf(job, explained, shown, applied) {
  if (!may("user") || ["finished", "failed", "cancelled"].includes(job.phase)) return null;
  const budget = state.head.budget;
  const hour = explained.value_of_time_usd_per_h || 1;
  const limit = budget.burn_limit_usd_per_h ?? Math.max(1, 2 * budget.burn_usd_per_h);
  const found = h("div", {});
  const told = h("p", { role: "status" });
  const apply = h("button", { type: "button", disabled: true, onclick: () => take() }, "Apply ...");
  let waits = 0;
  let terms = null;

  const slider = (id, label, facts, read, show) => {
    const output = h("output", { for: id });
    const input = h("input", { id, type: "range", ...facts, oninput: () => { say(output, show(read(input.value))); soon(read(input.value)); } });
    say(output, show(read(input.value)));
    return h("p", {}, h("label", { for: id }, `${label} `), input, " ", output);
  };

  function soon(wanted) {
    terms = wanted;
    apply.disabled = true;
    clearTimeout(waits);
    waits = setTimeout(look, CALM_MS);
  }

  async function look() {
    const asked = terms;
    try {
      const plan = await post("/v1/plans/dry-run", { job: job.id, ...asked });
      if (asked !== terms) return;
      say(told, plan.jobs.length ? `${plan.jobs.length} jobs would change: ${rent(plan.usd_per_h)} now, ${rent(plan.usd_per_h_then)} then.` : `Nothing would change: ${rent(plan.usd_per_h)}.`);
      fill(found, plan.jobs.length ? table("What would change", COLUMNS, plan.jobs.map((each) => row([each.job_id, each.shape || "waits", each.shape_then || "waits",
        rent(each.usd_per_h), rent(each.usd_per_h_then), span(each.left_s), span(each.left_s_then)]))) : null);
      shown(plan.alternatives);
      apply.disabled = !may("admin");
    } catch (error) {
      if (asked !== terms) return;
      say(told, error.message);
      fill(found);
    }
  }

  function take() {
    const chosen = terms;
    const [path, body, words] = "hour_usd" in chosen
      ? ["/v1/value-of-time", { usd_per_h: chosen.hour_usd }, `An hour of every job is worth ${usd(chosen.hour_usd)} from the next plan on.`]
      : ["/v1/budget", chosen, `What is rented never costs more than ${rent(chosen.burn_limit_usd_per_h)} from now on.`];
    ask("Apply these terms?", [words, told.textContent, "They hold for all jobs."], [], "Apply", async (_, key) => {
      await post(path, body, key);
      apply.disabled = true;
      applied();
    });
  }

  return h("fieldset", {}, h("legend", {}, "Try other terms"),
    slider("hour", "An hour of a job is worth", { min: -2, max: 2, step: 0.05, value: 0 }, (at) => ({ hour_usd: Number((hour * 10 ** at).toPrecision(3)) }), ({ hour_usd: value }) => usd(value)),
    slider("limit", "Never rent for more than", { min: 0.1, max: 4, step: 0.05, value: 1 }, (at) => ({ burn_limit_usd_per_h: Number((limit * at).toPrecision(3)) }), ({ burn_limit_usd_per_h: value }) => rent(value)),
    told, found, h("p", { class: "buttons" }, apply));
}
