"""What a session cannot train with, said before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["check_counted", "check_frozen", "check_methods", "check_model", "check_optimizer", "check_shape", "wide"]

DISTRIBUTED = {"DataParallel", "DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}  # of torch


def wide() -> bool:
    """Whether there may be more than one worker: at once, or after a resize."""
    if "SUBLET_CONTROL_FD" in os.environ:
        return int(os.environ.get("SUBLET_MAX_WORKERS", "2")) > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_model(model: torch.nn.Module) -> None:
    """Nothing in it brings workers of its own: the session adds gradients up."""
    for each in model.modules():
        if found := DISTRIBUTED & {kind.__name__ for kind in type(each).__mro__}:
            raise InvalidValue("model", f"with {min(found)}", "the bare model: the session adds up the gradients")


def check_frozen(frozen: Iterable[torch.nn.Parameter], *, in_stages: bool = False) -> None:
    """What was frozen when the epoch began still is; in stages, what was when the session did."""
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


def check_optimizer(optimizer: Any) -> None:
    """A torch optimizer that takes one gradient per step."""
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
    if isinstance(optimizer, torch.optim.SparseAdam) and wide():
        allowed = "one for dense gradients, such as Adam, where there may be more than one worker (they sum dense ones)"
        raise InvalidValue("optimizer", "SparseAdam", f"{allowed}; or let the job have one (`workers: 1`)")


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
