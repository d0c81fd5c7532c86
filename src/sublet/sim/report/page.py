"""One HTML page that needs nothing but itself: table, plots, notes, jobs, and the command that repeats it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from sublet.sim.record import JobRow
from sublet.sim.report.comparison import Comparison
from sublet.sim.report.figures import NOTHING, duration, table_from_comparison

__all__ = ["MOST_JOBS", "page_from_comparison"]

MOST_JOBS = 500  # in the page; all of them are in jobs.csv


def page_from_comparison(comparison: Comparison, plots: Mapping[str, bytes], *, version: str) -> str:
    """The whole page; `plots` are PNG files by caption."""
    workload = comparison.workload
    title = f"{workload.name} under {', '.join(comparison.runs)}"
    figures = "".join(_figure(caption, png) for caption, png in plots.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{_lead(comparison)}</p>
{_results(comparison)}
{figures}
<h2>What was assumed</h2>
<ul>{"".join(f"<li>{escape(note)}</li>" for note in comparison.all_notes)}</ul>
<h2>Jobs</h2>
{_jobs(comparison)}
<h2>Do it again</h2>
<pre>{escape(comparison.command)}</pre>
<footer>Sublet {escape(version)}, seed {comparison.seed}.
Jobs: {escape(workload.source or "given")}{escape(f", {workload.licence}" if workload.licence else "")}.</footer>
</main>
<script>{SORT}</script>
</body>
</html>
"""


def _lead(comparison: Comparison) -> str:
    workload = comparison.workload
    jobs = f"{len(workload):,} jobs arriving over {duration(workload.span_s)}"
    burn = comparison.cloud.budget.burn
    money = f", at most USD {burn.usd_per_h:,.2f} per hour" if burn is not None else ""
    return escape(f"{jobs}{money}. Completion time is from submission to end.")


def _results(comparison: Comparison) -> str:
    titles, rows = table_from_comparison(comparison)
    return _table(titles, rows, texts=1)


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
    table = _table(titles, rows, texts=2, sortable=True)
    return f'<p>{shown} in <a href="jobs.csv">jobs.csv</a>. Click a title to sort.</p>{table}'


def _cells(row: JobRow | None) -> list[str]:
    if row is None:
        return [NOTHING, NOTHING]
    return [NOTHING if row.finish_s is None else duration(row.completion_s), f"{row.gpu_s / 3600:,.2f}"]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int, sortable: bool = False) -> str:
    """The first `texts` columns are words, the others numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        parts = (
            f"<{tag}{'' if place < texts else ' class=n'}>{escape(cell)}</{tag}>" for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    kind = " class=sortable" if sortable else ""
    return f"<div class=wide><table{kind}><thead>{line(titles, 'th')}</thead><tbody>\n{body}\n</tbody></table></div>"


def _figure(caption: str, png: bytes) -> str:
    image = base64.b64encode(png).decode("ascii")
    text = escape(caption)
    return f'<figure><figcaption>{text}</figcaption><img alt="{text}" src="data:image/png;base64,{image}"></figure>\n'


STYLE = """
:root { --ink: #23272e; --soft: #616975; --line: #dfe3e8; --paper: #fff; --back: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa3af; --line: #343a43; --paper: #1d2127; --back: #14171b; }
}
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.lead, footer { color: var(--soft); }
footer { margin-top: 2rem; font-size: .87rem; }
.wide { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .8rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
th { font-weight: 600; font-size: .87rem; color: var(--soft); }
.n { text-align: right; }
.sortable th { cursor: pointer; user-select: none; }
.sortable td { padding: .2rem .8rem; font-size: .87rem; }
figure { margin: 1.6rem 0; padding: .8rem; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
figcaption { color: #23272e; font-weight: 600; margin: 0 0 .5rem .2rem; }
img { width: 100%; height: auto; display: block; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; overflow-x: auto; }
a { color: inherit; }
"""

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
