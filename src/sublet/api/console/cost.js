// Cost: by purpose, by job, by day; as CSV.

import { topUp } from "./actions.js";
import { get } from "./api.js";
import { facts, fill, h, row, table } from "./dom.js";
import { usd } from "./figures.js";
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

export function costView(place) {
  fill(place, h("h2", {}, "Cost"), h("p", {}, "Asks ..."));
  Promise.all([get("/v1/cost"), get("/v1/events", { limit: 10000, newest: true })]).then(([cost, { events }]) => {
    const save = h("button", { type: "button", onclick: () => {
      const link = h("a", { href: URL.createObjectURL(new Blob([csv(cost.jobs)], { type: "text/csv" })), download: "sublet-cost.csv" });
      link.click();
      URL.revokeObjectURL(link.href);
    } }, "Save as CSV");
    const days = byDay(events);
    fill(place, h("h2", {}, "Cost"), facts([["In all", usd(cost.usd_total)], ...PURPOSES.map(([name, text]) => [text, usd(cost[`usd_${name}`])]),
      ["Besides nodes", usd(cost.usd_besides)]]), h("p", { class: "buttons" }, save, topUp(state.head.budget)),
    h("h3", {}, "By job"), table("By job", COLUMNS, cost.jobs.map((job) => row(cells(job)))),
    h("h3", {}, "By day"), table("By day", [["Day (UTC)"], ["Spent", "figure"]], days.map(([day, spent]) => row([day, usd(spent)]))));
  }).catch((error) => fill(place, h("h2", {}, "Cost"), h("p", { class: "fault" }, error.message)));
  return () => {};
}
