"""Sublet's one CSV format for jobs: files to workloads and back. Columns and rules: docs/reference/workloads.md.

A row that cannot be is refused with file, line, field, value and what is allowed. Repairs are told in notes.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from pathlib import Path

from sublet.data.csvfile import TextTable, read_columns
from sublet.domain.job import Job, Speed
from sublet.domain.shape import packed
from sublet.errors import BadInput, InvalidValue
from sublet.perf.gridded import Gridded
from sublet.perf.speedup import Amdahl
from sublet.sim.workloads.jobrows import GPUS_PER_NODE, LATEST_S, OWNERS, JobRows, Source, is_sized_by_profile
from sublet.sim.workloads.workload import Workload

COLUMNS = (
    "job_id", "submit_s", "duration_s", "gpus", "model", "batch_size", "steps", "group", "gpu", "deadline_s", "klass",
)  # fmt: skip
OPTIONAL_COLUMNS = ("min_gpus", "max_gpus", "restart_s", "weight", "checkpoint_every_s", "checkpoint_write_s")
SAMPLES = "samples"  # of a job that trains in grids; written where there are such jobs
REQUIRED_COLUMNS = ("job_id", "submit_s", "gpus")

DEFAULT_SPEEDUP: Speed = Amdahl(parallel=0.95)  # median fit to profiles/elasticflow_throughputs.csv, T4, 8 to 64 GPUs
EXACT_WHOLE = 2**53  # whole numbers below this are exact floats


def read_csv(  # noqa: PLR0913 - one argument per assumption, each with a default
    path: Path,
    *,
    name: str | None = None,
    speedup: Speed | None = None,
    profiles: Source = "pollux",
    fixed_batch: bool = False,
    drop_unsized: bool = False,
    source: str = "",
    licence: str = "",
    notes: tuple[str, ...] = (),
) -> Workload:
    """Read a plain or gzip-compressed file.

    `speedup` says how a job with a stated duration would do on other GPU counts; its unit of work is a second on one
    GPU. A job without a duration is sized by the measured profile of its model: `profiles` names the source,
    `fixed_batch` keeps it at its `batch_size` instead of the best one. `drop_unsized` leaves out rows that nothing
    gives a size, instead of refusing them.
    """
    rows = JobRows(
        _table(path, str(path)),
        speedup or DEFAULT_SPEEDUP,
        profiles=profiles,
        fixed_batch=fixed_batch,
        drop_unsized=drop_unsized,
    )
    jobs = _some_jobs(rows, str(path))
    return Workload(
        name=name or path.name,
        jobs=jobs,
        source=source or str(path),
        licence=licence,
        notes=(*rows.notes(), *notes),
    )


def workload_from_bytes(raw: bytes, name: str, *, speedup: Speed | None = None) -> Workload:
    """Read what a file would hold, from memory."""
    rows = JobRows(_table(raw, name), speedup or DEFAULT_SPEEDUP)
    jobs = _some_jobs(rows, name)
    return Workload(name=name, jobs=jobs, notes=tuple(rows.notes()))


def write_csv(workload: Workload, path: Path) -> None:
    """Write all but the speeds, compressed if the name ends in .gz; read back with the same speedup it is the same."""
    raw = csv_from_workload(workload).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def csv_from_workload(workload: Workload) -> str:
    """The text of the file; `duration_s` is the time on the requested GPUs, empty where a profile gives it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    samples = (SAMPLES,) if any(isinstance(job.speed, Gridded) for job in workload.jobs) else ()
    owners = OWNERS if any(job.user or job.team for job in workload.jobs) else ()
    writer.writerow((*COLUMNS, *OPTIONAL_COLUMNS, *samples, *owners))
    for job in workload.jobs:
        besides = (*(_samples_of(job) for _ in samples), *(getattr(job, name) for name in owners))
        writer.writerow((*_row_from_job(job), *besides))
    return text.getvalue()


def _table(file: Path | bytes, source: str) -> TextTable:
    known = (*COLUMNS, *OPTIONAL_COLUMNS, SAMPLES, *OWNERS)
    table = read_columns(file, REQUIRED_COLUMNS, source=source, known=known, forgiving=True, row_is="job")
    if "duration_s" not in table.columns and "model" not in table.columns:
        raise BadInput(source, "missing columns: duration_s (or model)", line=1)
    return table


def _some_jobs(rows: JobRows, source: str) -> tuple[Job, ...]:
    jobs = tuple(rows.jobs())
    if not jobs:
        why = "no job is left: " + "; ".join(rows.repairs())
        raise BadInput(source, why, hint="a workload needs at least one job")
    return jobs


def _row_from_job(job: Job) -> tuple[str, ...]:
    """In the order of COLUMNS and OPTIONAL_COLUMNS."""
    by_profile = isinstance(job.speed, Gridded) or is_sized_by_profile(job)
    return (
        job.id,
        _time_of("submit_s", job.submit_s),
        "" if by_profile else _time_of("duration_s", _duration_s(job)),
        str(job.gpus),
        job.model,
        "",
        "",
        job.group,
        "",
        "" if job.deadline_s is None else _time_of("deadline_s", job.deadline_s),
        "",
        str(job.min_gpus),
        str(job.max_gpus),
        _time_of("restart_s", job.restart_s),
        _text_of(job.weight),
        "" if job.checkpoint_every_s == math.inf else _time_of("checkpoint_every_s", job.checkpoint_every_s),
        _time_of("checkpoint_write_s", job.checkpoint_write_s),
    )


def _samples_of(job: Job) -> str:
    return _text_of(job.work) if isinstance(job.speed, Gridded) else ""


def _duration_s(job: Job) -> float:
    """The time on the request; if one exists, one from which the reader gets the same work to the last bit."""
    spread = packed(job.gpus, GPUS_PER_NODE)
    rate = job.speed.rate("", spread, 0.0)
    near_s = job.speed.seconds("", spread, 0.0, job.work)
    if not math.isfinite(near_s):
        raise InvalidValue("speed", job.speed, f"the same on every kind of GPU, to be written down (job {job.id})")
    candidates = (near_s, math.nextafter(near_s, 0.0), math.nextafter(near_s, math.inf))
    return next((duration_s for duration_s in candidates if duration_s * rate == job.work), near_s)


def _time_of(field: str, value_s: float) -> str:
    if value_s > LATEST_S:
        raise InvalidValue(field, value_s, f"at most {LATEST_S:,.0f} s, to be read back")
    return _text_of(value_s)


def _text_of(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value == int(value) and abs(value) < EXACT_WHOLE else repr(float(value))
