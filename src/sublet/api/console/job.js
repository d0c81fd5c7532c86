// One job: how it does, what can be done about it, why it has the shape it has, what happened to it.

import { jobActions } from "./actions.js";
import { get, jobPath } from "./api.js";
import { draw } from "./charts.js";
import { facts, fill, h, row, table } from "./dom.js";
import { eventColumns, eventRow } from "./events.js";
import { DASH, gib, interval, number, perDollar, rent, share, span, usd } from "./figures.js";
import { keepCurve, state, watch } from "./state.js";
import { termsOf } from "./terms.js";

const ANEW_MS = 500;
const GPUS = [["Worker"], ["Node"], ["Busy", "figure"], ["Memory taken", "figure"], ["of", "figure"]];
const WEIGHED = [["Shape"], ["Chosen"], ["Time left", "figure"], ["Rent to the end", "figure"], ["Time, in dollars", "figure"], ["In all", "figure"], ["Rent", "figure"], ["Losses", "figure"], ["Why"]];

function pairs(job) {
  return [
    ["Phase", job.phase], ["Why", job.reason], ["Progress", share(job.progress)], ["Step", number(job.step)],
    ["Loss", number(job.loss, 4)], ["Workers", `${job.workers} of ${job.min_workers} to ${job.max_workers}`], ["Shape", job.shape || DASH],
    ["Grid", job.grid || DASH], ["Batch", number(job.global_batch)], ["Samples a second", number(job.samples_per_s, 1)],
    ["Rent", rent(job.usd_per_h)], ["Spent", usd(job.usd_total)], ["Useful", usd(job.usd_useful)], ["Not known yet", usd(job.usd_unknown)], ["Redone", usd(job.usd_redone)],
    ["Restarts", usd(job.usd_restart)], ["Checkpoints", usd(job.usd_checkpoint)], ["Idle", usd(job.usd_idle)],
    ["May spend", job.purse_usd === null ? "no limit of its own" : usd(job.purse_usd)],
    ["Time left", interval(job.eta_s, span)], ["Whole cost", interval(job.forecast_usd, usd)],
    ["For a dollar", perDollar(job)],
    ["On demand it would have cost", usd(job.usd_on_demand)], ["Taken back", `${job.preemptions_noticed} with notice, ${job.preemptions_unnoticed} without`],
    ["Steps lost", number(job.steps_lost)], ["Resizes", number(job.resizes)],
  ];
}

function gpuRow(each) {
  return row([each.worker_id, each.node_id, share(each.busy), gib(each.memory_bytes), gib(each.memory_of_bytes)]);
}

function weighedRow(each) {
  return row([each.shape, each.chosen ? "yes" : "", span(each.left_s), usd(each.left_usd), usd(each.time_usd), usd(each.price_usd), rent(each.usd_per_h),
    number(each.losses, 2), each.why], { class: each.chosen ? "chosen" : "" });
}

/** Hours against dollars, with the chosen one marked. */
export function drawWeighed(place, options) {
  const known = options.filter((each) => each.left_s !== null && each.left_usd !== null).sort((a, b) => a.left_s - b.left_s);
  if (known.length < 2) { fill(place); return; } // what was drawn before is of another plan
  draw(place, "Hours against dollars to the end, of each shape that was weighed", [
    known.map((each) => each.left_s / 3600), known.map((each) => each.left_usd), known.map((each) => (each.chosen ? each.left_usd : null))],
  [{ label: "hours left" }, { label: "USD to the end", points: true }, { label: "chosen", points: true, large: true }], { x: "hours" });
}

export function jobView(place, id) {
  const figures = h("div", {});
  const actions = h("div", {});
  const curve = h("div", {});
  const why = h("div", {});
  const happened = h("div", {});
  fill(place, h("h2", {}, `Job ${id}`), h("p", {}, h("a", { href: `#logs/${encodeURIComponent(id)}` }, "Its log")), actions, figures, curve, h("h3", {}, "Why it has this shape"), why,
    h("h3", {}, "What happened to it"), happened);
  let phase = null;
  let events = [];

  const reason = h("div", {});
  const chart = h("div", {});
  const weighed = h("div", {});
  const terms = h("div", {});
  fill(why, reason, chart, weighed, terms);
  let trying = false; // other terms: what the last plan weighed is not what is looked at

  function show(options) {
    fill(weighed, options.length ? table("What was weighed", WEIGHED, options.map(weighedRow)) : null);
    drawWeighed(chart, options);
  }

  /** What the last plan weighed; `anew` with sliders for other terms. */
  async function explain(anew) {
    const found = await get(jobPath(id, "explain"));
    fill(reason, h("p", {}, found.reason), h("p", { class: "hint" },
      !found.alternatives.length ? "No plan has weighed shapes for it since the controller began." : `By ${found.policy}, ${span(found.at_s)} after the start${found.value_of_time_usd_per_h === null ? "" : `; an hour is worth ${usd(found.value_of_time_usd_per_h)}`}`),
    found.notes.length ? h("ul", {}, found.notes.map((note) => h("li", {}, note))) : null);
    if (anew && !trying) {
      fill(terms, termsOf(state.jobs.get(id), found, (options) => { trying = true; show(options); }, () => { trying = false; later(); }));
    }
    if (!trying) show(found.alternatives);
  }

  const failed = (error) => fill(reason, h("p", { class: "fault" }, error.message));
  let waits = 0;

  /** Plans come and go: once in a while. */
  function later() {
    waits ||= setTimeout(() => { waits = 0; explain(false).catch(failed); }, ANEW_MS);
  }

  function drawEvents() {
    fill(happened, table("What happened to it", eventColumns, events.slice(-100).reverse().map(eventRow)));
  }

  function look(change) {
    const job = state.jobs.get(id);
    if (!job) {
      fill(figures, h("p", {}, "There is no such job among those that are remembered."));
      return;
    }
    fill(figures, job.warnings.length ? h("ul", { class: "fault" }, job.warnings.map((each) => h("li", {}, each))) : null, facts(pairs(job)), job.gpus.length ? table("GPUs of its workers", GPUS, job.gpus.map(gpuRow)) : null);
    const losses = state.losses.get(id) || [];
    if (losses.length > 1) {
      draw(curve, "Loss by step", [losses.map(([step]) => step), losses.map(([, loss]) => loss)],
        [{ label: "step" }, { label: "loss" }], { x: "step" });
    }
    if (job.phase !== phase) {
      phase = job.phase;
      fill(actions, jobActions(job));
      explain(true).catch(failed);
    }
    const news = change.events.filter((event) => event.job_id === id && !events.some((known) => known.seq === event.seq));
    if (news.length) {
      events.push(...news);
      drawEvents();
      later();
    }
  }

  look({ events: [] });
  get(jobPath(id, "losses")).then(({ losses }) => { keepCurve(id, losses); look({ events: [] }); }).catch(() => {});
  get("/v1/events", { job: id, limit: 1000, newest: true }).then((found) => { events = found.events; drawEvents(); }).catch(() => {});
  const leave = watch(look);
  return () => { clearTimeout(waits); leave(); };
}
