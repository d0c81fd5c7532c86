"""Whether what a job file says is within bounds (bounds.py): by the keys of the file, as they are written there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sublet.domain.units import DAY_S
from sublet.errors import InvalidValue
from sublet.runtime.jobs import bounds

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import JobFile

__all__ = ["out_of_bounds"]

DURATIONS: Final = frozenset({"restart_s", "grace_s", "hang_s", "replace_s", "checkpoint_every_s", "deadline_s"})


def out_of_bounds(  # noqa: PLR0913 - what the file says, and what was made of it
    file: JobFile,
    written: Mapping[str, Any],
    *,
    argv: Sequence[str],
    cwd: str,
    folder: str,
    mounts: Mapping[str, str],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    kinds: Sequence[str],
    workers: tuple[int, int],
    deadline_s: float | None,
) -> Iterator[InvalidValue]:
    """Everything that is; a job of the rest can be made."""
    for name, (key, value) in _numbers(file, deadline_s).items():
        low, high = bounds.RANGES[name]
        if value is not None and not low <= value <= high:
            yield InvalidValue(key, _as_written(written, key), _allowed(name, low, high))
    elastic = file.elastic
    checks: tuple[Callable[[], None], ...] = (
        *(lambda each=each: bounds.retries(f"retry.{each}", getattr(file.retry, each)) for each in bounds.FAULTS),
        lambda: bounds.job_name(file.name) if file.name is not None else None,
        lambda: bounds.command(argv),
        lambda: bounds.path("workdir", cwd),
        lambda: bounds.path("checkpoint.uri", folder),
        lambda: bounds.absolute("checkpoint.copy", file.checkpoint.copy_to),
        lambda: bounds.script("setup", file.setup),
        lambda: bounds.mounts(mounts),
        lambda: bounds.variables("envs", env),
        lambda: bounds.variables("secrets", secrets),
        lambda: bounds.kinds(kinds),
        lambda: bounds.workers(*workers, elastic.sizes if elastic else ()),
        lambda: bounds.stages(
            0 if file.parallel.stages == "auto" else file.parallel.stages, workers[1], elastic.sizes if elastic else ()
        ),
        lambda: bounds.core(
            file.resources.min_on_demand,
            min(elastic.sizes if elastic and elastic.sizes else workers),
            file.resources.market(),
        ),
    )
    for check in checks:
        try:
            check()
        except InvalidValue as error:
            if error.field == "elastic.workers" and elastic is None:  # nodes times GPUs of a node
                error = InvalidValue("num_nodes", _as_written(written, "num_nodes"), f"fewer: {error.allowed} workers")
            yield error


def _numbers(file: JobFile, deadline_s: float | None) -> dict[str, tuple[str, float | None]]:
    """By the names of the table: the key in the file, and the value; None where it says nothing."""
    steps = file.training.target.steps is not None
    return {
        "work": ("training.target.steps" if steps else "training.target.samples", file.training.work()),
        "samples_per_s": ("training.samples_per_s", file.training.samples_per_s),
        "restart_s": ("elastic.restart", file.elastic.restart if file.elastic else None),
        "grace_s": ("stop_duration", file.stop_duration),
        "hang_s": ("training.hang", file.training.hang),
        "replace_s": ("elastic.replace_within", file.elastic.replace_within if file.elastic else None),
        "checkpoint_every_s": (
            "checkpoint.interval",
            None if file.checkpoint.interval == "auto" else file.checkpoint.interval,
        ),
        "purse_usd": ("budget.total", file.budget.total if file.budget else None),
        "deadline_s": ("deadline", deadline_s),
        "weight": ("weight", file.weight),
    }


def _as_written(written: Mapping[str, Any], key: str) -> object:
    """The value in the file, before it was read as seconds or dollars."""
    inside: Any = written
    for part in key.split("."):
        if not isinstance(inside, Mapping):
            break  # `budget: 120` for `budget: {total: 120}`
        inside = inside.get(part)
    return inside if isinstance(inside, str | int | float) else str(inside)


def _allowed(name: str, low: float, high: float) -> str:
    if name in DURATIONS:
        return f"a duration from {low:g}s to {high:.0f}s (about {high / DAY_S:,.0f} days)"
    if name == "purse_usd":
        return f"dollars from {low:.6f} to {high:,.0f}"
    return f"a number from {low:g} to {high:g}"
