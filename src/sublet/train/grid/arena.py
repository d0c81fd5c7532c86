"""The state of one unit as one piece of memory: weights, then each moment of the optimizer, and gradients beside it.

Parameters, moments and gradients are views of it, so a unit moves from memory to memory as one message, and sums as one
tensor of each type. Which moments there are, a twin of the optimizer has told (`elementwise`): two for Adam, one or
none for SGD. The rest are counters, which are the same for all units and travel with the meeting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sublet.train.grid.absent import plainly
from sublet.train.grid.pages import blank

__all__ = ["Arena", "Layout", "layout_of"]

ALIGN = 64  # bytes: of a cache line, and more than any type needs


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor in a piece of memory."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.start : self.start + self.size_bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each tensor of a unit lies; the same at all workers, since it follows from shapes, types and moments."""

    weights: tuple[Field, ...]
    moments: tuple[tuple[str, Field], ...]  # row by row: (name, where), for each parameter that has it
    owners: tuple[int, ...]  # of each moment, the number of its parameter
    size_bytes: int
    gradients: tuple[Field, ...]
    gradient_bytes: int


def layout_of(parameters: Sequence[torch.Tensor], moments: Sequence[Sequence[tuple[str, torch.dtype]]] = ()) -> Layout:
    """Of parameters in their order, each with the names and types of its moments."""
    weights, end = _laid(((each.shape, each.dtype) for each in parameters), 0)
    owners = tuple(number for number, names in enumerate(moments) for _ in names)
    rows, end = _laid(
        ((parameters[number].shape, kind) for number, names in enumerate(moments) for _, kind in names), end
    )
    gradients, gradient_bytes = _laid(((each.shape, each.dtype) for each in parameters), 0)
    named = tuple(zip((name for names in moments for name, _ in names), rows, strict=True))
    return Layout(
        weights=weights,
        moments=named,
        owners=owners,
        size_bytes=end,
        gradients=gradients,
        gradient_bytes=gradient_bytes,
    )


class Arena:
    """Of the parameters of one unit, which become views of it: of what they are, or of memory that another has sent."""

    def __init__(self, parameters: list[torch.nn.Parameter], sent: tuple[Layout, torch.Tensor] | None = None) -> None:
        self.parameters = parameters
        device = parameters[0].device
        self.layout, self.memory = sent or self._laid(layout_of(parameters))  # bytes: what is sent
        self.gradients = torch.empty(0, dtype=torch.uint8, device=device)
        self.loose = True  # gradients lie outside, wherever backward makes them, until `see_gradients`
        self._seen: list[torch.Tensor | None] = [None] * len(parameters)
        self._handed: list[dict[str, torch.Tensor]] = [{} for _ in parameters]  # moments that the optimizer has of us
        self._see()

    def adopt(self, optimizer: torch.optim.Optimizer, moments: Sequence[Sequence[str]]) -> None:
        """What it keeps under these names, for each parameter, lies here from now on; nothing to do where it does."""
        states = [optimizer.state.get(parameter, {}) for parameter in self.parameters]
        if all(map(_has_these, states, moments, self._handed)):
            return
        found = [
            {name: state[name] for name in names if isinstance(state.get(name), torch.Tensor)}
            for state, names in zip(states, moments, strict=True)
        ]
        names = [tuple((name, value.dtype) for name, value in each.items()) for each in found]
        wanted = layout_of(self.parameters, names)
        if wanted != self.layout:
            self.layout, self.memory = self._laid(wanted, found)
            self._see()
        else:  # it has made new tensors for the same moments: what is in them counts
            for owner, (name, where) in zip(wanted.owners, wanted.moments, strict=True):
                where.seen_in(self.memory).copy_(found[owner][name])
        self.hand_to(optimizer)

    def hand_to(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's moments are those of this memory."""
        self._handed = [{} for _ in self.parameters]
        for owner, (name, where) in zip(self.layout.owners, self.layout.moments, strict=True):
            moment = self._handed[owner][name] = where.seen_in(self.memory)
            optimizer.state[self.parameters[owner]][name] = moment

    def _laid(self, layout: Layout, states: Sequence[dict[str, Any]] = ()) -> tuple[Layout, torch.Tensor]:
        memory = blank(layout.size_bytes, self.parameters[0].device)
        with plainly():
            for parameter, where in zip(self.parameters, layout.weights, strict=True):
                where.seen_in(memory).copy_(parameter.detach())
        for owner, (name, where) in zip(layout.owners, layout.moments, strict=True):
            where.seen_in(memory).copy_(states[owner][name])
        return layout, memory

    def _see(self) -> None:
        with plainly():  # what we keep for others is none of the script's
            for number, parameter in enumerate(self.parameters):
                parameter.data = self.layout.weights[number].seen_in(self.memory)

    def loosen_gradients(self) -> None:
        """They lie outside, and take no memory here."""
        self.loose, self.gradients = True, self.gradients.new_empty(0)
        self._seen = [None] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def see_gradients(self) -> None:
        """They lie here."""
        if self.loose:
            self.loose = False
            self.gradients = blank(self.layout.gradient_bytes, self.gradients.device)
            self._seen = [each.seen_in(self.gradients) for each in self.layout.gradients]
        for parameter, gradient in zip(self.parameters, self._seen, strict=True):
            if parameter.requires_grad and parameter.grad is not gradient:
                parameter.grad = gradient


def _has_these(state: dict[str, Any], names: Sequence[str], handed: dict[str, torch.Tensor]) -> bool:
    """The optimizer keeps these very tensors under all the names."""
    return len(names) == len(handed) and all(state.get(name) is value for name, value in handed.items())


def _laid(tensors: Iterable[tuple[torch.Size, torch.dtype]], start: int) -> tuple[tuple[Field, ...], int]:
    """One after the other, each on a border; and where they end."""
    found = []
    for shape, dtype in tensors:
        place = Field(start, shape, dtype)
        found.append(place)
        start += -(-place.size_bytes // ALIGN) * ALIGN
    return tuple(found), start
