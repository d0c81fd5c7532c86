"""The state of one unit as one piece of memory: weights, then each moment of the optimizer, and gradients beside it.

Parameters, moments and gradients are views of it, so a unit moves from memory to memory as one message, and sums as one
tensor of each type. Which moments there are, a twin of the optimizer has told (`elementwise`): two for Adam, one or
none for SGD. The rest are counters, one number each, which are written behind the moments when the unit is sent.

Not every parameter has a gradient in every step: heads may take turns. An optimizer passes by those that have none, and
begins to keep moments of one with its first gradient. So which of the gradients came is summed with them, and what is
sent says of which parameters anything is kept. What is frozen for a while has a place here all the same: backward
writes there again when it is thawed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sublet.train.grid.pages import blank
from sublet.train.numerics.elementwise import Kept
from sublet.train.private import times_written

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
    kept: tuple[Kept, ...]  # of each parameter, by the optimizer, once it has begun with it
    moments: tuple[tuple[str, Field], ...]  # row by row: (name, where), for each parameter that has it
    owners: tuple[int, ...]  # of each moment, the number of its parameter
    counted: Field  # a row for each parameter: 1 if anything is kept of it, and its counters
    size_bytes: int
    gradients: tuple[Field, ...]
    gradient_bytes: int
    came: Field  # behind the gradients: of each one, by how many it was made
    sum_bytes: int


def layout_of(parameters: Sequence[torch.Tensor], kept: Sequence[Kept] = ()) -> Layout:
    """Of parameters in their order, and of what the optimizer keeps of each: nothing before its first step."""
    weights, end = _laid(((each.shape, each.dtype) for each in parameters), 0)
    rows = [(number, name, kind) for number, each in enumerate(kept) for name, kind in each.moments]
    moments, end = _laid(((parameters[number].shape, kind) for number, _, kind in rows), end)
    keeps = any(each.moments or each.counters for each in kept)
    shape = (len(kept), 1 + max(len(each.counters) for each in kept)) if keeps else (0,)
    [counted], end = _laid([(torch.Size(shape), torch.float64)], end)
    gradients, gradient_bytes = _laid(((each.shape, each.dtype) for each in parameters), 0)
    kinds = {each.dtype for each in parameters}
    kind = next(iter(kinds)) if len(kinds) == 1 else torch.float32
    [came], sum_bytes = _laid([(torch.Size((len(parameters),)), kind)], gradient_bytes)
    return Layout(
        weights=weights,
        kept=tuple(kept),
        moments=tuple((name, where) for (_, name, _), where in zip(rows, moments, strict=True)),
        owners=tuple(number for number, _, _ in rows),
        counted=counted,
        size_bytes=end,
        gradients=gradients,
        gradient_bytes=gradient_bytes,
        came=came,
        sum_bytes=sum_bytes,
    )


class Arena:
    """Of the parameters of one unit, which become views of it: of what they are, or of memory that another has sent.

    `trained`: all but those that are frozen for good, which never have a gradient.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        sent: tuple[Layout, torch.Tensor] | None = None,
        *,
        trained: list[bool] | None = None,
    ) -> None:
        self.parameters = parameters
        self._trained = trained or [True] * len(parameters)
        device = parameters[0].device
        self.layout, self.memory = sent or self._laid(layout_of(parameters), [])  # bytes: what is sent
        self.gradients = torch.empty(0, dtype=torch.uint8, device=device)
        self.loose = True  # gradients lie outside, wherever backward makes them, until `see_gradients`
        self._seen: list[torch.Tensor | None] = [None] * len(parameters)
        self._handed: list[dict[str, torch.Tensor]] = [{} for _ in parameters]  # moments that the optimizer has of us
        self._versions: list[int] = []  # of gradients, when the step began
        self._ours: list[bool] | None = None  # that backward has made here; None: we keep what others make
        self._told: tuple[list[bool], torch.Tensor] | None = None  # what we said of that last, as it is sent
        self._see()

    # ------------------------------------------------------------------------------------------ state

    def adopt(self, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
        """What it keeps lies here from now on, in this layout; nothing to do where it does."""
        states = [optimizer.state.get(parameter, {}) for parameter in self.parameters]
        if layout is self.layout and all(map(_has_these, states, layout.kept, self._handed)):
            return
        if layout is not self.layout:
            self.layout, self.memory = self._laid(layout, states)
            self._see()
        else:  # it has made new tensors for the same moments, or the first ones: what is in them counts
            for owner, (name, where) in zip(layout.owners, layout.moments, strict=True):
                found = states[owner].get(name)
                if found is not None and found is not self._handed[owner].get(name):
                    where.seen_in(self.memory).copy_(found)
        for state, handed, seen in zip(states, self._handed, self._moments(), strict=True):
            handed.update({name: moment for name, moment in seen.items() if state.get(name) is not None})
            state.update(handed)

    def hand_to(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer keeps what came with this memory, and nothing else."""
        rows, seen = self.layout.counted.seen_in(self.memory).tolist(), self._moments()
        for number, (begun, *counters) in enumerate(rows):
            optimizer.state.pop(self.parameters[number], None)
            if begun:
                counted = {
                    name: torch.tensor(value, dtype=kind, device=device)
                    for (name, kind, device), value in zip(self.layout.kept[number].counters, counters, strict=False)
                }
                self._handed[number] = seen[number]
                optimizer.state[self.parameters[number]] = counted | seen[number]

    def counted(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Of which parameters it keeps anything, and its counters, as they are sent."""
        where, rows = self.layout.counted, list[list[float]]()
        for parameter, kept in zip(self.parameters, self.layout.kept, strict=False):
            state = optimizer.state.get(parameter, {})
            names = [name for name, *_ in (*kept.moments, *kept.counters)]
            begun = any(state.get(name) is not None for name in names)
            rows.append([float(begun), *(float(state.get(name, 0.0)) for name, _, _ in kept.counters)])
        found = torch.zeros(where.shape, dtype=where.dtype)
        for number, row in enumerate(rows if found.numel() else ()):
            found[number, : len(row)] = torch.tensor(row, dtype=where.dtype)
        return found

    def sent(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """All of the memory, with what is counted of now."""
        self.layout.counted.seen_in(self.memory).copy_(self.counted(optimizer))
        return self.memory

    def _moments(self) -> list[dict[str, torch.Tensor]]:
        """Of each parameter, in this memory."""
        found: list[dict[str, torch.Tensor]] = [{} for _ in self.parameters]
        for owner, (name, where) in zip(self.layout.owners, self.layout.moments, strict=True):
            found[owner][name] = where.seen_in(self.memory)
        return found

    def _laid(self, layout: Layout, states: Sequence[Mapping[str, Any]]) -> tuple[Layout, torch.Tensor]:
        memory = blank(layout.size_bytes, self.parameters[0].device)
        for parameter, where in zip(self.parameters, layout.weights, strict=True):
            where.seen_in(memory).copy_(parameter.detach())
        for owner, (name, where) in zip(layout.owners, layout.moments, strict=True):
            if states[owner].get(name) is not None:
                where.seen_in(memory).copy_(states[owner][name])
        return layout, memory

    def _see(self) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.data = self.layout.weights[number].seen_in(self.memory)

    # ------------------------------------------------------------------------------------------ gradients

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
            self.gradients = blank(self.layout.sum_bytes, self.gradients.device)
            self._seen = [each.seen_in(self.gradients).data for each in self.layout.gradients]  # writes count for each
        for parameter, gradient, trained in zip(self.parameters, self._seen, self._trained, strict=True):
            if trained and parameter.grad is not gradient:
                parameter.grad = gradient

    def begin_step(self) -> None:
        """From now on backward may make some, here or at others."""
        self._ours = None
        if not self.loose:
            self.see_gradients()  # a script may have written `p.grad = None`, as one that freezes does
        self._versions = [] if self.loose else [_version(each) for each in self._seen]

    def tell_which_came(self) -> None:
        """Backward is over: which gradients it has made here goes with the sum."""
        if self.loose:
            return
        came = [_version(each) != before for each, before in zip(self._seen, self._versions, strict=True)]
        where = self.layout.came
        if self._told is None or self._told[0] != came:
            self._told = came, torch.tensor(came, dtype=where.dtype, device=self.gradients.device)
        where.seen_in(self.gradients).copy_(self._told[1])
        self._ours = came if came == self._trained else None  # then nobody has more, and we need not look

    def without(self) -> list[torch.nn.Parameter]:
        """Parameters of which no gradient came, here or at anybody with whom it was summed."""
        if self.loose:
            return []  # as backward has left it
        came = self._ours or self.layout.came.seen_in(self.gradients).tolist()
        return [each for each, there in zip(self.parameters, came, strict=True) if not there and each.grad is not None]

    def only_numbers(self) -> list[torch.Tensor]:
        """Gradients, in as few tensors as there are types, in the order of the parameters."""
        if self.loose:
            return [each.grad for each in self.parameters if each.grad is not None]
        return self._summed(self.layout.gradient_bytes, self.layout.gradients)

    def sums(self) -> list[torch.Tensor]:
        """The same, and which of them came."""
        layout = self.layout
        return [] if self.loose else self._summed(layout.sum_bytes, (*layout.gradients, layout.came))

    def _summed(self, size_bytes: int, fields: Sequence[Field]) -> list[torch.Tensor]:
        kinds = {each.dtype for each in fields}
        if len(kinds) == 1:
            return [self.gradients[:size_bytes].view(next(iter(kinds)))]
        return [each.seen_in(self.gradients) for each in fields]


def _has_these(state: Mapping[str, Any], kept: Kept, handed: Mapping[str, torch.Tensor]) -> bool:
    """Of all the moments the optimizer keeps those that are ours, or none."""
    return all(state.get(name) is handed.get(name) for name, _ in kept.moments)


def _version(gradient: torch.Tensor | None) -> int:
    """How often it was written to: backward adds in place."""
    return -1 if gradient is None else times_written(gradient)


def _laid(tensors: Iterable[tuple[torch.Size, torch.dtype]], start: int) -> tuple[tuple[Field, ...], int]:
    """One after the other, each on a border; and where they end."""
    found = []
    for shape, dtype in tensors:
        place = Field(start, shape, dtype)
        found.append(place)
        start += -(-place.size_bytes // ALIGN) * ALIGN
    return tuple(found), start
