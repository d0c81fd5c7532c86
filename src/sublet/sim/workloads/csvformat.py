"""Sublet's one CSV format for jobs: rows to jobs, jobs to rows. Columns and rules: docs/reference/workloads.md.

A row that cannot be is refused with file, line, field, value and what is allowed. Repairs are told in notes.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sublet.domain.job import Job, Speed
from sublet.domain.shape import packed
from sublet.errors import BadInput, InvalidValue
from sublet.perf.speedup import Amdahl
from sublet.sim.workloads.csvtable import Table, table_from_bytes, table_from_file
from sublet.sim.workloads.profiled import Source, is_sized_by_profile, sizing_of
from sublet.sim.workloads.workload import Workload

__all__ = [
    "COLUMNS",
    "DEFAULT_SPEEDUP",
    "OPTIONAL_COLUMNS",
    "csv_from_workload",
    "read_csv",
    "workload_from_bytes",
    "write_csv",
]

COLUMNS = (
    "job_id", "submit_s", "duration_s", "gpus", "model", "batch_size", "steps", "group", "gpu", "deadline_s", "klass",
)  # fmt: skip
OPTIONAL_COLUMNS = ("min_gpus", "max_gpus", "restart_s", "weight", "checkpoint_every_s", "checkpoint_write_s")
REQUIRED_COLUMNS = ("job_id", "submit_s", "gpus")
MAIN_COLUMNS = ("job_id", "submit_s", "duration_s", "gpus")
TEXT_COLUMNS = ("model", "gpu", "group", "klass")

DEFAULT_SPEEDUP: Speed = Amdahl(parallel=0.95)  # median fit to profiles/elasticflow_throughputs.csv, T4, 8 to 64 GPUs
GPUS_PER_NODE = 8  # how the GPUs of a stated duration are taken to have been packed
EXACT_WHOLE = 2**53  # whole numbers below this are exact floats
MAX_NOTE = 80  # characters of a speed that are worth reading in a note
MAX_GPUS = 1_000_000  # more than any job has ever had; guards against a column mix-up


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
    GPU. A job without a duration is sized by the measured profile of its model: `profiles` says by whom, `fixed_batch`
    keeps it at its `batch_size` instead of the best one. `drop_unsized` leaves out rows that nothing gives a size,
    instead of refusing them.
    """
    rows = _Rows(
        table_from_file(path),
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
    rows = _Rows(table_from_bytes(raw, name), speedup or DEFAULT_SPEEDUP)
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
    writer.writerow((*COLUMNS, *OPTIONAL_COLUMNS))
    writer.writerows(_row_from_job(job) for job in workload.jobs)
    return text.getvalue()


def _some_jobs(rows: _Rows, source: str) -> tuple[Job, ...]:
    jobs = tuple(rows.jobs())
    if not jobs:
        why = "no job is left: " + "; ".join(rows.repairs()) if any(rows.repairs()) else "there is a header but no job"
        raise BadInput(source, why, hint="a workload needs at least one job")
    return jobs


class _Rows:
    """Turns the rows of one table into jobs and counts what it assumed on the way."""

    def __init__(
        self,
        table: Table,
        speedup: Speed,
        *,
        profiles: Source = "pollux",
        fixed_batch: bool = False,
        drop_unsized: bool = False,
    ) -> None:
        self._table = table
        self._speedup = speedup
        self._profiles = profiles
        self._fixed_batch = fixed_batch
        self._drop_unsized = drop_unsized
        self._at = _column_positions(table)
        self._optional = [(field, self._at[field], read) for field, read in _OPTIONAL.items() if field in table.header]
        self._gpus_by_text: dict[str, int] = {}
        self._rate_by_shape: dict[tuple[str, int], float] = {}
        self._main_from_row = operator.itemgetter(*(self._at[field] for field in MAIN_COLUMNS))
        self._texts_from_row = operator.itemgetter(*(self._at[field] for field in TEXT_COLUMNS))
        self._clean_texts: set[tuple[str, ...]] = set()
        self._sized_by_duration = self._sized_by_profile = self._unsized = self._fractional = 0

    def jobs(self) -> Iterable[Job]:
        """One job per row, but for rows that were to be dropped."""
        line_by_id: dict[str, int] = {}
        for line, row in self._table.rows():
            row.append("")  # what an absent column holds: its position is -1
            try:
                job = self._job_from_row(row)
                if job is None:
                    continue
                first = line_by_id.setdefault(job.id, line)
                if first != line:
                    raise InvalidValue("job_id", job.id, f"used once, but line {first} has it too")  # noqa: TRY301
            except InvalidValue as error:
                raise BadInput(self._table.source, str(error), line=line) from None
            yield job

    def repairs(self) -> Iterable[str]:
        """What was changed or left out."""
        if self._fractional:
            yield f"{self._fractional} jobs asked for a fraction of a GPU: the next whole number is taken"
        if self._unsized:
            yield f"{self._unsized} jobs without a duration were left out"

    def notes(self) -> Iterable[str]:
        """What was changed, left out or assumed."""
        yield from self.repairs()
        if self._sized_by_duration:
            yield (
                f"work of {self._sized_by_duration} jobs = stated duration x speed on the requested GPUs, packed "
                f"{GPUS_PER_NODE} to a node, with the speedup {_short(self._speedup)}"
            )
        if self._sized_by_profile:
            batch = "the batch size of the trace" if self._fixed_batch else "the best batch size at every moment"
            yield (
                f"work and speed of {self._sized_by_profile} jobs come from the measured profiles of "
                f"{self._profiles.capitalize()}, at {batch}; a restart takes what its simulator charges"
            )

    def _job_from_row(self, row: list[str]) -> Job | None:
        name, submit, duration, asked = self._main_from_row(row)
        submit_s = _number("submit_s", submit)
        gpus = self._gpus_by_text.get(asked) or self._whole_gpus(asked)
        texts = model, gpu, group, klass = self._texts_from_row(row)
        if texts not in self._clean_texts:  # most rows repeat the texts of another
            for field, text in zip(TEXT_COLUMNS, texts, strict=True):
                _check_text(field, text)
            self._clean_texts.add(texts)
        given: dict[str, Any] = {}
        for field, position, read in self._optional:
            if row[position]:
                given[field] = read(field, row[position])
        batch = None
        if given:
            if given.get("deadline_s", submit_s) < submit_s:
                raise InvalidValue("deadline_s", given["deadline_s"], f"not before submit_s {submit_s:g}")
            given.pop("steps", None)  # checked, for a broken row is a broken row, but a job has no place for it
            batch = given.pop("batch_size", None)

        if duration:
            work, speed = _positive("duration_s", duration) * self._rate(gpu, gpus), self._speedup
            self._sized_by_duration += 1
        else:
            sizing = sizing_of(model, source=self._profiles, batch=batch if self._fixed_batch else None)
            if sizing is None and self._drop_unsized:
                self._unsized += 1
                return None
            if sizing is None:
                raise InvalidValue("duration_s", duration, f"above 0: no profile says how long {model or 'it'} trains")
            work, speed = sizing.work, sizing.speed
            given = {"restart_s": sizing.restart_s, "max_gpus": max(sizing.max_gpus, gpus), **given}
            self._sized_by_profile += 1
        return Job(
            id=name,
            submit_s=submit_s,
            work=work,
            speed=speed,
            gpus=gpus,
            model=model,
            group=group or klass,
            **given,
        )

    def _whole_gpus(self, text: str) -> int:
        asked = _number("gpus", text)
        if not 0 < asked <= MAX_GPUS:
            raise InvalidValue("gpus", text, f"above 0 and at most {MAX_GPUS}")
        gpus = math.ceil(asked)
        if gpus == asked:
            self._gpus_by_text[text] = gpus  # a fraction is not remembered, to be counted each time
        else:
            self._fractional += 1
        return gpus

    def _rate(self, gpu: str, gpus: int) -> float:
        rate = self._rate_by_shape.get((gpu, gpus))
        if rate is None:
            rate = self._speedup.rate(gpu, packed(gpus, GPUS_PER_NODE), 0.0)
            if not rate > 0:
                raise InvalidValue("gpu", gpu, f"a kind that the speedup {_short(self._speedup)} can run {gpus} of")
            self._rate_by_shape[gpu, gpus] = rate
        return rate


def _column_positions(table: Table) -> dict[str, int]:
    known = (*COLUMNS, *OPTIONAL_COLUMNS)
    for position, column in enumerate(table.header):
        if column not in known:
            why = str(InvalidValue("column", column, "one of " + ", ".join(known)))
            raise BadInput(table.source, why, line=1, hint="rename or remove the column; their order is free")
        if column in table.header[:position]:
            raise BadInput(table.source, f"the column {column!r} is there twice", line=1)
    missing = [column for column in REQUIRED_COLUMNS if column not in table.header]
    if "duration_s" not in table.header and "model" not in table.header:
        missing.append("duration_s (or model)")
    if missing:
        raise BadInput(table.source, "missing columns: " + ", ".join(missing), line=1)
    return {column: table.header.index(column) if column in table.header else -1 for column in known}


def _short(speed: Speed) -> str:
    """Its fields where they fit a line; a table of measurements does not."""
    text = repr(speed)
    return text if len(text) <= MAX_NOTE else type(speed).__name__


def _check_text(field: str, text: str) -> None:
    if text != text.strip() or not text.isprintable():
        raise InvalidValue(field, text, "printable text without white space around it")


def _number(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValue(field, text, "a number") from None
    if not math.isfinite(value) or "_" in text or not text.isascii():  # Python would take 1_000 and other digits
        raise InvalidValue(field, text, "a finite number in plain digits")
    return value


def _positive(field: str, text: str) -> float:
    value = _number(field, text)
    if value <= 0:
        raise InvalidValue(field, text, "above 0")
    return value


def _whole(field: str, text: str) -> int:
    value = _number(field, text)
    if not (value.is_integer() and 1 <= value <= MAX_GPUS):
        raise InvalidValue(field, text, f"a whole number from 1 to {MAX_GPUS}")
    return int(value)


def _batch(field: str, text: str) -> int:
    value = _positive(field, text)
    if not value.is_integer():
        raise InvalidValue(field, text, "a whole number of at least 1")
    return int(value)


_OPTIONAL: Mapping[str, Callable[[str, str], float]] = {
    "batch_size": _batch,
    "steps": _positive,
    "deadline_s": _number,
    "min_gpus": _whole,
    "max_gpus": _whole,
    "restart_s": _number,
    "weight": _positive,
    "checkpoint_every_s": _positive,
    "checkpoint_write_s": _number,
}


def _row_from_job(job: Job) -> tuple[str, ...]:
    """In the order of COLUMNS and OPTIONAL_COLUMNS."""
    return (
        job.id,
        _text_of(job.submit_s),
        "" if is_sized_by_profile(job) else _text_of(_duration_s(job)),
        str(job.gpus),
        job.model,
        "",
        "",
        job.group,
        "",
        "" if job.deadline_s is None else _text_of(job.deadline_s),
        "",
        str(job.min_gpus),
        str(job.max_gpus),
        _text_of(job.restart_s),
        _text_of(job.weight),
        "" if job.checkpoint_every_s == math.inf else _text_of(job.checkpoint_every_s),
        _text_of(job.checkpoint_write_s),
    )


def _duration_s(job: Job) -> float:
    """The time on the request; if one exists, one from which the reader gets the same work to the last bit."""
    spread = packed(job.gpus, GPUS_PER_NODE)
    rate = job.speed.rate("", spread, 0.0)
    near_s = job.speed.seconds("", spread, 0.0, job.work)
    if not math.isfinite(near_s):
        raise InvalidValue(
            "speed", _short(job.speed), f"the same on every kind of GPU, to be written down (job {job.id})"
        )
    candidates = (near_s, math.nextafter(near_s, 0.0), math.nextafter(near_s, math.inf))
    return next((duration_s for duration_s in candidates if duration_s * rate == job.work), near_s)


def _text_of(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value == int(value) and abs(value) < EXACT_WHOLE else repr(float(value))
