"""What an optimizer keeps for a parameter, and whether it works on each number by itself: its twin's steps tell.

A twin is an optimizer of the same class with the same settings, over parameters of a few numbers. What it keeps in the
shape of a parameter is a *moment* (two for Adam, one or none for SGD); single numbers are *counters*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["Kept", "check_elementwise", "check_one_by_one", "kept_by"]

SHAPE = (4, 3)
CUTS = (5, 7)  # numbers of a probe of that shape, in pieces that end amid a row
STEPS = 3  # the first may be special: SGD takes its gradient for the momentum
ELEMENTWISE = "one that works on each number by itself (AdamW, SGD, Lion, ...)"


@dataclass(frozen=True, slots=True)
class Kept:
    """For one parameter: names and types, in an order that all workers have."""

    moments: tuple[tuple[str, torch.dtype], ...]
    counters: tuple[tuple[str, torch.dtype, torch.device], ...]


def kept_by(optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor | None = None) -> Kept:
    """For a parameter of this group, of the type and on the device of another; or InvalidValue."""
    given = torch.zeros(SHAPE) if like is None else torch.zeros(SHAPE, dtype=like.dtype, device=like.device)
    probe = torch.nn.Parameter(given)
    twin = _twin(optimizer, number, [probe])
    _step(optimizer, twin, [probe], [torch.zeros_like(probe)])
    state = {name: each for name, each in sorted(twin.state[probe].items()) if each is not None}
    for each in state.values():
        if not isinstance(each, torch.Tensor) or each.shape not in (probe.shape, torch.Size([])):
            raise InvalidValue("optimizer", type(optimizer).__name__, ELEMENTWISE)
    return Kept(
        tuple((name, each.dtype) for name, each in state.items() if each.shape == probe.shape),
        tuple((name, each.dtype, each.device) for name, each in state.items() if each.shape != probe.shape),
    )


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Steps over pieces of a parameter are those over all of it; InvalidValue otherwise.

    One that divides by a norm, or works on the rows of a matrix, keeps moments of the same shape: only steps tell.
    """
    for number, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            continue
        device = group["params"][0].device
        start = torch.linspace(-1.0, 2.0, sum(CUTS), dtype=torch.float64, device=device).sin()
        whole = [torch.nn.Parameter(start.clone().view(SHAPE))]
        pieces = [torch.nn.Parameter(each.clone()) for each in _cut(start, CUTS)]
        twins = (_twin(optimizer, number, whole), whole), (_twin(optimizer, number, pieces), pieces)
        for step in range(1, STEPS + 1):
            gradient = (torch.arange(sum(CUTS), dtype=torch.float64, device=device) * 1.7 + step).cos() * step
            for twin, probes in twins:
                cut = _cut(gradient, [each.numel() for each in probes])
                _step(
                    optimizer, twin, probes, [each.view(probe.shape) for each, probe in zip(cut, probes, strict=True)]
                )
        together = torch.cat([each.detach() for each in pieces])
        if not torch.allclose(whole[0].detach().flatten(), together, rtol=1e-9, atol=1e-12):
            raise InvalidValue("optimizer", type(optimizer).__name__, ELEMENTWISE)


def check_one_by_one(optimizer: torch.optim.Optimizer) -> None:
    """Steps over some parameters are those over all of them; InvalidValue otherwise. Without a twin nobody can tell."""
    for number, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            continue
        start = torch.linspace(-1.0, 2.0, 2 * sum(CUTS), dtype=torch.float64).sin().view(2, *SHAPE)
        both, one = ([torch.nn.Parameter(each.clone()) for each in start[:count]] for count in (2, 1))
        try:
            twins = (_twin(optimizer, number, both), both), (_twin(optimizer, number, one), one)
            for step in range(1, STEPS + 1):
                gradient = (torch.arange(start.numel(), dtype=torch.float64) * 1.7 + step).cos().view_as(start) * step
                for twin, probes in twins:
                    _step(optimizer, twin, probes, list(gradient[: len(probes)]))
        except InvalidValue:
            continue
        if not torch.allclose(both[0].detach(), one[0].detach(), rtol=1e-9, atol=1e-12):
            allowed = "one that works on each parameter by itself where the model is cut: a part has but its own"
            raise InvalidValue("optimizer", type(optimizer).__name__, allowed)


def _cut(line: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return [line[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _twin(optimizer: torch.optim.Optimizer, number: int, probes: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    group = optimizer.param_groups[number]
    facts = {name: value for name, value in group.items() if name not in {"params", "initial_lr"}}
    required = {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}  # before it reads its groups
    try:
        return type(optimizer)([{"params": probes, **facts}], **required)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unlike(optimizer, error) from error


def _step(
    optimizer: torch.optim.Optimizer, twin: Any, probes: list[torch.nn.Parameter], gradients: list[torch.Tensor]
) -> None:
    for probe, gradient in zip(probes, gradients, strict=True):
        probe.grad = gradient.clone()
    try:
        twin.step()
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise _unlike(optimizer, error) from error


def _unlike(optimizer: torch.optim.Optimizer, error: Exception) -> InvalidValue:
    why = f"one that is made of (parameters, settings), such as AdamW, SGD or RMSprop; of its twin: {error}"
    return InvalidValue("optimizer", type(optimizer).__name__, why)
