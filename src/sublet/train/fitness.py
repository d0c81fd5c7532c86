"""What a session cannot train with, said before anything is trained."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.alive import alive

__all__ = ["check_counted", "check_frozen", "check_loss", "check_methods", "check_optimizer", "check_shape", "wide"]

SUM = 2  # what a loss of torch remembers of reduction="sum"
PASSED_THROUGH = frozenset(  # arithmetic with numbers that are finished
    f"{name}Backward0" for name in ("Add", "Sub", "Neg", "ToCopy", "Squeeze", "View", "Clone", "Stack", "Select")
)
PRODUCTS = frozenset(("MulBackward0", "MulBackward1"))
SUMS = frozenset(("SumBackward0", "SumBackward1"))
FURTHEST = 200  # nodes looked at: the arithmetic at the end of a loss is short


def wide() -> bool:
    """Whether there may be more than one worker: at once, or after a resize."""
    if "SUBLET_CONTROL_FD" in os.environ:
        return int(os.environ.get("SUBLET_MAX_WORKERS", "2")) > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_frozen(frozen: Iterable[torch.nn.Parameter]) -> None:
    """What was frozen when the session began still is."""
    thawed = sum(parameter.requires_grad for parameter in frozen)
    if thawed:
        allowed = (
            f"as it was when the session began: {thawed} parameters were frozen then. Give them a group of the "
            "optimizer with lr=0 instead, and raise it later"
        )
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
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValue(
            "optimizer",
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
            "a torch.optim.Optimizer; take the one that it wraps",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidValue(
            "optimizer",
            "LBFGS",
            "one that takes one gradient per step, such as Adam: LBFGS computes the loss several times",
        )
    if isinstance(optimizer, torch.optim.SparseAdam) and wide():
        raise InvalidValue(
            "optimizer",
            "SparseAdam",
            "one for dense gradients, such as Adam, where there may be more than one worker (they sum dense ones); "
            "or let the job have one (`workers: 1`)",
        )


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


def check_loss(loss: torch.Tensor, count: int, *, summed: bool = False) -> None:
    """At the first step: neither scaled for half precision, nor a sum over `count` samples, unless it is to be one."""
    if _is_scaled(loss):
        raise InvalidValue(
            "loss",
            "scaler.scale(loss)",
            "the plain loss: hand the scaler over, train.session(..., scaler=scaler), and the session scales, unscales "
            "after the sum and updates it; leave its lines out",
        )
    if not summed and count > 1 and _is_sum(loss, count):
        allowed = (
            "the mean over the batch: a sum depends on how many samples a worker has, so on the number of workers; "
            "divide by the number of samples in the batch, or say train.session(..., reduction='sum'), and the sum is "
            "over the global batch"
        )
        if wide():
            raise InvalidValue("loss", f"a sum over {count} samples", allowed)
        print(f"sublet: the loss is a sum over {count} samples; it should be {allowed}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process


def _is_scaled(loss: torch.Tensor) -> bool:
    """Whether it is a product with the scale of a GradScaler of this process."""
    factors = [node._saved_other for node in _arithmetic(loss) if node.name() in PRODUCTS]  # noqa: SLF001 - how autograd names what it saved
    places = {factor.data_ptr() for factor in factors if isinstance(factor, torch.Tensor)}
    if not places:
        return False
    scales = [scale for scaler in alive(torch.amp.GradScaler) if (scale := getattr(scaler, "_scale", None)) is not None]
    return any(scale.data_ptr() in places for scale in scales)


def _is_sum(loss: torch.Tensor, count: int) -> bool:
    """Whether every part of it is a sum over the samples, and nothing divides it.

    A part that is a mean, or any division, means that somebody has thought of it; a sum over something else, such as a
    penalty on weights or a list of losses, is none over samples.
    """
    found = False
    for node in _arithmetic(loss):
        name = node.name()
        if getattr(node, "_saved_reduction", None) == SUM:
            found = True
        elif name in SUMS:
            if not _sums_numbers(node):
                sizes = node._saved_self_sym_sizes  # noqa: SLF001 - torch's way
                if count not in sizes and (not sizes or sizes[0] % count):
                    return False
                found = True
        elif name in PRODUCTS:
            if _divides(node, count):
                return False
        elif name not in PASSED_THROUGH:
            return False
    return found


def _divides(node: Any, count: int) -> bool:
    """Whether it is a product with what may be one over the number of samples."""
    factor = node._saved_other  # noqa: SLF001 - torch's way
    if factor is None or (isinstance(factor, torch.Tensor) and factor.numel() != 1):
        return True
    return abs(float(factor)) * count <= 1.001  # noqa: PLR2004 - one, and what rounding adds


def _sums_numbers(node: Any) -> bool:
    """Whether it adds up a list of losses."""
    return bool(node.next_functions[0][0].name() == "StackBackward0")


def _arithmetic(loss: torch.Tensor) -> Iterator[Any]:
    """Nodes from the loss back to where its parts became numbers, those included."""
    todo = [loss.grad_fn]
    for _ in range(FURTHEST):
        if not todo:
            return
        node = todo.pop()
        if node is None:
            continue
        yield node
        name = node.name()
        if name in PASSED_THROUGH or name in PRODUCTS or (name in SUMS and _sums_numbers(node)):
            todo += [following for following, _ in node.next_functions]
