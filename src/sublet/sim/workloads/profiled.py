"""A job by the measured profile of its model: how much work, how fast, how long a restart takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sublet.domain.job import Job, Speed
from sublet.errors import MissingData
from sublet.perf.measured import MODELS, Source, measured_goodput, total_work
from sublet.perf.restart import published_restart_s

__all__ = ["Sizing", "Source", "is_sized_by_profile", "sizing_of"]

_SOURCES: tuple[Source, ...] = ("pollux", "sia")

MAX_GPUS = 64  # as far as the tables of step times reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The unit of work is an iteration at the model's initial batch size."""

    work: float
    speed: Speed
    restart_s: float
    max_gpus: int = MAX_GPUS


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
