// Timeline: GPUs over time by job, with notices, losses and resizes; burn, nodes and prices beneath. From the events, and /v1/prices.
// It goes on as things happen; whoever points at a moment is told what happened there, and why.

import { get, history } from "./api.js";
import { draw } from "./charts.js";
import { fill, h, say, table } from "./dom.js";
import { eventColumns, eventRow } from "./events.js";
import { span } from "./figures.js";
import { state, watch } from "./state.js";

const MOST_JOBS = 9; // each with a colour of its own
const MOST_EVENTS = 60000; // as many as a controller keeps
const MARKED = /NodeNoticed|NodeLost|JobResized|PriceChanged/;
const ANEW_MS = 900;
const NEAR_PX = 8;
const MOST_TOLD = 4;

/** Hours, and for each job the sum of its workers and of those below it, so that areas lie on one another.
 *
 * Those that had most GPU hours have a colour each; all others have one together, on top.
 */
export function stacked(events) {
  const told = events.filter((event) => event.job_id && event.workers !== null);
  const had = new Map();
  const since = new Map();
  const book = (job, workers, at) => {
    const [before, from] = since.get(job) ?? [0, at];
    if (before || workers) had.set(job, (had.get(job) ?? 0) + before * (at - from));
    since.set(job, [workers, at]);
  };
  for (const event of told) book(event.job_id, event.workers, event.at_s);
  for (const job of since.keys()) book(job, 0, told.at(-1).at_s);
  const order = [...had].sort((a, b) => b[1] - a[1]).map(([job]) => job);
  const jobs = order.slice(0, MOST_JOBS);
  const others = order.length - jobs.length;
  const held = new Map(order.map((job) => [job, 0]));
  const hours = [];
  const lines = [...jobs, ...(others ? [""] : [])].map(() => []);
  let all = 0;
  for (const event of told) {
    if (!held.has(event.job_id)) continue;
    all += event.workers - held.get(event.job_id);
    held.set(event.job_id, event.workers);
    hours.push(event.at_s / 3600);
    let sum = 0;
    jobs.forEach((job, at) => { sum += held.get(job); lines[at].push(sum); });
    if (others) lines[jobs.length].push(all);
  }
  return { jobs: others ? [...jobs, `${others} others`] : jobs, hours, lines };
}

/** What is a job's own of the sums that are drawn, the highest first. */
export const own = (data, line, at) => (at === null || at === undefined ? "" : data[line][at] - (data[line + 1]?.[at] ?? 0));

/** Hours at which any price changed, and for each offer its price from then on. */
export function priceLines(prices, nowS) {
  const hours = [...new Set([...prices.flatMap(({ changes }) => changes.map(([at]) => at)), nowS])].sort((a, b) => a - b);
  const lines = prices.map(({ changes }) => hours.map((hour) => changes.findLast(([at]) => at <= hour)?.[1] ?? null));
  return { hours: hours.map((at) => at / 3600), lines };
}

/** Of events in order of time, those between two moments: what is marked first, then the newest. */
export function between(events, fromS, untilS) {
  let low = 0;
  for (let high = events.length; low < high;) {
    const middle = (low + high) >> 1;
    if (events[middle].at_s < fromS) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let at = low; at < events.length && events[at].at_s <= untilS; at += 1) found.push(events[at]);
  return [...found.filter(({ kind }) => MARKED.test(kind)), ...found.filter(({ kind }) => !MARKED.test(kind)).reverse()];
}

const sentence = (event) => `${span(event.at_s)}, ${event.kind}${event.job_id ? ` of ${event.job_id}` : ""}${event.node_id ? ` at ${event.node_id}` : ""}: ${event.text}${event.by ? ` (by ${event.by})` : ""}`;

export function timelineView(place) {
  const gpus = h("div", {});
  const money = h("div", {});
  const market = h("div", {});
  const told = h("p", { id: "pointed-at", class: "hint pointed" });
  const marks = h("div", {});
  const begin = h("p", { class: "hint" });
  fill(place, h("h2", {}, "Timeline"), h("p", {}, "Asks ..."));
  let events = null;
  let prices = [];
  let zoom = null;
  let drawn = 0;
  let waits = 0;
  let gone = false;

  /** What happened within some pixels of where somebody points, on any of the charts. */
  function pointed(plot) {
    if (plot.cursor.left === null || plot.cursor.left < 0) return;
    const at = (px) => plot.posToVal(px, "x") * 3600;
    const found = between(events, at(plot.cursor.left - NEAR_PX), at(plot.cursor.left + NEAR_PX));
    if (!found.length) { say(told, `${span(at(plot.cursor.left))}: nothing happened here`); return; }
    fill(told, found.slice(0, MOST_TOLD).map((event) => h("span", { class: MARKED.test(event.kind) ? "warns" : "" }, sentence(event))),
      found.length > MOST_TOLD ? h("span", {}, `and ${found.length - MOST_TOLD} more`) : null);
  }

  /** A line where a node was noticed or lost. */
  function strike(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = getComputedStyle(document.body).getPropertyValue("--warn");
    ctx.lineWidth = devicePixelRatio;
    for (const [kind, dash] of [["NodeNoticed", [4, 4]], ["NodeLost", []]]) {
      ctx.setLineDash(dash.map((each) => each * devicePixelRatio));
      ctx.beginPath();
      for (const event of events) {
        const x = event.kind === kind ? plot.valToPos(event.at_s / 3600, "x", true) : -1;
        if (x >= bbox.left && x <= bbox.left + bbox.width) { ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); }
      }
      ctx.stroke();
    }
    ctx.restore();
  }

  /** For whoever has no mouse: half or twice as much, or to the side. */
  function step(times, aside) {
    const [from, until] = zoom ?? whole();
    const wide = Math.min((until - from) * times, whole()[1] - whole()[0]);
    const begins = (from + until - wide) / 2 + aside * wide;
    const first = Math.max(whole()[0], Math.min(begins, whole()[1] - wide));
    look(wide < whole()[1] - whole()[0] ? [first, first + wide] : null);
  }

  const closer = h("p", { class: "buttons" }, [["Closer", 0.5, 0], ["Wider", 2, 0], ["Earlier", 1, -0.5], ["Later", 1, 0.5]].map(([text, times, aside]) =>
    h("button", { type: "button", onclick: () => step(times, aside) }, text)), h("button", { type: "button", onclick: () => look(null) }, "All of it"));

  /** Hours that there are. */
  function whole() {
    const nowS = Math.max(state.head?.now_s ?? 0, events.at(-1)?.at_s ?? 0);
    return [events[0]?.seq > 1 ? events[0].at_s / 3600 : 0, nowS / 3600];
  }

  function look(range) {
    zoom = range;
    setTimeout(() => { if (!gone) drawCharts(); }); // all of them, once this one is through with the mouse
  }

  function drawCharts() {
    const { jobs, hours, lines } = stacked(events);
    const nowS = whole()[1] * 3600;
    const shared = { x: "hours", pointed, strike, zoom: zoom ?? whole(), look }; // a moment is at the same place in all
    if (hours.length) {
      const top = jobs.map((_, at) => at).reverse(); // the highest is drawn first, and the lower ones over it
      hours.push(Math.max(hours.at(-1), nowS / 3600));
      lines.forEach((line) => line.push(line.at(-1)));
      draw(gpus, "GPUs over time, by job; dashed: notices, lines: losses; drag to look closer, double click for all; point at a moment for what happened and why", [hours, ...top.map((at) => lines[at])],
        [{ label: "hours" }, ...top.map((at) => ({ label: jobs[at], steps: true, fill: true, colour: at, value: own }))], { ...shared, height: 260 });
    } else fill(gpus, h("p", {}, "No job has had a GPU yet."));
    if (events.length > 1) {
      const until = [...events, { ...events.at(-1), at_s: nowS }];
      draw(money, "Burn in USD/h, and nodes held", [until.map((event) => event.at_s / 3600), until.map((event) => event.usd_per_h), until.map((event) => event.nodes_held)],
        [{ label: "hours" }, { label: "USD/h", steps: true, colour: 1 }, { label: "nodes", steps: true, colour: 2 }], shared);
    }
    const priced = priceLines(prices, nowS);
    if (prices.length) {
      draw(market, "Price of a node in USD/h, by offer", [priced.hours, ...priced.lines],
        [{ label: "hours" }, ...prices.map(({ offer_id }) => ({ label: offer_id, steps: true }))], shared);
    }
  }

  function drawMarks() {
    const found = events.filter((event) => MARKED.test(event.kind)).slice(-200).reverse();
    fill(marks, table("Notices, losses, resizes, prices", eventColumns, found.map(eventRow)));
  }

  /** At most once in a while; the charts not under the hand of whoever points at one. */
  function anew() {
    waits = 0;
    drawn = Date.now();
    drawMarks();
    if (![gpus, money, market].some((each) => each.matches(":hover"))) drawCharts();
  }

  async function ask() {
    [events, { prices }] = await Promise.all([history(MOST_EVENTS), get("/v1/prices")]);
    if (gone) return;
    if (events.length && events[0].seq > 1) say(begin, `From event ${events[0].seq} on; what was before is not asked for.`);
    fill(place, h("h2", {}, "Timeline"), begin, closer, gpus, told, money, market, h("h3", {}, "Notices, losses, resizes, prices"), marks);
    drawMarks();
    drawCharts();
    drawn = Date.now();
  }

  ask().catch((error) => { if (!gone) fill(place, h("h2", {}, "Timeline"), h("p", { class: "fault" }, error.message)); });
  const leave = watch((change) => {
    const last = events?.at(-1)?.seq ?? 0;
    const news = events === null ? [] : change.events.filter((event) => event.seq > last);
    if (!news.length) return;
    events.push(...news);
    if (news.some(({ kind }) => kind === "PriceChanged")) get("/v1/prices").then((found) => { prices = found.prices; }).catch(() => {});
    waits ||= setTimeout(anew, Math.max(0, drawn + ANEW_MS - Date.now()));
  });
  return () => { gone = true; clearTimeout(waits); leave(); };
}
