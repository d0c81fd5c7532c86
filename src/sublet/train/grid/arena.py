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

import contextlib
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sublet.train.numerics.elementwise import Kept
from sublet.train.private import times_written

__all__ = ["Arena", "Layout", "blank", "layout_of"]

ALIGN = 64  # bytes: of a cache line, and more than any type needs
LARGE_BYTES = 2 << 20  # a page, and where it begins


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

    def counted_of(self, states: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """Of what an optimizer keeps of each parameter: whether that is anything, and its counters."""
        found = torch.zeros(self.counted.shape, dtype=self.counted.dtype)
        for row, state, kept in zip(found, states, self.kept, strict=False):
            names = [name for name, _ in kept.moments] + [name for name, _, _ in kept.counters]
            row[0] = any(state.get(name) is not None for name in names)
            for at, (name, _, _) in enumerate(kept.counters, 1):
                row[at] = float(state.get(name, 0.0))
        return found

    def counters_in(self, counted: torch.Tensor) -> dict[int, dict[str, torch.Tensor]]:
        """What that says, by the number of each parameter of which anything is kept."""
        found = {}
        for number, (kept, (begun, *row)) in enumerate(zip(self.kept, counted.tolist(), strict=False)):
            if begun:
                pairs = zip(kept.counters, row, strict=False)
                found[number] = {name: torch.tensor(each, dtype=kind) for (name, kind, _), each in pairs}
        return found


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
        self.layout = layout_of(parameters) if sent is None else sent[0]
        self.memory = self._laid(self.layout) if sent is None else sent[1]  # bytes: what is sent
        self.gradients = torch.empty(0, dtype=torch.uint8, device=device)
        self.loose = True  # gradients lie outside, wherever backward makes them, until `see_gradients`
        self._seen: list[torch.Tensor | None] = [None] * len(parameters)
        self._versions: list[int] = []  # of gradients, when the step began
        self._ours: list[bool] | None = None  # that backward has made here; None: we keep what others make
        self._told: tuple[list[bool], torch.Tensor] | None = None  # what we said of that last, as it is sent
        self._see()

    # ------------------------------------------------------------------------------------------ state

    def adopt(self, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
        """What it keeps lies here from now on, in this layout."""
        if layout is not self.layout:
            self.layout, self.memory = layout, self._laid(layout)
            self._see()
        for parameter, moments in zip(self.parameters, self._moments, strict=True):
            state = optimizer.state.get(parameter, {})
            for name, ours in moments.items():
                found = state.get(name)
                if found is not None and found is not ours:  # the first one, or it has made a new one
                    ours.copy_(found)
                    state[name] = ours

    def hand_to(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer keeps what came with this memory, and nothing else."""
        counters = self.layout.counters_in(self.layout.counted.seen_in(self.memory))
        for number, kept in enumerate(self.layout.kept):
            optimizer.state.pop(self.parameters[number], None)
            if number in counters:
                counted = {name: counters[number][name].to(device) for name, _, device in kept.counters}
                optimizer.state[self.parameters[number]] = counted | self._moments[number]

    def counted(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Of which parameters it keeps anything, and its counters, as they are sent."""
        return self.layout.counted_of([optimizer.state.get(each, {}) for each in self.parameters])

    def sent(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """All of the memory, with what is counted of now."""
        self.layout.counted.seen_in(self.memory).copy_(self.counted(optimizer))
        return self.memory

    def _laid(self, layout: Layout) -> torch.Tensor:
        memory = blank(layout.size_bytes, self.parameters[0].device)
        for parameter, where in zip(self.parameters, layout.weights, strict=True):
            where.seen_in(memory).copy_(parameter.detach())
        return memory

    def _see(self) -> None:
        """Weights, and moments of each parameter, are views of the memory."""
        for parameter, where in zip(self.parameters, self.layout.weights, strict=True):
            parameter.data = where.seen_in(self.memory)
        self._moments: list[dict[str, torch.Tensor]] = [{} for _ in self.parameters]
        for owner, (name, where) in zip(self.layout.owners, self.layout.moments, strict=True):
            self._moments[owner][name] = where.seen_in(self.memory)

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


def blank(size_bytes: int, device: torch.device) -> torch.Tensor:
    """So many bytes, all zero; on the host in large pages where the system has them.

    The first touch of a page is what a newcomer waits for: 45 MB in pages of 4 KiB took 25 to 35 ms, of 2 MiB 13 to 17.
    """
    if device.type != "cpu" or size_bytes < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    room = mmap.mmap(-1, size_bytes + LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them: pages as usual
        room.madvise(mmap.MADV_HUGEPAGE)
    found = torch.frombuffer(room, dtype=torch.uint8)
    start = -found.data_ptr() % LARGE_BYTES
    return found[start : start + size_bytes]
