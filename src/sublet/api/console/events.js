// Events: what happened, and why; filters; older ones on demand.

import { get } from "./api.js";
import { fill, h, row, say, table } from "./dom.js";
import { rent, span, usd } from "./figures.js";
import { state, watch } from "./state.js";

const COLUMNS = [["No.", "figure"], ["At"], ["Kind"], ["Job or node"], ["What"], ["By"], ["Burn", "figure"], ["Spent", "figure"]];
const SHOWN = 300;

export function eventRow(event) {
  const who = event.job_id ? h("a", { href: `#job/${encodeURIComponent(event.job_id)}` }, event.job_id) : event.node_id;
  return row([String(event.seq), h("time", { title: event.at }, span(event.at_s)), event.kind, who, event.text, event.by || "",
    rent(event.usd_per_h), usd(event.usd_total)], { "data-kind": event.kind, class: /Lost|Noticed|Alarm|Failed/.test(event.kind) ? "warns" : "" });
}

export const eventColumns = COLUMNS;

export function eventsView(place) {
  const words = h("input", { type: "search", id: "event-words", oninput: () => draw() });
  const kind = h("select", { id: "event-kind", onchange: () => draw() }, h("option", { value: "" }, "every kind"));
  const count = h("p", { class: "hint" });
  const list = h("div", {});
  const older = h("button", { type: "button", onclick: () => fetchOlder() }, "Older ones");
  const kinds = new Set();
  let before = [];
  fill(place, h("h2", {}, "Events"),
    h("p", {}, h("label", { for: "event-words" }, "With the words "), words, " ", h("label", { for: "event-kind" }, "of "), kind),
    count, list, older);

  async function fetchOlder() {
    const known = [...before, ...state.events];
    const first = known.length ? known[0].seq : 1;
    const after = Math.max(0, first - 1001);
    try {
      const found = await get("/v1/events", { after, limit: 1000 });
      before = [...found.events.filter((event) => event.seq < first), ...before];
      older.disabled = after === 0 || found.events[0]?.kind === "Archived"; // what is before is in files
      draw();
    } catch (error) {
      say(count, error.message);
    }
  }

  function draw() {
    const wanted = words.value.trim().toLowerCase();
    const all = [...before, ...state.events];
    for (const event of all) {
      if (!kinds.has(event.kind)) {
        kinds.add(event.kind);
        kind.append(h("option", { value: event.kind }, event.kind));
      }
    }
    const found = all.filter((event) => (!kind.value || event.kind === kind.value)
      && (!wanted || `${event.kind} ${event.job_id} ${event.node_id} ${event.text} ${event.by || ""}`.toLowerCase().includes(wanted)));
    say(count, `${found.length} of ${all.length} events, the newest first${found.length > SHOWN ? `; ${SHOWN} shown` : ""}`);
    fill(list, table("Events", COLUMNS, found.slice(-SHOWN).reverse().map(eventRow)));
  }

  draw();
  return watch((change) => { if (change.all || change.events.length) draw(); });
}
