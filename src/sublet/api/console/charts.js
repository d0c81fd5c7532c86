// Lines over an axis, by uPlot, in the colours of the page; each has a title that is read aloud, and a table beside it.

import { fill, h } from "./dom.js";

const COLOURS = ["#2a6f97", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#c53030", "#319795", "#718096", "#d53f8c", "#4a5568"];

export const colour = (at) => COLOURS[at % COLOURS.length];

/** `data` as uPlot has it; `series` are {label, points, large, fill, steps, thin, value}, `bands` {series, colour}. Returns the plot.
 *
 * `pointed(plot)` is called when somebody points at a moment, `strike(plot)` draws over it, `look(range)` is told what is looked at closer
 * (null: all of it), which is `zoom` where it is drawn anew.
 */
export function draw(place, title, data, series, { x = "", time = false, height = 220, bands = null, pointed = null, strike = null, zoom = null, look = null } = {}) {
  const ink = getComputedStyle(document.body).color;
  const grid = getComputedStyle(document.body).getPropertyValue("--line") || "#8884";
  const stepped = window.uPlot.paths.stepped({ align: 1 });
  const place2 = h("div", { class: "chart", role: "img", "aria-label": title });
  fill(place, h("p", { class: "hint" }, title), place2);
  const options = {
    width: Math.max(280, place.clientWidth || 320), height, scales: { x: { time } }, bands: bands?.map(({ series: [high, low], colour: of }) => ({ series: [high, low], fill: `${colour(of)}33` })),
    hooks: {
      setCursor: pointed ? [pointed] : [], draw: strike ? [strike] : [],
      setScale: [({ scales }, key) => { if (key === "x") place2.dataset.shown = `${scales.x.min} to ${scales.x.max}`; }],
      setSelect: look ? [(plot) => { if (plot.select.width > 0) look([0, plot.select.width].map((more) => plot.posToVal(plot.select.left + more, "x"))); }] : [],
    },
    axes: [{ stroke: ink, grid: { stroke: grid }, label: x }, { stroke: ink, grid: { stroke: grid } }],
    series: series.map((each, at) => (at === 0 ? { label: each.label } : {
      label: each.label, stroke: colour(each.colour ?? at - 1), fill: each.fill ? colour(each.colour ?? at - 1) : undefined, // opaque: the lower lie over the higher
      paths: each.points ? () => null : each.steps ? stepped : undefined,
      points: { show: Boolean(each.points), size: each.large ? 14 : 7 }, width: each.thin ? 1 : 2,
      ...(each.value ? { value: (plot, _, series_at, at) => each.value(plot.data, series_at, at) } : {}),
    })),
  };
  const plot = new window.uPlot(options, data, place2);
  if (zoom) plot.setScale("x", { min: zoom[0], max: zoom[1] });
  if (look) plot.over.addEventListener("dblclick", () => look(null));
  return plot;
}
