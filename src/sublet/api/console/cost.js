// Cost: by purpose, by team and user, by job, by day; as CSV.

import { topUp } from "./actions.js";
import { get } from "./api.js";
import { facts, fill, h, row, table } from "./dom.js";
import { DASH, span, usd } from "./figures.js";
import { state, watch } from "./state.js";

const ANEW_MS = 10000; // the bill of all jobs is work for the controller: no more often than this

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

/** The bills of jobs, and of what no job used: together they are all. */
export function bills(cost) {
  const parts = [...PURPOSES.map(([name]) => `usd_${name}`), "usd_total"];
  const rest = Object.fromEntries(parts.map((part) => [part, cost[part] - cost.jobs.reduce((sum, job) => sum + job[part], 0)]));
  return [...cost.jobs, { job_id: "", name: "no job", usd_on_demand: null, steps_lost: null, ...rest }];
}

/** The tree of budgets; nothing where only all together have one. */
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
  const money = h("div", {});
  const rest = h("div", {});
  fill(place, h("h2", {}, "Cost"), money, rest);
  fill(rest, h("p", {}, "Asks ..."));
  let asked = Date.now();

  async function look() {
    const [cost, { purses }] = await Promise.all([get("/v1/cost"), get("/v1/budgets")]);
    const save = h("button", { type: "button", onclick: () => {
      const link = h("a", { href: URL.createObjectURL(new Blob([csv(bills(cost))], { type: "text/csv" })), download: "sublet-cost.csv" });
      link.click();
      URL.revokeObjectURL(link.href);
    } }, "Save as CSV");
    fill(money, facts([["In all", usd(cost.usd_total)], ...PURPOSES.map(([name, text]) => [text, usd(cost[`usd_${name}`])]),
      ["Besides nodes", usd(cost.usd_besides)]]), h("p", { class: "hint" }, `As of ${span(state.head.now_s)} after the start; it is asked for anew every ten seconds.`));
    fill(rest, h("p", { class: "buttons" }, save, topUp()), budgets(purses),
      h("h3", {}, "By job"), table("By job", COLUMNS, [...bills(cost), { ...cost, name: "all" }].map((job) => row(cells(job)))),
      h("h3", {}, "By day"), table("By day", [["Day (UTC)"], ["Spent", "figure"]], cost.days.map(({ day, usd: spent }) => row([day || "earlier", usd(spent)]))));
  }

  const failed = (error) => fill(rest, h("p", { class: "fault" }, error.message));
  look().catch(failed);
  return watch((change) => {
    if ((change.all || Date.now() - asked > ANEW_MS) && !document.hidden) {
      asked = Date.now();
      look().catch(failed);
    }
  });
}
