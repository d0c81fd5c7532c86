// What the page knows: the jobs, nodes and events that the controller has told, and who looks at what.

const MOST_EVENTS = 2000;
const MOST_LOSSES = 600;

export const state = { jobs: new Map(), nodes: new Map(), events: [], losses: new Map(), head: null, me: null };
const watchers = new Set();

/** Called with what changed, until the view goes. */
export function watch(look) {
  watchers.add(look);
  return () => watchers.delete(look);
}

export function hear(kind, told) {
  if (kind === "all") {
    state.jobs.clear();
    state.nodes.clear();
  }
  state.head = told;
  const jobs = merged(state.jobs, told.jobs);
  jobs.forEach(keepLoss);
  for (const id of told.gone || []) state.jobs.delete(id);
  const nodes = merged(state.nodes, told.nodes);
  for (const id of told.gone_nodes || []) state.nodes.delete(id);
  const last = state.events.length ? state.events[state.events.length - 1].seq : 0;
  state.events.push(...told.events.filter((event) => event.seq > last));
  if (state.events.length > MOST_EVENTS) state.events.splice(0, state.events.length - MOST_EVENTS);
  const change = { all: kind === "all", jobs, gone: told.gone || [], nodes, events: told.events };
  for (const look of [...watchers]) look(change);
}

/** What happened while nobody told this page of it. */
export function catchUp(missed) {
  const known = new Set(state.events.map((event) => event.seq));
  const events = missed.filter((event) => !known.has(event.seq));
  if (!events.length) return;
  state.events = [...state.events, ...events].sort((one, other) => one.seq - other.seq).slice(-MOST_EVENTS);
  for (const look of [...watchers]) look({ all: true, jobs: [], gone: [], nodes: [], events });
}

/** What is told of a job or a node is what is otherwise than before; all of it, as it is now. */
function merged(known, told) {
  return told.map((row) => {
    const whole = { ...known.get(row.id), ...row };
    known.set(row.id, whole);
    return whole;
  });
}

/** What is told live goes on where the curve that the controller keeps ends. */
function keepLoss(job) {
  if (job.loss === null || job.loss === undefined) return;
  if (!state.losses.has(job.id)) state.losses.set(job.id, []);
  const curve = state.losses.get(job.id);
  if (!curve.length || curve[curve.length - 1][0] < job.step) curve.push([job.step, job.loss]);
  if (curve.length > MOST_LOSSES) state.losses.set(job.id, curve.filter((_, at) => at % 2 === 0));
}

/** The curve from before the page was opened. */
export function keepCurve(id, losses) {
  const newer = (state.losses.get(id) || []).filter(([step]) => !losses.length || step > losses[losses.length - 1][0]);
  state.losses.set(id, [...losses, ...newer]);
}

export const may = (scope) => ({ read: 0, user: 1, admin: 2 })[state.me?.scope ?? "read"] >= { read: 0, user: 1, admin: 2 }[scope];
