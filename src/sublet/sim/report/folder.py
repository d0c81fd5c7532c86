"""A report on disk: every file is complete or not there, and an old one stands until the new one is complete."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import IO

from sublet import __version__
from sublet.domain.quantity import counted
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import BadInput
from sublet.sim.record import JobRow
from sublet.sim.report.comparison import NOTHING, Comparison, duration, json_from_comparison, table_from_comparison
from sublet.sim.report.html import document, figure, listing, table

__all__ = ["MOST_JOBS", "page_from_comparison", "prepare_folder", "replacing", "write_all", "write_report"]

MOST_JOBS = 500  # in the page; all of them are in jobs.csv
PAGE = "report.html"
JOB_COLUMNS = (
    *("policy", "job_id", "model", "submit_s", "start_s", "finish_s", "completion_s", "gpus_asked"),
    *("gpu_hours", "paused_gpu_hours", "starts", "resizes", "lost_nodes"),
)


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


def prepare_folder(folder: Path) -> None:
    """Make the folder and try to write to it: better to hear of it before an hour of simulation than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise _refusal(folder, error) from None


def write_report(comparison: Comparison, folder: Path) -> Path:
    """The page, the plots, `jobs.csv` and `metrics.json`; the path of the page."""
    from sublet.sim.report import plots  # matplotlib takes half a second to import

    drawn = {
        "completion-times.png": ("Completion times", plots.completion_times(comparison)),
        "gpus.png": ("GPUs held over time", plots.gpus_held(comparison)),
        "dollars.png": ("Dollars over time", plots.dollars(comparison)),
    }
    facts = json.dumps(json_from_comparison(comparison), indent=2, allow_nan=False)
    files = {name: png for name, (_, png) in drawn.items()}
    files["jobs.csv"] = _csv_from_jobs(comparison).encode()
    files["metrics.json"] = f"{facts}\n".encode()
    files[PAGE] = page_from_comparison(comparison, dict(drawn.values()), version=__version__).encode()
    write_all(folder, files)
    return folder / PAGE


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file under a temporary name, which takes the place of `path` if all went well and vanishes if not."""
    try:
        special = path.exists() and not path.is_file()  # a pipe or a terminal is written to, never replaced
        part = path if special else path.with_name(f".{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("w", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None
    try:
        with file:
            yield file
        if not special:
            part.replace(path)
    finally:
        if not special:
            part.unlink(missing_ok=True)


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """All under temporary names first, then renamed, the page last: a full disk leaves the old report as it was."""
    prepare_folder(folder)
    parts = {name: folder / f".{name}.part" for name in files}
    try:
        for name, content in files.items():
            parts[name].write_bytes(content)
        for name, part in parts.items():
            part.replace(folder / name)
    except OSError as error:
        raise _refusal(folder, error) from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _refusal(path: Path, error: Exception) -> BadInput:
    why = getattr(error, "strerror", None) or str(error)
    return BadInput(path, f"cannot be written ({why})", hint="give a folder that you may write to")


def _csv_from_jobs(comparison: Comparison) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(JOB_COLUMNS)
    for policy, run in comparison.runs.items():
        for row in run.record.jobs.values():
            ended = row.finish_s is not None
            writer.writerow(
                (
                    *(policy, row.job_id, row.model, row.submit_s, _or_empty(row.start_s), _or_empty(row.finish_s)),
                    *(
                        row.completion_s if ended else "",
                        row.gpus_asked,
                        row.gpu_s / SECONDS_PER_H,
                        row.paused_gpu_s / SECONDS_PER_H,
                    ),
                    *(row.starts, row.resizes, row.losses),
                )
            )
    return text.getvalue()


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value
