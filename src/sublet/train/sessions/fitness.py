"""Checks of a session's arguments, before anything is trained.

Limits of a strategy are data: one table (TABLE), one error at the start, and the rows of `docs/reference/session.md`.
A row whose `given` returns something refuses it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from sublet.errors import InvalidValue
from sublet.train.data.loading import Draws
from sublet.train.numerics.elementwise import check_one_by_one
from sublet.train.private import is_compiled

DISTRIBUTED = {"DataParallel", "DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}  # of torch
STAGES, RANGES, SEVERAL, STREAM = "in stages", "in ranges", "with several optimizers", "of a stream"


def may_be_several() -> bool:
    """Whether there may be several workers: at once, or after a resize."""
    if "SUBLET_CONTROL_FD" in os.environ:
        return int(os.environ.get("SUBLET_MAX_WORKERS", "2")) > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_model(model: torch.nn.Module) -> None:
    """Nothing in it brings workers of its own: the session adds gradients up."""
    for each in model.modules():
        if found := DISTRIBUTED & {kind.__name__ for kind in type(each).__mro__}:
            allowed = "the bare model: the session adds up the gradients"
            if "FSDPModule" in found:
                allowed += "; or, with fully_shard, a loop of your own and train.checkpointed"
            raise InvalidValue("model", f"with {min(found)}", allowed)


def check_frozen(frozen: Iterable[torch.nn.Parameter], *, in_stages: bool = False) -> None:
    """Raise if a parameter that was frozen when the epoch (in stages: the session) began is trained now."""
    thawed = sum(parameter.requires_grad for parameter in frozen)
    if not thawed:
        return
    if in_stages:  # what of a stage is sent from worker to worker follows from it
        began, instead = "session", "Where the model is trained in stages give them a group with lr=0 instead"
    else:
        began, instead = "epoch", "Freeze and thaw between two epochs of s.epochs(), in all workers; with the "
        instead += "optimizer's state in ranges give them a group with lr=0 instead"
    allowed = f"as it was when the {began} began: {thawed} parameters were frozen then. {instead}"
    raise InvalidValue("requires_grad", "True", allowed)


def check_optimizer(optimizer: Any, *, in_stages: bool = False) -> None:
    """A torch optimizer that takes one gradient per step; `in_stages` one that works parameter by parameter."""
    if isinstance(optimizer, list | tuple | set):
        raise InvalidValue(
            "optimizer",
            f"a {type(optimizer).__name__} of {len(optimizer)}",
            "one torch.optim.Optimizer, or several by name: {'D': optD, 'G': optG}, and then s.step(loss, 'D'); for "
            "several learning rates give one optimizer several parameter groups",
        )
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValue("optimizer", kind, "a torch.optim.Optimizer; take the one that it wraps")
    if isinstance(optimizer, torch.optim.LBFGS):
        allowed = "one that takes one gradient per step, such as Adam: LBFGS computes the loss several times"
        raise InvalidValue("optimizer", "LBFGS", allowed)
    if isinstance(optimizer, torch.optim.SparseAdam) and may_be_several():
        allowed = "one for dense gradients, such as Adam, where there may be more than one worker (they sum dense ones)"
        raise InvalidValue("optimizer", "SparseAdam", f"{allowed}; or let the job have one (`workers: 1`)")
    if in_stages:
        check_one_by_one(optimizer)


def check_methods(field: str, thing: Any, *methods: str) -> None:
    """Something that can do all of this."""
    for method in methods:
        if not callable(getattr(thing, method, None)):
            raise InvalidValue(field, type(thing).__name__, f"an object with {method}()")


def check_shape(loss: Any) -> None:
    """One number, so that nothing is left to say what its mean is."""
    if not isinstance(loss, torch.Tensor):
        raise InvalidValue("loss", type(loss).__name__, "a tensor that holds one number")
    if loss.dim():
        raise InvalidValue(
            "loss", f"a tensor of shape {list(loss.shape)}", "one number: loss.mean(), or loss.squeeze() for shape [1]"
        )


def check_counted(counted: torch.Tensor | float | None, *, asked: bool) -> None:
    """Said where it is asked for, and nowhere else."""
    if asked and counted is None:
        raise InvalidValue(
            "counted", None, "s.step(loss, counted=n) with reduction='counted': how much the loss is a sum over"
        )
    if not asked and counted is not None:
        raise InvalidValue("counted", counted, "left out, or said of train.session(..., reduction='counted')")


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a session; `options` may be any object that has those of the rows."""

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
    return type(asked.dataset).__name__ if isinstance(asked.dataset, DataLoader | IterableDataset | Draws) else None


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


LOADERS = "a DataLoader, a stream, or `train.drawn`"
TABLE = (
    Row(STAGES, "optimizer", "several optimizers", "one, with several parameter groups", _several),
    Row(STAGES, "micro_batch", "no `micro_batch=`", "how many samples they take at a time", _lacking("micro_batch")),
    Row(STAGES, "dataset", LOADERS, "a map-style dataset, `global_batch=`, `collate=`", _is_loader),
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
