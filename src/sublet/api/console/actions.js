// What a user does to jobs and budgets. Each asks once, says what it costs, and is an event with who did it.

import { get, jobPath, post } from "./api.js";
import { fill, h, say } from "./dom.js";
import { rent, usd, workers } from "./figures.js";
import { may, state } from "./state.js";

/** Ask once; `act` is called with the values of the inputs, and what it throws is shown where it was asked.
 *
 * A sentence is a text, or made out of the values as they are typed.
 */
export function ask(title, sentences, inputs, verb, act) {
  const box = document.getElementById("ask");
  const fault = h("p", { class: "fault", role: "alert" });
  let key = crypto.randomUUID(); // a second click, or another try where no answer came, is the same wish
  const yes = h("button", { type: "submit" }, verb);
  const values = () => Object.fromEntries(inputs.map(({ id }) => [id, document.getElementById(id).value]));
  const said = sentences.map((each) => h("p", {}, typeof each === "string" ? each : ""));
  const reckon = () => sentences.forEach((each, at) => { if (typeof each !== "string") say(said[at], each(values())); });
  const form = h("form", {
    oninput: reckon,
    onsubmit: async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await act(values(), key);
        box.close();
      } catch (error) {
        if (error.status) key = crypto.randomUUID(); // it was answered: what is asked next is another one
        fault.textContent = error.next ? `${error.message}. Next: ${error.next}` : error.message;
      } finally {
        yes.disabled = false;
      }
    },
  },
  h("h2", { id: "ask-title" }, title), said,
  inputs.map(({ id, label, ...rest }) => h("p", {}, h("label", { for: id }, `${label} `), h("input", { id, required: true, ...rest }))),
  fault, h("p", { class: "buttons" }, yes, h("button", { type: "button", onclick: () => box.close() }, "Leave it")));
  fill(box, form);
  reckon();
  box.showModal();
}

const button = (text, act) => h("button", { type: "button", onclick: act }, text);

/** What the last plan that gave it something would have had it cost; known of a job that has been weighed. */
async function costAsBefore(job) {
  const { alternatives } = await get(jobPath(job.id, "explain")).catch(() => ({ alternatives: [] }));
  const last = alternatives.find((each) => each.chosen) || alternatives.find((each) => each.left_usd !== null);
  if (last) return `With ${last.shape} it costs ${rent(last.usd_per_h)}, about ${usd(last.left_usd)} to its end.`;
  const { burn_limit_usd_per_h: most } = state.head.budget;
  return `What it costs is known once it is planned for; all together never more than ${most === null ? "the budget" : rent(most)}.`;
}

const widths = (job) => {
  const each = job.workers > 0 ? job.usd_per_h / job.workers : null;
  return each === null ? () => "What a worker costs is known once it has one."
    : ({ high }) => `A worker of it costs ${rent(each)} now: with ${workers(Number(high))}, about ${rent(each * Number(high))}.`;
};

const more = (value) => ({ id: "more", label: "Dollars more", type: "number", min: 0.01, step: 0.01, value });

/** Buttons for what fits the phase of a job; none for whoever may only look. What they say is how it is when they are pressed. */
export function jobActions({ id, phase, purse_usd: purse }) {
  if (!may("user")) return [h("p", { class: "hint" }, "Your token may look, and change nothing.")];
  const live = !["finished", "failed", "cancelled"].includes(phase);
  const resting = ["paused", "out-of-budget", "failed"].includes(phase);
  const made = [];
  const add = (text, act) => made.push(button(text, () => act(state.jobs.get(id))));
  const tell = (verb, body = () => ({})) => (values, key) => post(jobPath(id, verb), body(values), key);
  if (live && phase !== "paused") {
    add("Pause", (job) => ask(`Pause ${id}?`,
      [`It saves, and its ${workers(job.workers)} leave. It costs nothing until it is resumed, instead of ${rent(job.usd_per_h)}; starting again costs a restart.`],
      [], "Pause", tell("pause")));
  }
  if (resting) {
    add("Resume", async (job) => ask(`Resume ${id}?`,
      [`It goes on with up to ${workers(job.max_workers)}. It has cost ${usd(job.usd_total)} so far${job.purse_usd === null ? "" : `, of ${usd(job.purse_usd)} that it may`}.`, await costAsBefore(job)],
      [], "Resume", tell("resume")));
  }
  if (live) {
    add("Scale", (job) => ask(`Other worker counts for ${id}?`, [widths(job)],
      [{ id: "low", label: "At least, workers", type: "number", min: 1, value: job.min_workers }, { id: "high", label: "At most, workers", type: "number", min: 1, value: job.max_workers }],
      "Scale", tell("scale", ({ low, high }) => ({ low: Number(low), high: Number(high) }))));
  }
  if (live && purse !== null) {
    add("Top up", (job) => ask(`More money for ${id}?`,
      [`It may spend ${usd(job.purse_usd)}, and has spent ${usd(job.usd_total)}.`, ({ more: usdMore }) => `Then it may spend ${usd(job.purse_usd + Number(usdMore))}.`],
      [more(1)], "Top up", tell("top-up", ({ more: usdMore }) => ({ usd: Number(usdMore) }))));
  }
  if (live || phase === "failed") {
    add("Cancel", (job) => ask(`Cancel ${id}?`,
      [`It saves, and ends for good. It has cost ${usd(job.usd_total)}; ${rent(job.usd_per_h)} are free from then on. What it saved stays.`],
      [], "Cancel the job", tell("cancel")));
  }
  return [h("p", { class: "buttons" }, made)];
}

/** For the budget of all. */
export function topUp() {
  if (!may("admin") || state.head.budget.purse_usd === null) return null; // without a limit there is nothing to add to
  return button("Top up", () => {
    const { purse_usd: purse, spent_usd: spent } = state.head.budget;
    ask("Put more into the budget?",
      [`${usd(purse)} may be spent in all. Spent are ${usd(spent)}. What was stopped at its limit goes on.`, ({ more: usdMore }) => `Then it is ${usd(purse + Number(usdMore))}.`],
      [more(5)], "Top up", ({ more: usdMore }, key) => post("/v1/budget/top-up", { usd: Number(usdMore) }, key));
  });
}
