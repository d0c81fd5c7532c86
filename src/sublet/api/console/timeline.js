// Timeline: GPUs over time by job, with notices, losses and resizes; burn, nodes and prices beneath. From the events, and /v1/prices.

import { get } from "./api.js";
import { draw } from "./charts.js";
import { fill, h, table } from "./dom.js";
import { eventColumns, eventRow } from "./events.js";
import { state } from "./state.js";

const MOST_JOBS = 12;
const MARKED = /NodeNoticed|NodeLost|JobResized|PriceChanged/;

/** Hours, and for each job the sum of its workers and of those below it, so that areas lie on one another. */
export function stacked(events) {
  const most = new Map();
  for (const event of events) if (event.job_id && event.workers !== null) most.set(event.job_id, Math.max(most.get(event.job_id) ?? 0, event.workers));
  const jobs = [...most].filter(([, workers]) => workers > 0).sort((a, b) => b[1] - a[1]).slice(0, MOST_JOBS).map(([job]) => job);
  const hours = [];
  const held = new Map(jobs.map((job) => [job, 0]));
  const lines = jobs.map(() => []);
  for (const event of events) {
    if (!held.has(event.job_id) || event.workers === null) continue;
    held.set(event.job_id, event.workers);
    hours.push(event.at_s / 3600);
    let sum = 0;
    jobs.forEach((job, at) => { sum += held.get(job); lines[at].push(sum); });
  }
  return { jobs, hours, lines };
}

/** Hours at which any price changed, and for each offer its price from then on. */
export function priceLines(prices, nowS) {
  const hours = [...new Set([...prices.flatMap(({ changes }) => changes.map(([at]) => at)), nowS])].sort((a, b) => a - b);
  const lines = prices.map(({ changes }) => hours.map((hour) => changes.findLast(([at]) => at <= hour)?.[1] ?? null));
  return { hours: hours.map((at) => at / 3600), lines };
}

export function timelineView(place) {
  fill(place, h("h2", {}, "Timeline"), h("p", {}, "Asks ..."));
  Promise.all([get("/v1/events", { limit: 10000, newest: true }), get("/v1/prices")]).then(([{ events }, { prices }]) => {
    const { jobs, hours, lines } = stacked(events);
    const gpus = h("div", {});
    const money = h("div", {});
    const market = h("div", {});
    const marks = events.filter((event) => MARKED.test(event.kind)).slice(-200).reverse();
    fill(place, h("h2", {}, "Timeline"), gpus, money, market,
      h("h3", {}, "Notices, losses, resizes, prices"), table("Notices, losses, resizes, prices", eventColumns, marks.map(eventRow)));
    if (hours.length) {
      const top = jobs.map((_, at) => at).reverse(); // the highest is drawn first, and the lower ones over it
      hours.push(Math.max(hours.at(-1), (state.head?.now_s ?? 0) / 3600));
      lines.forEach((line) => line.push(line.at(-1)));
      draw(gpus, "GPUs over time, by job; drag to look closer, double click for all", [hours, ...top.map((at) => lines[at])],
        [{ label: "hours" }, ...top.map((at) => ({ label: jobs[at], steps: true, fill: true, colour: at }))], { x: "hours", height: 260 });
    } else fill(gpus, h("p", {}, "No job has had a GPU yet."));
    if (events.length > 1) {
      draw(money, "Burn in USD/h, and nodes held", [events.map((event) => event.at_s / 3600), events.map((event) => event.usd_per_h), events.map((event) => event.nodes_held)],
        [{ label: "hours" }, { label: "USD/h", steps: true, colour: 1 }, { label: "nodes", steps: true, colour: 2 }], { x: "hours" });
    }
    const priced = priceLines(prices, state.head?.now_s ?? 0);
    if (prices.length) {
      draw(market, "Price of a node in USD/h, by offer", [priced.hours, ...priced.lines],
        [{ label: "hours" }, ...prices.map(({ offer_id }) => ({ label: offer_id, steps: true }))], { x: "hours" });
    }
  }).catch((error) => fill(place, h("h2", {}, "Timeline"), h("p", { class: "fault" }, error.message)));
  return () => {};
}
