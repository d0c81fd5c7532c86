// Numbers as people read them. What is not known is a dash.

export const DASH = "–";

export function usd(value, digits = 2) {
  if (value === null || value === undefined) return DASH;
  const small = value !== 0 && Math.abs(value) < 0.1;
  return `USD ${value.toFixed(small ? 4 : digits)}`;
}

export const rent = (value) => (value === null || value === undefined ? DASH : `${usd(value)}/h`);

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${(s / 86400).toFixed(1)} d`;
}

export const share = (value) => (value === null || value === undefined ? DASH : `${(100 * value).toFixed(1)} %`);

export function number(value, digits = 0) {
  if (value === null || value === undefined) return DASH;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** The middle, and what 8 of 10 outcomes lie between. */
export function interval(found, show) {
  const bare = (value) => show(value).replace(/^USD /, ""); // once is enough
  return found ? `${show(found.p50)} (${bare(found.p10)} to ${bare(found.p90)})` : DASH;
}

/** What a dollar has bought that counts: samples, or steps of whoever tells no more; goodput per dollar. */
export function perDollar(job) {
  if (!(job.usd_total > 0)) return DASH;
  if (job.global_batch !== null && job.done > 0) return `${number(job.done / job.usd_total)} samples`;
  return job.step > 0 ? `${number(job.step / job.usd_total, 1)} steps` : DASH;
}

export const workers = (count) => `${count} worker${count === 1 ? "" : "s"}`;
