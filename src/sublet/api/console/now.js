// Now: what is spent, what is rented, what trains.

import { facts, fill, h, row, say, spark, table } from "./dom.js";
import { DASH, interval, number, perDollar, rent, share, span, usd } from "./figures.js";
import { state, watch } from "./state.js";

const SHOWN = 100;
const SPARKED = 60;
const ENDED = new Set(["finished", "failed", "cancelled"]);
const COLUMNS = [["Job"], ["Phase"], ["Progress"], ["Loss", "figure"], ["Workers", "figure"], ["Batch", "figure"], ["Grid"],
  ["Rent", "figure"], ["Spent", "figure"], ["Useful", "figure"], ["For a dollar", "figure"], ["Time left", "spread"], ["Forecast", "spread"], ["Why"]];
const NODE_COLUMNS = [["Pool"], ["Market"], ["Phase"], ["Nodes", "figure"], ["Workers fit", "figure"], ["Rent", "figure"], ["Youngest"], ["Oldest"], ["Taken, a node and hour", "figure"]];

function moneyFacts() {
  const budget = state.head.budget;
  const { forecast } = state.head;
  const not = forecast.not_foreseen ? `; ${forecast.not_foreseen} more not foreseen` : "";
  return [
    ["Burn", `${rent(budget.burn_usd_per_h)}${budget.burn_limit_usd_per_h === null ? "" : ` of ${rent(budget.burn_limit_usd_per_h)}`}`, "burn"],
    ["Spent", usd(budget.spent_usd), "spent"],
    ["Reserved", usd(budget.reserved_usd), "reserved"],
    ["Left", budget.left_usd === null ? "no limit" : usd(budget.left_usd), "left"],
    ["All that runs ends in", `${interval(forecast.end_s, span)}${not}`, "ends"],
    ["It costs from now on", interval(forecast.usd, usd), "to-come"],
  ];
}

/** The last loss, and its curve since the page was opened. */
function lossCell(job) {
  const curve = (state.losses.get(job.id) || []).slice(-SPARKED).map(([, loss]) => loss);
  return h("span", {}, number(job.loss, 4), curve.length > 2 ? [" ", spark(curve)] : null);
}

function jobCells(job) {
  const bar = h("progress", { max: 1, value: job.progress ?? 0, "aria-label": `Progress of ${job.name}` });
  return [
    h("a", { href: `#job/${encodeURIComponent(job.id)}` }, job.id), job.phase,
    job.progress === null ? DASH : h("span", {}, bar, ` ${share(job.progress)}`),
    lossCell(job), `${job.workers} of ${job.min_workers}-${job.max_workers}`, number(job.global_batch), job.grid || DASH,
    rent(job.usd_per_h), usd(job.usd_total), job.usd_unknown > 0 ? "not known" : job.usd_total > 0 ? share(job.usd_useful / job.usd_total) : DASH, perDollar(job),
    interval(job.eta_s, span), interval(job.forecast_usd, usd), job.reason,
  ];
}

function chosen(filter) {
  const wanted = filter.trim().toLowerCase();
  const found = [...state.jobs.values()].filter(
    (job) => !wanted || `${job.id} ${job.phase}`.toLowerCase().includes(wanted));
  const alive = found.filter((job) => !ENDED.has(job.phase));
  return [...alive, ...found.filter((job) => ENDED.has(job.phase)).reverse()];
}

/** Nodes that are alike, together: two thousand lines are none that anybody reads. */
function nodeRows() {
  const groups = new Map();
  for (const node of state.nodes.values()) {
    const key = `${node.offer_id} ${node.phase}`;
    if (!groups.has(key)) groups.set(key, { ...node, count: 0, fit: 0, oldest: node.since_s, youngest: node.since_s, rent: 0, until: null });
    const group = groups.get(key);
    group.count += 1;
    group.fit += node.slots;
    group.rent += node.phase === "gone" ? 0 : node.usd_per_h;
    group.oldest = Math.min(group.oldest, node.since_s);
    group.youngest = Math.max(group.youngest, node.since_s);
    if (node.phase === "noticed" && node.until_s !== null) group.until = Math.min(group.until ?? Infinity, node.until_s);
  }
  return [...groups.values()].sort((a, b) => a.offer_id.localeCompare(b.offer_id) || a.phase.localeCompare(b.phase)).map((group) =>
    row([group.offer_id, group.market,
      group.until === null ? group.phase : `${group.phase}, first taken in ${span(Math.max(0, group.until - state.head.now_s))}`,
      number(group.count), number(group.fit), rent(group.rent), span(state.head.now_s - group.youngest), span(state.head.now_s - group.oldest),
      group.hazard_per_h ? share(group.hazard_per_h) : DASH],
    { class: group.phase === "noticed" ? "warns" : "" }));
}

export function nowView(place) {
  const money = h("div", {});
  const nodes = h("div", {});
  const filter = h("input", { type: "search", id: "job-filter", placeholder: "name or phase", oninput: () => drawJobs() });
  const jobs = h("div", {});
  const count = h("p", { class: "hint" });
  fill(place, h("h2", {}, "Now"), money,
    h("h3", {}, "Jobs"), h("p", {}, h("label", { for: "job-filter" }, "Show only "), filter, " ",
      h("a", { href: "#submit" }, "Submit a job")), count, jobs,
    h("h3", {}, "Nodes"), nodes);
  const rows = new Map();
  const listed = new Map(); // all jobs, shown or not: what comes or moves on is sorted in anew

  function drawJobs() {
    const found = chosen(filter.value);
    rows.clear();
    listed.clear();
    for (const job of state.jobs.values()) listed.set(job.id, job.phase);
    const shown = found.slice(0, SHOWN).map((job) => {
      const made = row(jobCells(job), { "data-job": job.id, class: `phase-${job.phase}` });
      rows.set(job.id, { made });
      return made;
    });
    say(count, found.length > SHOWN ? `${SHOWN} of ${found.length} jobs; name more of one to see it` : `${found.length} jobs`);
    fill(jobs, table("Jobs", COLUMNS, shown));
  }

  function drawNodes() {
    fill(nodes, state.nodes.size ? table("Nodes", NODE_COLUMNS, nodeRows()) : h("p", {}, "No node is rented."));
  }

  function drawMoney(anew) {
    if (anew) fill(money, facts(moneyFacts()));
    else for (const [, value, id] of moneyFacts()) say(document.getElementById(id), value);
  }

  function look(change) {
    drawMoney(change.all);
    if (change.all || change.gone.length || change.jobs.some((job) => listed.get(job.id) !== job.phase)) drawJobs();
    else {
      for (const job of change.jobs.filter(({ id }) => rows.has(id))) {
        const known = rows.get(job.id);
        jobCells(job).forEach((cell, at) => {
          const old = known.made.children[at];
          if (at && old.textContent !== (cell.textContent ?? cell)) fill(old, cell);
        });
      }
    }
    if (change.all || change.nodes.length || Math.floor(state.head.now_s) % 5 === 0) drawNodes();
  }

  look({ all: true, jobs: [], gone: [], nodes: [] });
  return watch(look);
}
