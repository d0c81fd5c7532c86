"""One HTML page that needs nothing but itself: table, plots, notes, jobs, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from sublet.domain.quantity import counted
from sublet.domain.units import SECONDS_PER_H
from sublet.sim.record import JobRow
from sublet.sim.report.comparison import Comparison
from sublet.sim.report.figures import NOTHING, duration, table_from_comparison
from sublet.sim.report.html import document, figure, listing, table

MOST_JOBS = 500  # in the page; all of them are in jobs.csv


def page_from_comparison(comparison: Comparison, plots: Mapping[str, bytes], *, version: str) -> str:
    """The whole page; `plots` are PNG files by caption."""
    workload = comparison.workload
    title = f"{workload.name} under {', '.join(comparison.runs)}"
    figures = "".join(figure(caption, png) for caption, png in plots.items())
    body = f"""<p class="lead">{_lead(comparison)}</p>
{_results(comparison)}
{figures}
<h2>What was assumed</h2>
{listing(comparison.all_notes)}
<h2>Jobs</h2>
{_jobs(comparison)}
<h2>Do it again</h2>
<pre>{escape(comparison.command)}</pre>
<footer>Sublet {escape(version)}, seed {comparison.seed}.
Jobs: {escape(workload.source or "given")}{escape(f", {workload.licence}" if workload.licence else "")}.</footer>"""
    return document(title, body, script=SORT)


def _lead(comparison: Comparison) -> str:
    workload = comparison.workload
    jobs = f"{counted(len(workload), 'job')} arriving over {duration(workload.span_s)}"
    burn = comparison.cloud.budget.burn
    money = f", at most USD {burn.usd_per_h:,.2f} per hour" if burn is not None else ""
    return escape(f"{jobs}{money}. Completion time is from submission to end.")


def _results(comparison: Comparison) -> str:
    titles, rows = table_from_comparison(comparison)
    return table(titles, rows, texts=1)


def _jobs(comparison: Comparison) -> str:
    """One row per job, its time and GPU-hours under every policy side by side."""
    several = len(comparison.runs) > 1
    titles = ["job", "model", "GPUs asked", "submitted"]
    for policy in comparison.runs:
        of = f", {policy}" if several else ""
        titles += [f"done after{of}", f"GPU-hours{of}"]
    rows = []
    zero_s = comparison.workload.jobs[0].submit_s
    for job in comparison.workload.jobs[:MOST_JOBS]:
        row = [job.id, job.model or NOTHING, f"{job.gpus}", duration(job.submit_s - zero_s)]
        for run in comparison.runs.values():
            row += _cells(run.record.jobs.get(job.id))
        rows.append(row)
    total = len(comparison.workload)
    shown = f"The first {MOST_JOBS} of {total:,}; all" if total > MOST_JOBS else f"All {total:,}; more about each"
    every = table(titles, rows, texts=2, sortable=True)
    return f'<p>{shown} in <a href="jobs.csv">jobs.csv</a>. Click a title to sort.</p>{every}'


def _cells(row: JobRow | None) -> list[str]:
    if row is None:
        return [NOTHING, NOTHING]
    return [NOTHING if row.finish_s is None else duration(row.completion_s), f"{row.gpu_s / SECONDS_PER_H:,.2f}"]


SORT = """
const size = {d: 86400, h: 3600, m: 60, s: 1};
const value = text => {
  const parts = [...text.matchAll(/([\\d.]+)([dhms])/g)];
  if (parts.length && /^[\\d.dhms]+$/.test(text)) return parts.reduce((sum, [, n, unit]) => sum + n * size[unit], 0);
  const number = Number(text.replaceAll(",", ""));
  return text === "-" ? Infinity : Number.isNaN(number) ? text : number;
};
document.querySelectorAll(".sortable th").forEach((title, place) => title.onclick = () => {
  const body = title.closest("table").tBodies[0], up = title.dataset.up !== "1";
  title.dataset.up = up ? "1" : "0";
  const rows = [...body.rows].map(row => [value(row.cells[place].textContent), row]);
  rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
  body.append(...rows.map(([, row]) => row));
});
"""
