// What if: the state as it is, forward over recorded days of a market; when all is done, what it costs, and with more money.

import { post } from "./api.js";
import { draw } from "./charts.js";
import { facts, fill, h, row, say, table } from "./dom.js";
import { DASH, number, share, span, usd } from "./figures.js";
import { may } from "./state.js";

const COLUMNS = [["Job"], ["Ends in all futures"], ["In 1 of 10 by", "figure"], ["In half by", "figure"], ["In 9 of 10 by", "figure"]];
const later = (value) => (value === null ? "later" : span(value));

/** Lines and bands of one or two branches, as uPlot has them: of each the middle, and between what 8 of 10 lie. */
export function fanOf(branches, what, scale = 1) {
  const data = [branches[0].fan.hours];
  const series = [{ label: "hours" }];
  const bands = [];
  branches.forEach((branch, at) => {
    for (const [name, text] of [["p90", "9 of 10"], ["p10", "1 of 10"], ["p50", "half"]]) {
      data.push(branch.fan[`${what}_${name}`].map((value) => value * scale));
      series.push({ label: `${branch.label}: ${text}`, colour: at, thin: name !== "p50" });
    }
    bands.push({ series: [3 * at + 1, 3 * at + 2], colour: at });
  });
  return { data, series, bands };
}

function branchFacts(branch) {
  const { finish_s: ends, cost_usd: cost } = branch;
  return [h("h3", {}, branch.label[0].toUpperCase() + branch.label.slice(1)), facts([
    ["All done in", `${later(ends.p50)} (${later(ends.p10)} to ${later(ends.p90)})`],
    ["Costs from now on", `${usd(cost.p50)} (${usd(cost.p10)} to ${usd(cost.p90)})`],
    ["All done within the time", share(branch.finished)], ["Nodes taken", number(branch.losses, 1)],
    ["Burn limit", branch.burn_limit_usd_per_h === null ? DASH : `${usd(branch.burn_limit_usd_per_h)}/h`],
    ["Total budget", usd(branch.purse_usd)],
  ]), table(`Jobs, ${branch.label}`, COLUMNS, branch.jobs.map((job) =>
    row([job.job_id, share(job.finished), later(job.finish_s.p10), later(job.finish_s.p50), later(job.finish_s.p90)])))];
}

export function whatIfView(place) {
  const field = (id, label, rest) => h("p", {}, h("label", { for: id }, `${label} `), h("input", { id, type: "number", required: true, ...rest }));
  const told = h("p", { role: "status" });
  const found = h("div", {});
  const ask = h("button", { type: "submit", disabled: !may("user") }, "Look ahead");
  const form = h("form", { class: "terms", onsubmit: (event) => { event.preventDefault(); look(); } },
    field("more-rate", "More, USD an hour", { min: 0, step: 0.5, value: 2 }), field("more-purse", "More in the total budget, USD", { min: 0, step: 1, value: 0 }),
    field("hours", "Hours to look ahead", { min: 1, max: 336, value: 24 }), field("futures", "Futures", { min: 1, max: 100, value: 20 }), h("p", { class: "buttons" }, ask));
  fill(place, h("h2", {}, "What if"), h("p", { class: "hint" }, "All that runs now, with the policy that decides now, over recorded days of a spot market. Nothing is changed by asking."),
    may("user") ? null : h("p", {}, "Your token may look, and ask for no futures: they take a processor for a while."), form, told, found);
  let gone = false;

  async function look() {
    const value = (id) => Number(document.getElementById(id).value);
    ask.disabled = true;
    say(told, "Lives the futures; that takes up to half a minute ...");
    try {
      const answer = await post("/v1/what-if", { hours: value("hours"), futures: value("futures"), more_usd_per_h: value("more-rate"), more_usd: value("more-purse") });
      if (gone) return;
      const branches = [answer.as_is, answer.otherwise].filter(Boolean);
      const cost = h("div", {});
      const done = h("div", {});
      say(told, `${answer.futures} futures of ${answer.hours} h${answer.market ? `, over ${answer.market}` : ""}.`);
      fill(found, cost, done, branches.flatMap(branchFacts), h("ul", {}, answer.notes.map((note) => h("li", {}, note))));
      for (const [where, title, fan] of [[cost, "Dollars from now on: the middle, and what 8 of 10 futures lie between", fanOf(branches, "usd")],
        [done, "Work done, in percent", fanOf(branches, "done", 100)]]) {
        draw(where, title, fan.data, fan.series, { x: "hours from now", bands: fan.bands });
      }
    } catch (error) {
      if (!gone) say(told, error.next ? `${error.message}. Next: ${error.next}` : error.message);
    } finally {
      ask.disabled = !may("user");
    }
  }

  return () => { gone = true; };
}
