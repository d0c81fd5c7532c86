// Cost: by purpose, by team and user, by job, by day; as CSV.

import { topUp } from "./actions.js";
import { get } from "./api.js";
import { facts, fill, h, row, table } from "./dom.js";
import { DASH, usd } from "./figures.js";
import { state } from "./state.js";

const PURPOSES = [["useful", "Useful"], ["unknown", "Not known yet"], ["redone", "Redone"], ["restart", "Restarts"], ["idle", "Idle"], ["checkpoint", "Checkpoints"]];
const COLUMNS = [["Job"], ...PURPOSES.map(([, text]) => [text, "figure"]), ["In all", "figure"], ["On demand", "figure"]];

const cells = (job) => [job.job_id || job.name, ...PURPOSES.map(([name]) => usd(job[`usd_${name}`])), usd(job.usd_total), usd(job.usd_on_demand)];

/** A cell that begins like a formula is none, wherever the file is opened. */
function csvCell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

export function csv(jobs) {
  const names = ["job_id", "name", ...PURPOSES.map(([name]) => `usd_${name}`), "usd_total", "usd_on_demand", "steps_lost"];
  return [names, ...jobs.map((job) => names.map((name) => job[name]))].map((each) => each.map(csvCell).join(",")).join("\r\n");
}

/** What was spent on each day: the last sum of a day, less that of the day before. */
export function byDay(events) {
  const last = new Map();
  for (const event of events) if (event.at) last.set(event.at.slice(0, 10), event.usd_total);
  let before = null;
  return [...last].map(([day, sum]) => {
    const spent = sum - (before ?? 0);
    before = sum;
    return [day, spent];
  });
}

/** The tree of purses; nothing where only all together have one. */
function budgets(purses) {
  if (purses.length < 2 && !purses[0]?.period) return [];
  const columns = [["Who"], ["May spend", "figure"], ["Spent", "figure"], ["Reserved", "figure"], ["Left", "figure"], ["Until"]];
  const rows = purses.map((each) => row([
    "\u2003".repeat(each.depth) + `${each.level} ${each.name}`.trim(), usd(each.limit_usd) + (each.period ? ` a ${each.period}` : "") + (each.by_file ? " by its file" : ""), usd(each.spent_usd),
    usd(each.reserved_usd), usd(each.left_usd) + (each.exhausted ? ", spent" : ""), each.ends ?? DASH,
  ]));
  return [h("h3", {}, "Budgets"), table("Budgets", columns, rows)];
}

export function costView(place) {
  fill(place, h("h2", {}, "Cost"), h("p", {}, "Asks ..."));
  Promise.all([get("/v1/cost"), get("/v1/events", { limit: 10000, newest: true }), get("/v1/budgets")]).then(([cost, { events }, { purses }]) => {
    const save = h("button", { type: "button", onclick: () => {
      const link = h("a", { href: URL.createObjectURL(new Blob([csv(cost.jobs)], { type: "text/csv" })), download: "sublet-cost.csv" });
      link.click();
      URL.revokeObjectURL(link.href);
    } }, "Save as CSV");
    const days = byDay(events);
    fill(place, h("h2", {}, "Cost"), facts([["In all", usd(cost.usd_total)], ...PURPOSES.map(([name, text]) => [text, usd(cost[`usd_${name}`])]),
      ["Besides nodes", usd(cost.usd_besides)]]), h("p", { class: "buttons" }, save, topUp(state.head.budget)),
    budgets(purses), h("h3", {}, "By job"), table("By job", COLUMNS, cost.jobs.map((job) => row(cells(job)))),
    h("h3", {}, "By day"), table("By day", [["Day (UTC)"], ["Spent", "figure"]], days.map(([day, spent]) => row([day, usd(spent)]))));
  }).catch((error) => fill(place, h("h2", {}, "Cost"), h("p", { class: "fault" }, error.message)));
  return () => {};
}
