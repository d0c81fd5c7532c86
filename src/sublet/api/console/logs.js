// Logs: what a job printed, searched and followed.

import { jobPath } from "./api.js";
import { fill, h, say } from "./dom.js";
import { state } from "./state.js";

const TAIL = 2000;
const MOST = 5000;

export function logsView(place, id) {
  const which = h("select", { id: "log-job", onchange: () => { location.hash = `#logs/${encodeURIComponent(which.value)}`; } });
  const words = h("input", { type: "search", id: "log-words", oninput: () => draw() });
  const follow = h("input", { type: "checkbox", id: "log-follow", checked: true });
  const count = h("p", { class: "hint" });
  const paper = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Log" });
  const chosen = id || [...state.jobs.keys()].at(-1) || "";
  fill(which, [...state.jobs.keys()].map((each) => h("option", { value: each, selected: each === chosen }, each)));
  fill(place, h("h2", {}, "Logs"), h("p", {}, h("label", { for: "log-job" }, "Of "), which, " ", h("label", { for: "log-words" }, "with the words "), words, " ",
    follow, h("label", { for: "log-follow" }, " follow")), count, paper);
  const lines = [];
  const stop = new AbortController();
  let rest = "";

  function draw() {
    const wanted = words.value.toLowerCase();
    const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    paper.textContent = found.join("\n");
    say(count, `${found.length} of ${lines.length} lines`);
    if (follow.checked) paper.scrollTop = paper.scrollHeight;
  }

  async function read() {
    const response = await fetch(`${jobPath(chosen, "log")}?every=true&follow=true&tail=${TAIL}`, { signal: stop.signal, credentials: "same-origin" });
    if (!response.ok) {
      say(count, (await response.json()).error);
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const pieces = (rest + part.value).split("\n");
      rest = pieces.pop();
      lines.push(...pieces);
      if (lines.length > MOST) lines.splice(0, lines.length - MOST);
      draw();
    }
    if (rest) lines.push(rest);
    draw();
  }

  if (chosen) read().catch((error) => { if (error.name !== "AbortError") say(count, error.message); });
  else say(count, "There is no job yet.");
  return () => stop.abort();
}
