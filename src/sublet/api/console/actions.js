// What a user does to jobs and budgets. Each asks once, says what it costs, and is an event with who did it.

import { jobPath, post } from "./api.js";
import { fill, h } from "./dom.js";
import { rent, usd, workers } from "./figures.js";
import { may } from "./state.js";

/** Ask once; `act` is called with the values of the inputs, and what it throws is shown where it was asked. */
export function ask(title, sentences, inputs, verb, act) {
  const box = document.getElementById("ask");
  const fault = h("p", { class: "fault", role: "alert" });
  const key = crypto.randomUUID(); // a second click is the same wish
  const yes = h("button", { type: "submit" }, verb);
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await act(Object.fromEntries(inputs.map(({ id }) => [id, document.getElementById(id).value])), key);
        box.close();
      } catch (error) {
        fault.textContent = error.next ? `${error.message}. Next: ${error.next}` : error.message;
      } finally {
        yes.disabled = false;
      }
    },
  },
  h("h2", { id: "ask-title" }, title), sentences.map((text) => h("p", {}, text)),
  inputs.map(({ id, label, ...rest }) => h("p", {}, h("label", { for: id }, `${label} `), h("input", { id, required: true, ...rest }))),
  fault, h("p", { class: "buttons" }, yes, h("button", { type: "button", onclick: () => box.close() }, "Leave it")));
  fill(box, form);
  box.showModal();
}

const button = (text, act) => h("button", { type: "button", onclick: act }, text);

/** Buttons for what fits the phase of a job; none for whoever may only look. */
export function jobActions(job) {
  if (!may("user")) return [h("p", { class: "hint" }, "Your token may look, and change nothing.")];
  const each = job.workers > 0 ? job.usd_per_h / job.workers : null;
  const live = !["finished", "failed", "cancelled"].includes(job.phase);
  const resting = ["paused", "out-of-budget", "failed"].includes(job.phase);
  const made = [];
  if (live && job.phase !== "paused") {
    made.push(button("Pause", () => ask(`Pause ${job.id}?`,
      [`It saves, and its ${workers(job.workers)} leave. It costs nothing until it is resumed, instead of ${rent(job.usd_per_h)}; starting again costs a restart.`],
      [], "Pause", (_, key) => post(jobPath(job.id, "pause"), {}, key))));
  }
  if (resting) {
    made.push(button("Resume", () => ask(`Resume ${job.id}?`,
      [`It goes on with up to ${workers(job.max_workers)}. It has cost ${usd(job.usd_total)} so far${job.purse_usd === null ? "" : `, of ${usd(job.purse_usd)} that it may`}; what it rents is told on Now.`],
      [], "Resume", (_, key) => post(jobPath(job.id, "resume"), {}, key))));
  }
  if (live) {
    made.push(button("Scale", () => ask(`Other widths for ${job.id}?`,
      [each === null ? "What a worker costs is known once it has one." : `A worker of it costs ${rent(each)} now: at ${job.max_workers}, at most about ${rent(each * job.max_workers)}.`],
      [{ id: "low", label: "At least, workers", type: "number", min: 1, value: job.min_workers }, { id: "high", label: "At most, workers", type: "number", min: 1, value: job.max_workers }],
      "Scale", ({ low, high }, key) => post(jobPath(job.id, "scale"), { low: Number(low), high: Number(high) }, key))));
  }
  if (live && job.purse_usd !== null) {
    made.push(button("Top up", () => ask(`More money for ${job.id}?`,
      [`It may spend ${usd(job.purse_usd)}, and has spent ${usd(job.usd_total)}.`],
      [{ id: "more", label: "Dollars more", type: "number", min: 0.01, step: 0.01, value: 1 }],
      "Top up", ({ more }, key) => post(jobPath(job.id, "top-up"), { usd: Number(more) }, key))));
  }
  if (live || job.phase === "failed") {
    made.push(button("Cancel", () => ask(`Cancel ${job.id}?`,
      [`It saves, and ends for good. It has cost ${usd(job.usd_total)}; ${rent(job.usd_per_h)} are free from then on. What it saved stays.`],
      [], "Cancel the job", (_, key) => post(jobPath(job.id, "cancel"), {}, key))));
  }
  return [h("p", { class: "buttons" }, made)];
}

/** For the purse of all. */
export function topUp(budget) {
  if (!may("admin") || budget.purse_usd === null) return null; // without a limit there is nothing to add to
  return button("Top up", () => ask("Put more into the purse?",
    [`${usd(budget.purse_usd)} may be spent in all. Spent are ${usd(budget.spent_usd)}. What was stopped at its limit goes on.`],
    [{ id: "more", label: "Dollars more", type: "number", min: 0.01, step: 0.01, value: 5 }],
    "Top up", ({ more }, key) => post("/v1/budget/top-up", { usd: Number(more) }, key)));
}
