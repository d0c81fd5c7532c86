// Logs: what a job printed, searched and followed.

import { jobPath } from "./api.js";
import { fill, h, say } from "./dom.js";
import { state, watch } from "./state.js";

const TAIL = 2000;
const AGAIN_MS = 2000;
const CALM_MS = 300;
const MOST_RANKS = 64;
const MOST = 5000;
const LONGEST = 20000; // characters of a line that are shown: a bar of progress may write megabytes without an end of line
const MOST_TEXT = 2000000; // characters of all of them

export function logsView(place, id) {
  const which = h("select", { id: "log-job", onchange: () => { location.hash = `#logs/${encodeURIComponent(which.value)}`; } });
  const ranks = Math.min(MOST_RANKS, state.jobs.get(id || [...state.jobs.keys()].at(-1))?.max_workers ?? 1);
  const rank = h("select", { id: "log-rank", onchange: () => anew() },
    h("option", { value: "" }, "every worker"), Array.from({ length: ranks }, (_, at) => h("option", { value: at }, `rank ${at}`)));
  const words = h("input", { type: "search", id: "log-words", oninput: () => { clearTimeout(waits); waits = setTimeout(anew, CALM_MS); } });
  const follow = h("input", { type: "checkbox", id: "log-follow", checked: true });
  const count = h("p", { class: "hint" });
  const paper = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Log" });
  const chosen = id || [...state.jobs.keys()].at(-1) || "";
  const offer = () => fill(which, [...state.jobs.keys()].map((each) => h("option", { value: each, selected: each === chosen }, each)));
  offer();
  fill(place, h("h2", {}, "Logs"), h("p", {}, h("label", { for: "log-job" }, "Of "), which, " ", h("label", { for: "log-rank" }, "by "), rank, " ", h("label", { for: "log-words" }, "with the words "), words, " ",
    follow, h("label", { for: "log-follow" }, " follow")), count, paper);
  const lines = [];
  let stop = new AbortController();
  let rest = "";
  let over = 0; // characters of the last line that are not shown
  let size = 0; // characters of all lines
  let waits = 0;

  /** More of the last line. */
  function add(text) {
    over += Math.max(0, rest.length + text.length - LONGEST);
    rest = (rest + text).slice(0, LONGEST);
  }

  function endLine() {
    lines.push(over ? `${rest} ... and ${over.toLocaleString("en")} characters more` : rest);
    size += lines.at(-1).length;
    rest = "";
    over = 0;
    let old = Math.max(0, lines.length - MOST);
    for (let at = 0; at < old; at += 1) size -= lines[at].length;
    for (; size > MOST_TEXT; old += 1) size -= lines[old].length;
    if (old) lines.splice(0, old);
  }

  function draw() {
    paper.textContent = lines.join("\n");
    const most = lines.length === MOST ? "the last " : "";
    say(count, words.value ? `${most}${lines.length} lines with these words, of all that was printed` : `${most}${lines.length} lines; the last ${TAIL.toLocaleString("en")} are read, and what is printed since`);
    if (follow.checked) paper.scrollTop = paper.scrollHeight;
  }

  async function read() {
    const asked = new URLSearchParams([rank.value === "" ? ["every", true] : ["rank", rank.value], ["follow", true], words.value ? ["words", words.value] : ["tail", TAIL]]);
    const response = await fetch(`${jobPath(chosen, "log")}?${asked}`, { signal: stop.signal, credentials: "same-origin" });
    if (!response.ok) {
      say(count, (await response.json()).error);
      return;
    }
    if (!lines.length) say(count, words.value ? "Looks through all that was printed ..." : "Nothing is printed yet.");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const [first, ...others] = part.value.split("\n");
      add(first);
      for (const piece of others) { endLine(); add(piece); }
      if (others.length) draw();
    }
    if (rest) endLine();
    draw();
  }

  function clear() {
    lines.length = 0;
    rest = "";
    over = 0;
    size = 0;
    paper.textContent = "";
  }

  /** Where the line breaks, it is read anew from its last lines as soon as it can be. */
  function begin() {
    read().catch((error) => {
      if (error.name === "AbortError") return;
      say(count, `The log is not heard of (${error.message}); it is tried again.`);
      clear();
      waits = setTimeout(begin, AGAIN_MS);
    });
  }

  /** As asked for now; a page that nobody looks at holds no line. */
  function anew() {
    clearTimeout(waits);
    stop.abort();
    stop = new AbortController();
    if (document.hidden || !chosen) return;
    clear();
    begin();
  }

  document.addEventListener("visibilitychange", anew);
  if (chosen) begin();
  else say(count, "There is no job yet.");
  const leave = watch((change) => { if (change.all || change.gone.length || which.options.length !== state.jobs.size) offer(); });
  return () => { document.removeEventListener("visibilitychange", anew); stop.abort(); clearTimeout(waits); leave(); };
}
