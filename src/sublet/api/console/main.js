// Which view is shown, by what stands after the # of the address; and the line to the controller.

import { get, listen } from "./api.js";
import { costView } from "./cost.js";
import { fill, h, say } from "./dom.js";
import { eventsView } from "./events.js";
import { jobView } from "./job.js";
import { logsView } from "./logs.js";
import { nowView } from "./now.js";
import { catchUp, hear, state, watch } from "./state.js";
import { submitView } from "./submit.js";
import { timelineView } from "./timeline.js";
import { whatIfView } from "./whatif.js";

const VIEWS = { now: ["Now", nowView], timeline: ["Timeline", timelineView], "what-if": ["What if", whatIfView], logs: ["Logs", logsView], events: ["Events", eventsView], cost: ["Cost", costView], submit: ["Submit", submitView] };
const BESIDES = { job: ["Job", jobView] };

const place = document.getElementById("view");
const word = document.getElementById("word");
let leave = () => {};

const NO_KEY = "This browser has no key to the controller, or it has run out.";
const MOST_MISSED = 2000;
const AGAIN_MS = 2000;

const OVER = ["timeline", "events"]; // what there is to see of a run that is over

/** What somebody has written into the address may be no name at all. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const shown = state.me.live ? VIEWS : Object.fromEntries(OVER.map((each) => [each, VIEWS[each]]));
  const [title, view] = shown[name] || (state.me.live && BESIDES[name]) || Object.values(shown)[0];
  leave();
  leave = view(place, decoded(rest.join("/")));
  document.title = `${title} - Sublet`;
  fill(document.getElementById("views"), Object.entries(shown).map(([each, [text]]) =>
    h("li", {}, h("a", { href: `#${each}`, "aria-current": text === title ? "page" : null }, text))));
}

async function begin() {
  try {
    state.me = await get("/v1/me");
    state.events = (await get("/v1/events", { limit: 500, newest: true })).events;
  } catch (error) {
    fill(place, h("h2", {}, "No way in"), h("p", {}, error.status === 401 ? NO_KEY : `The controller does not answer (${error.message}).`),
      h("p", {}, "Next: ", h("code", {}, "sublet dashboard"), ", which gives a link that opens once; this page goes on then."));
    setTimeout(begin, AGAIN_MS);
    return;
  }
  let begun = false;
  listen((kind, told) => {
    const last = state.events.at(-1)?.seq ?? 0;
    if (kind === "all" && told.seq < last) { location.reload(); return; } // another controller, with another history
    hear(kind, told);
    if (kind === "all" && told.seq > last) {
      get("/v1/events", { after: last, limit: MOST_MISSED, newest: true }).then(({ events }) => catchUp(events)).catch(() => {}); // the line is lost again
    }
    if (!begun) {
      begun = true;
      window.addEventListener("hashchange", () => { show(); place.focus(); });
      show();
    }
  }, (lost) => say(word, lost === null ? "" : lost === 401 ? `${NO_KEY} Next: sublet dashboard; this page goes on then.` : "The line to the controller is broken; it is tried again."));
  watch(() => {
    const health = state.head.health;
    say(document.getElementById("controller"), `${state.me.live ? `${state.me.who} (${state.me.scope}) · ` : ""}${health.provider}, policy ${health.policy}${health.ready ? "" : ` · not ready: ${health.why}`}`);
  });
}

begin();
