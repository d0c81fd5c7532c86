"""What a strategy cannot do, as data: one table, one error at the start, and the rows of `docs/reference/session.md`.

A row that is given something returns it, for the error; None otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from sublet.errors import InvalidValue
from sublet.train.private import is_compiled

__all__ = ["RANGES", "SEVERAL", "STAGES", "STREAM", "TABLE", "Asked", "Row", "check_fits"]

STAGES, RANGES, SEVERAL, STREAM = "in stages", "in ranges", "with several optimizers", "of a stream"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a session was given; `options` are whatever has those that are asked for."""

    options: Any
    model: torch.nn.Module | None = None
    optimizer: Any = None
    dataset: Any = None


@dataclass(frozen=True, slots=True)
class Row:
    """`field` is what the error names, `what` and `write` are words of the page."""

    how: str
    field: str
    what: str
    write: str
    given: Callable[[Asked], Any]


def _option(name: str, usual: Any = None) -> Callable[[Asked], Any]:
    def given(asked: Asked) -> Any:
        value = getattr(asked.options, name)
        return None if value == usual else value

    return given


def _sums(asked: Asked) -> str | None:
    return asked.options.reduction if asked.options.sums else None


def _several(asked: Asked) -> str | None:
    return "several" if isinstance(asked.optimizer, Mapping) or hasattr(asked.optimizer, "named") else None


def _lacking(name: str) -> Callable[[Asked], Any]:
    return lambda asked: "none" if getattr(asked.options, name) is None else None


def _is_loader(asked: Asked) -> str | None:
    return type(asked.dataset).__name__ if isinstance(asked.dataset, DataLoader | IterableDataset) else None


def _under_torchrun(_: Asked) -> str | None:
    alone = "SUBLET_CONTROL_FD" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2  # noqa: PLR2004 - several
    return None if alone else "torchrun"


def _statistics(asked: Asked) -> str | None:
    named = () if asked.model is None else asked.model.named_modules()
    found = (f"{type(each).__name__} {name}" for name, each in named if getattr(each, "track_running_stats", False))
    return next(found, None)


def _compiled(asked: Asked) -> str | None:
    whole = asked.model is not None and is_compiled(asked.model)
    return "model.compile()" if whole else None


TABLE = (
    Row(STAGES, "optimizer", "several optimizers", "one, with several parameter groups", _several),
    Row(STAGES, "micro_batch", "no `micro_batch=`", "how many samples they take at a time", _lacking("micro_batch")),
    Row(STAGES, "dataset", "a DataLoader, or a stream", "a map-style dataset, `global_batch=`, `collate=`", _is_loader),
    Row(STAGES, "batch_range", "`batch_range=`", "`global_batch=` alone", _option("batch_range")),
    Row(STAGES, "reduction", "`reduction='sum'` or `'counted'`", "a loss that is a mean over samples", _sums),
    Row(STAGES, "scaler", "`scaler=`", "bfloat16, which needs none", _option("scaler")),
    Row(STAGES, "clip_value", "`clip_value=`", "`clip_norm=`", _option("clip_value")),
    Row(STAGES, "model", "batch statistics (`BatchNorm`)", "layer or group norm", _statistics),
    Row(STAGES, "model", "`model.compile()`", "`compile()` of each stage", _compiled),
    Row(STAGES, "train.Stages", "torchrun", "a job with `parallel: {stages: N}`, or one worker", _under_torchrun),
    Row(RANGES, "optimizer", "several optimizers", "one, or `shards: off`", _several),
    Row(RANGES, "scaler", "`scaler=`", "bfloat16, or `shards: off`", _option("scaler")),
    Row(SEVERAL, "micro_batch", "`micro_batch=`", "a smaller `global_batch=`", _option("micro_batch")),
    Row(SEVERAL, "batch_range", "`batch_range=`", "`global_batch=` alone", _option("batch_range")),
    Row(SEVERAL, "scaler", "`scaler=`", "bfloat16, or full precision", _option("scaler")),
    Row(SEVERAL, "loss", "`loss=`", "`s.step(loss, name)` with the loss of each", _option("loss")),
    Row(STREAM, "steps", "no `steps=`", "`steps=N`: a stream has no epochs", _lacking("steps")),
    Row(STREAM, "scheduler_every", "`scheduler_every='epoch'`", "`'step'`", _option("scheduler_every", "step")),
)


def check_fits(how: str, asked: Asked) -> None:
    """InvalidValue for the first row of this strategy that is given something."""
    for row in TABLE:
        if row.how == how and (found := row.given(asked)) is not None:
            allowed = f"{row.write} (training {how} cannot have {row.what})"
            raise InvalidValue(row.field, found, allowed.replace("`", ""))
