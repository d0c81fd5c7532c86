"""Rows of Sublet's CSV format to jobs: what a column may hold, and what is assumed (by profiles) where it is empty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sublet.data.csvfile import Bounds, TextTable
from sublet.domain.budget import named_owner
from sublet.domain.job import Job, Speed
from sublet.domain.quantity import positive
from sublet.domain.shape import packed
from sublet.errors import InvalidValue, MissingData
from sublet.perf.gridded import LivePauses
from sublet.perf.measured import MODELS, Source, measured_goodput, total_work
from sublet.perf.parcae import PARCAE_MODELS, gridded_job, shared_job
from sublet.perf.restart import published_restart_s

__all__ = [
    "GPUS_PER_NODE",
    "LATEST_S",
    "MAX_GPUS",
    "OWNERS",
    "JobRows",
    "Sizing",
    "Source",
    "is_sized_by_profile",
    "sizing_of",
]

GPUS_PER_NODE = 8  # how the GPUs of a stated duration are taken to have been packed
MAX_GPUS = 1_000_000  # more than any job has ever had; guards against a column mix-up
LATEST_S = 1e10  # 317 years: a float tells 2 microseconds apart there; a date in milliseconds is beyond it

TEXT_COLUMNS = ("model", "gpu", "group", "klass")
OWNERS = ("user", "team")  # whose budgets pay for it
OPTIONAL_NUMBERS: Mapping[str, Bounds] = {
    "batch_size": Bounds(least=1, whole=True),
    "steps": Bounds(above=0),
    "deadline_s": Bounds(least=0, most=LATEST_S),
    "min_gpus": Bounds(least=1, most=MAX_GPUS, whole=True),
    "max_gpus": Bounds(least=1, most=MAX_GPUS, whole=True),
    "restart_s": Bounds(least=0, most=LATEST_S),
    "weight": Bounds(above=0),
    "checkpoint_every_s": Bounds(above=0, most=LATEST_S),
    "checkpoint_write_s": Bounds(least=0, most=LATEST_S),
    "samples": Bounds(above=0),
}

_Main = tuple[str, float, float | None, int, str, str, str, str]  # id, submit_s, duration_s, gpus, TEXT_COLUMNS


class JobRows:
    """Turns the rows of one table into jobs and counts what it assumed on the way."""

    def __init__(
        self,
        table: TextTable,
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
        self._rate_by_shape: dict[tuple[str, int], float] = {}
        self._sized_by_duration = self._sized_by_profile = self._in_grids = self._unsized = self._fractional = 0

    def jobs(self) -> Iterator[Job]:
        """One job per row, but for rows that were to be dropped."""
        lines, row_by_id = self._table.lines, dict[str, int]()
        stated: dict[str, Sequence[Any]] = {
            name: self._read_optional(name, bounds) for name, bounds in OPTIONAL_NUMBERS.items()
        }
        del stated["steps"]  # checked, for a broken row is a broken row, but a job has no place for it
        optional = [(name, values) for name, values in stated.items() if values]
        optional += [(name, self._owners(name)) for name in OWNERS if name in self._table.columns]
        for row, main in enumerate(self._main_columns()):
            given = {}
            for name, values in optional:
                if values[row] is not None:
                    given[name] = values[row]
            try:
                job = self._job(main, given)
                if job is None:
                    continue
                first = row_by_id.setdefault(job.id, row)
                if first != row:
                    raise InvalidValue("job_id", job.id, f"used once, but line {lines[first]} has it too")  # noqa: TRY301 - the line is added below
            except InvalidValue as error:
                raise self._table.refusal(row, str(error)) from None
            yield job

    def repairs(self) -> Iterable[str]:
        """Rows that were changed or left out."""
        if self._fractional:
            yield f"{_jobs(self._fractional)} asked for a fraction of a GPU: the next whole number is taken"
        if self._unsized:
            yield f"{_jobs(self._unsized)} without a duration: left out"

    def notes(self) -> Iterable[str]:
        """Rows that were changed, left out or assumed."""
        yield from self.repairs()
        if self._sized_by_duration:
            yield (
                f"work of {_jobs(self._sized_by_duration)} = stated duration x speed on the requested GPUs, packed "
                f"{GPUS_PER_NODE} to a node, with the speedup {self._speedup}"
            )
        if self._sized_by_profile:
            batch = "the batch size of the trace" if self._fixed_batch else "the best batch size at every moment"
            yield (
                f"work and speed of {_jobs(self._sized_by_profile)} come from the measured profiles of "
                f"{self._profiles.capitalize()}, at {batch}; a restart takes what its simulator charges"
            )

        if self._in_grids:
            yield (
                f"{_jobs(self._in_grids)} in grids, with the speeds and costs of migration that Parcae measured on "
                "V100, whatever the kind of GPU"
            )

    def _main_columns(self) -> Iterator[_Main]:
        table = self._table
        asked_R = table.floats("gpus", Bounds(above=0, most=MAX_GPUS))  # R rows
        gpus_R = np.ceil(asked_R).astype(np.int64)
        self._fractional = int(np.count_nonzero(gpus_R != asked_R))
        return zip(
            table.columns["job_id"],
            table.floats("submit_s", Bounds(least=0, most=LATEST_S)).tolist(),
            self._read_optional("duration_s", Bounds(above=0, most=LATEST_S)) or [None] * len(table),
            gpus_R.tolist(),
            *(self._texts(name) for name in TEXT_COLUMNS),
            strict=True,
        )

    def _job(self, main: _Main, given: dict[str, Any]) -> Job | None:
        """None for a row to drop."""
        job_id, submit_s, duration_s, gpus, model, kind, group, klass = main
        if "samples" in given:
            return self._gridded(main, given)
        if duration_s is None:
            sizing = self._sizing(model, given.get("batch_size"))
            if sizing is None:
                return None
            work, speed = sizing.work, sizing.speed
            given = {"restart_s": sizing.restart_s, "max_gpus": max(sizing.max_gpus, gpus), **given}
        else:
            work, speed = duration_s * self._rate(kind, gpus), self._speedup
            self._sized_by_duration += 1
        if given:
            given.pop("batch_size", None)
            if given.get("deadline_s", submit_s) < submit_s:
                raise InvalidValue("deadline_s", given["deadline_s"], f"not before submit_s {submit_s:g}")
        positive("work", work)  # no row of a file means a job without an end
        return Job(
            id=job_id,
            submit_s=submit_s,
            work=work,
            speed=speed,
            gpus=gpus,
            model=model,
            group=group or klass,
            **given,
        )

    def _gridded(self, main: _Main, given: dict[str, Any]) -> Job:
        """A job that trains in grids: so many samples of a model whose grids were measured."""
        job_id, submit_s, duration_s, gpus, model, _, group, klass = main
        if duration_s is not None:
            raise InvalidValue("samples", given["samples"], "given without duration_s: they say how long it trains")
        if model not in PARCAE_MODELS:
            raise InvalidValue("model", model, f"with samples, one of {', '.join(PARCAE_MODELS)}")
        profile = shared_job(model)
        if gpus < profile.least:
            raise InvalidValue("gpus", gpus, f"at least {profile.least}, what {model} needs")
        self._in_grids += 1
        facts = {name: value for name, value in given.items() if name not in ("samples", "batch_size")}
        return gridded_job(
            profile,
            LivePauses(profile),
            id=job_id,
            submit_s=submit_s,
            work=given["samples"],
            gpus=gpus,
            model=model,
            group=group or klass,
            **{"max_gpus": max(gpus, int(profile.use_C.max())), **facts},
        )

    def _texts(self, name: str) -> Sequence[str]:
        if name not in self._table.columns:
            return [""] * len(self._table)
        self._table.check_names(name, may_be_empty=True)
        return self._table.columns[name]

    def _owners(self, name: str) -> list[str | None]:
        """None where no owner is named."""
        found = list[str | None]()
        for row, text in enumerate(self._texts(name)):
            try:
                found.append(named_owner(name, text) if text else None)
            except InvalidValue as error:
                raise self._table.refusal(row, str(error)) from None
        return found

    def _read_optional(self, name: str, bounds: Bounds) -> list[float | None]:
        """A column of numbers, None where a field is empty; no list at all if the column is absent or empty."""
        if name not in self._table.columns:
            return []
        values = self._table.floats(name, bounds, empty=math.nan)
        if np.isnan(values).all():
            return []
        read = int if bounds.whole else float
        return [None if math.isnan(value) else read(value) for value in values.tolist()]

    def _sizing(self, model: str, batch: int | None) -> Sizing | None:
        """The size by the profile of the model; None for a row to drop."""
        sizing = sizing_of(model, source=self._profiles, batch=batch if self._fixed_batch else None)
        if sizing is not None:
            self._sized_by_profile += 1
        elif self._drop_unsized:
            self._unsized += 1
        else:
            raise InvalidValue("duration_s", "", f"above 0: no profile says how long {model or 'it'} trains")
        return sizing

    def _rate(self, kind: str, gpus: int) -> float:
        rate = self._rate_by_shape.get((kind, gpus))
        if rate is None:
            rate = self._speedup.rate(kind, packed(gpus, GPUS_PER_NODE), 0.0)
            if not rate > 0:
                raise InvalidValue("gpu", kind, f"a kind that the speedup {self._speedup} can run {gpus} of")
            self._rate_by_shape[kind, gpus] = rate
        return rate


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


_SOURCES: tuple[Source, ...] = ("pollux", "sia")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The unit of work is an iteration at the model's initial batch size."""

    work: float
    speed: Speed
    restart_s: float
    max_gpus: int = 64  # as far as the tables of step times reach


def sizing_of(model: str, *, source: Source = "pollux", batch: int | None = None) -> Sizing | None:
    """A full training run of `model` at its best batch sizes, or at the fixed `batch`; None if it was not measured."""
    return _sizing(model, source, batch) if model in MODELS else None


def is_sized_by_profile(job: Job) -> bool:
    """Whether the model's name alone says the work and the speed of this job."""
    for source in _SOURCES:
        try:
            sizing = sizing_of(job.model, source=source)
        except MissingData:  # the tables of Sia are not bundled
            continue
        if sizing is not None and job.speed is sizing.speed and job.work == sizing.work:
            return True
    return False


@cache  # jobs of one model share one speed, and with it all that was worked out for it
def _sizing(model: str, source: Source, batch: int | None) -> Sizing:
    return Sizing(
        work=total_work(model, source=source),
        speed=measured_goodput(model, source=source, batch=batch),
        restart_s=published_restart_s(model, source),
    )
