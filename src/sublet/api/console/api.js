// The way to the controller: the same routes that programs use, with the cookie that the link left here.

const AGAIN_MS = 2000;

export class Refused extends Error {
  constructor(status, facts) {
    super(facts.error || `the controller answered ${status}`);
    this.status = status;
    this.next = facts.next || "";
  }
}

async function answered(response) {
  const text = await response.text();
  let facts = {};
  try { facts = JSON.parse(text); } catch { facts = { error: text.slice(0, 200) }; }
  if (!response.ok) throw new Refused(response.status, facts);
  return facts;
}

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const asked = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  return answered(await fetch(asked, { credentials: "same-origin" }));
}

const PAGE = 10000; // events in one answer

/** The newest events, up to so many, oldest first; in as many answers as that takes. */
export async function history(most) {
  let { events } = await get("/v1/events", { limit: PAGE, newest: true });
  while (events.length && events.length < most && events[0].seq > 1 && events[0].kind !== "Archived") {
    const first = events[0].seq;
    const older = await get("/v1/events", { after: Math.max(0, first - 1 - PAGE), limit: PAGE });
    const found = older.events.filter(({ seq }) => seq < first);
    if (!found.length) break;
    events = [...found, ...events];
  }
  return events;
}

/** Asked again under the same key, it happens once. */
export async function post(path, body = {}, key = crypto.randomUUID()) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  return answered(await fetch(path, { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" }));
}

export const jobPath = (id, verb = "") => `/v1/jobs/${encodeURIComponent(id)}${verb ? `/${verb}` : ""}`;

/** What changes, as it changes; `lost(status)` when the line broke and is tried again, `lost(null)` when it is back.
 *
 * A browser has six lines to one controller: a page that nobody looks at holds none, and hears what it missed when somebody does.
 */
export function listen(hear, lost) {
  let source = null;
  let waits = 0;

  function begin() {
    clearTimeout(waits);
    source?.close();
    if (document.hidden) return;
    const ours = new EventSource("/v1/live");
    source = ours;
    for (const kind of ["all", "change"]) {
      ours.addEventListener(kind, (event) => { lost(null); hear(kind, JSON.parse(event.data)); });
    }
    ours.addEventListener("error", async () => {
      if (ours.readyState !== EventSource.CLOSED) { lost(0); return; }
      // It was answered, with no stream, and the browser gives up: the key was revoked, or another controller is there.
      const answer = await fetch("/v1/me", { credentials: "same-origin" }).catch(() => ({ status: 0 }));
      lost(answer.status);
      if (source === ours) waits = setTimeout(begin, AGAIN_MS);
    });
  }

  document.addEventListener("visibilitychange", begin);
  begin();
}
