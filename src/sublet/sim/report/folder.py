"""A report on disk: every file is complete or not there, and an old one stands until the new one is complete."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sublet import __version__
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import BadInput
from sublet.sim.report.comparison import Comparison, json_from_comparison
from sublet.sim.report.page import page_from_comparison

PAGE = "report.html"
JOB_COLUMNS = (
    *("policy", "job_id", "model", "submit_s", "start_s", "finish_s", "completion_s", "gpus_asked"),
    *("gpu_hours", "paused_gpu_hours", "starts", "resizes", "lost_nodes"),
)


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
