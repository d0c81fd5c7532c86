"""The state of an optimizer per parameter, and whether it works element by element: steps of a twin tell.

A twin is an optimizer of the same class with the same settings, over small parameters. State in the shape of a
parameter is a *moment* (two for Adam, one or none for SGD); single numbers are *counters*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sublet.errors import InvalidValue

SHAPE = (4, 3)
PIECES = ([SHAPE], [(5,), (7,)])  # a parameter, and the same numbers in pieces that end amid a row
FEWER = ([SHAPE, SHAPE], [SHAPE])
STEPS = 3  # the first may be special: SGD takes its gradient for the momentum
ELEMENTWISE = "one that works on each number by itself (AdamW, SGD, Lion, ...)"
ONE_BY_ONE = "one that works on each parameter by itself where the model is cut: a part has but its own"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """For one parameter: names and types, in an order that all workers have."""

    moments: tuple[tuple[str, torch.dtype], ...]
    counters: tuple[tuple[str, torch.dtype, torch.device], ...]


def kept_by(optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor | None = None) -> StateSpec:
    """For a parameter of this group, of the type and on the device of another; or InvalidValue."""
    probe = torch.nn.Parameter(torch.zeros(SHAPE) if like is None else torch.zeros(SHAPE).to(like))
    with _twin(optimizer, number, [probe]) as twin:
        probe.grad = torch.zeros_like(probe)
        twin.step()
    state = {name: each for name, each in sorted(twin.state[probe].items()) if each is not None}
    for each in state.values():
        if not isinstance(each, torch.Tensor) or each.shape not in (probe.shape, torch.Size([])):
            raise InvalidValue("optimizer", type(optimizer).__name__, ELEMENTWISE)
    return StateSpec(
        tuple((name, each.dtype) for name, each in state.items() if each.shape == probe.shape),
        tuple((name, each.dtype, each.device) for name, each in state.items() if each.shape != probe.shape),
    )


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Steps over pieces of a parameter are those over all of it; InvalidValue otherwise.

    One that divides by a norm, or works on the rows of a matrix, keeps moments of the same shape: only steps tell.
    """
    _check_alike(optimizer, *PIECES, ELEMENTWISE)


def check_one_by_one(optimizer: torch.optim.Optimizer) -> None:
    """Steps over some parameters are those over all of them; InvalidValue otherwise."""
    _check_alike(optimizer, *FEWER, ONE_BY_ONE)


def _check_alike(optimizer: torch.optim.Optimizer, some: list[Any], others: list[Any], allowed: str) -> None:
    for number, group in enumerate(optimizer.param_groups):
        if group["params"]:
            one, other = (_stepped(optimizer, number, shapes) for shapes in (some, others))
            if not torch.allclose(one[: len(other)], other, rtol=1e-9, atol=1e-12):
                raise InvalidValue("optimizer", type(optimizer).__name__, allowed)


def _stepped(optimizer: torch.optim.Optimizer, number: int, shapes: list[Any]) -> torch.Tensor:
    """Parameters of these shapes after some steps with the same gradients, as one line."""
    device, sizes = optimizer.param_groups[number]["params"][0].device, [math.prod(shape) for shape in shapes]
    numbers = torch.arange(sum(sizes), dtype=torch.float64, device=device)
    probes = [
        torch.nn.Parameter(each.clone().view(shape))
        for each, shape in zip(torch.split((numbers / 4).sin(), sizes), shapes, strict=True)
    ]
    with _twin(optimizer, number, probes) as twin:
        for step in range(1, STEPS + 1):
            gradient = (numbers * 1.7 + step).cos() * step
            for probe, each in zip(probes, torch.split(gradient, sizes), strict=True):
                probe.grad = each.clone().view_as(probe)
            twin.step()
    return torch.cat([each.detach().flatten() for each in probes])


@contextmanager
def _twin(optimizer: torch.optim.Optimizer, number: int, probes: list[torch.nn.Parameter]) -> Iterator[Any]:
    """One of the same class and settings, over these; InvalidValue if that cannot be made, or fails within."""
    group = optimizer.param_groups[number]
    facts = {name: value for name, value in group.items() if name not in {"params", "initial_lr"}}
    required = {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}  # before it reads its groups
    try:
        yield type(optimizer)([{"params": probes, **facts}], **required)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        why = f"one that is made of (parameters, settings), such as AdamW, SGD or RMSprop; of its twin: {error}"
        raise InvalidValue("optimizer", type(optimizer).__name__, why) from error
