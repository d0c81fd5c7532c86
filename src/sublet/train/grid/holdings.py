"""The units of a worker: one piece of memory for the state of each, and the optimizer over just these.

An arena has the weights of a unit, then each moment of the optimizer, and gradients beside. Parameters, moments and
gradients are views of it, so a unit moves as one message, and is summed as one tensor of each type. A twin of the
optimizer has told which moments there are (`elementwise`): two for Adam, one or none for SGD. Counters, one number
each, are written behind the moments when the unit is sent.

Not every parameter has a gradient in every step: heads may take turns. An optimizer skips parameters without one, and
begins to keep moments with the first gradient. So the sum says which gradients were made, and the message of which
parameters there is a state. A parameter that is frozen for a while has its place all the same.

Units elsewhere take no memory here: their parameters keep their shape, as an expanded NaN. So results that a script
computes of them are NaN too.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sublet.train.grid.stages import Staged, Unit
from sublet.train.numerics.elementwise import StateSpec, kept_by
from sublet.train.numerics.memory import memory_of
from sublet.train.private import times_written

ALIGN = 64  # bytes: of a cache line, and more than any type needs
LARGE_BYTES = 2 << 20  # a page, and where it begins


class Holdings:
    """The units of one worker. All parameters of the model are in exactly one unit."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        units: Sequence[Unit],
        frozen: Iterable[torch.nn.Parameter],
    ) -> None:
        named = dict(model.named_parameters())
        self.parameters = [[named[name] for name in unit.names] for unit in units]
        self.optimizer = optimizer
        self.groups = [list(group["params"]) for group in optimizer.param_groups]  # all of them, at any worker
        everything = [each for group in self.groups for each in group]
        self.indices = {id(each): index for index, each in enumerate(everything)}  # as in the optimizer's state_dict
        for number in range(len(optimizer.param_groups)):
            kept_by(optimizer, number)  # or it is refused
        self._first = {  # a state that the optimizer has before its first step
            each: {name: _small(value) for name, value in kept.items() if torch.is_tensor(value)}
            for each, kept in optimizer.state.items()
        }
        self._group_of = {id(each): number for number, group in enumerate(self.groups) for each in group}
        self._frozen = frozenset(map(id, frozen))  # for good; `requires_grad` of now would differ from worker to worker
        self.arenas: dict[int, Arena] = {}
        self._ghosts: set[int] = set()  # units that take no memory
        self._cleared = True  # gradients are zero: nothing was added to them since
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._kept: dict[tuple[int, torch.dtype, torch.device], StateSpec] = {}

    @property
    def device(self) -> torch.device:
        """The device of all units."""
        return self.parameters[0][0].device

    def size_bytes(self, unit: int, *, stepped: bool) -> int:
        """The size of its message."""
        return self.layout(unit, stepped=stepped).size_bytes

    def make(self, units: Iterable[int]) -> None:
        """From the weights that the model was built with, before the first step."""
        for unit in units:
            self.arenas[unit] = Arena(self.parameters[unit], trained=self._trained(unit))
        self._hold(self.arenas)

    def expect(self, unit: int, *, stepped: bool) -> torch.Tensor:
        """Memory for a unit that comes; `take` when it has."""
        return blank(self.size_bytes(unit, stepped=stepped), self.device)

    def take(self, came: Mapping[int, torch.Tensor], keep: Iterable[int], *, stepped: bool) -> None:
        """Hold units that came, and `keep` of those here; drop the rest."""
        wanted = set(keep)
        for unit, memory in came.items():
            sent = self.layout(unit, stepped=stepped), memory
            self.arenas[unit] = Arena(self.parameters[unit], sent, trained=self._trained(unit))
        for unit in [each for each in self.arenas if each not in wanted]:
            del self.arenas[unit]
        self._hold(came.keys() & self.arenas.keys())

    def sent(self, unit: int) -> torch.Tensor:
        """Its message."""
        return self.arenas[unit].sent(self.optimizer)

    def counted(self, unit: int) -> torch.Tensor:
        """Flags and counters of its optimizer state: a row for each parameter, as in `Layout.counted`."""
        return self.arenas[unit].counted(self.optimizer)

    def loosen(self, units: Iterable[int]) -> None:
        """Until the next call, gradients of these units lie outside of their arenas, where backward adds nothing."""
        loose = frozenset(units)
        for unit, arena in self.arenas.items():
            if unit in loose:
                arena.loosen_gradients()
            else:
                arena.see_gradients()
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        if self._cleared:
            return
        self._cleared = True
        for arena in self.arenas.values():
            if arena.loose:
                for parameter in arena.parameters:
                    parameter.grad = None
            else:
                arena.gradients.zero_()

    def begin_step(self) -> None:
        """From now on gradients may be written."""
        self._cleared = False
        for arena in self.arenas.values():
            arena.begin_step()

    def step(self) -> None:
        """The optimizer's step; parameters without a gradient at any member have none."""
        for each in [each for arena in self.arenas.values() for each in arena.without()]:
            each.grad = None  # an optimizer would move it by a zero, too, and count a step; `begin_step` sees it again
        self.optimizer.step()
        for unit, arena in self.arenas.items():
            arena.adopt(self.optimizer, self.layout(unit, stepped=True))

    def _hold(self, new: Iterable[int]) -> None:
        """The optimizer has our units, and nothing else; the `new` ones are handed to it."""
        held = {id(parameter) for arena in self.arenas.values() for parameter in arena.parameters}
        state = self.optimizer.state
        for parameter in [each for each in state if id(each) not in held]:
            del state[parameter]
        for group, everything in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [each for each in everything if id(each) in held]
        for arena in [self.arenas[unit] for unit in new]:
            arena.hand_to(self.optimizer)
            for each in arena.parameters:  # Adagrad makes a state before any gradient has come
                if each in self._first and each not in state:
                    state[each] = {name: value.contiguous().clone() for name, value in self._first[each].items()}
        gone = {unit for unit in range(len(self.parameters)) if unit not in self.arenas}
        for parameter in [each for unit in gone - self._ghosts for each in self.parameters[unit]]:
            parameter.grad = None
            nothing = parameter.detach().new_full((), math.nan if parameter.is_floating_point() else 0)
            parameter.data = nothing.expand(parameter.shape)
        self._ghosts = gone

    def layout(self, unit: int, *, stepped: bool) -> Layout:
        """The same at all workers, with the unit or without it."""
        if (unit, stepped) not in self._layouts:
            parameters = self.parameters[unit]
            kept = [self._kept_of(each) for each in parameters] if stepped else ()
            self._layouts[unit, stepped] = layout_of(parameters, kept)
        return self._layouts[unit, stepped]

    def _trained(self, unit: int) -> list[bool]:
        return [id(each) not in self._frozen for each in self.parameters[unit]]

    def _kept_of(self, parameter: torch.nn.Parameter) -> StateSpec:
        """Nothing of what is frozen, and stays so, or in no group; all of what is frozen for a while."""
        number = self._group_of.get(id(parameter), -1)
        if number < 0 or id(parameter) in self._frozen:
            return StateSpec((), ())
        kind = (number, parameter.dtype, parameter.device)
        if kind not in self._kept:
            self._kept[kind] = kept_by(self.optimizer, number, parameter)
        return self._kept[kind]


def _small(value: torch.Tensor) -> torch.Tensor:
    """The same values; one number in memory where all are the same."""
    first = value.detach().flatten()[:1]
    alike = value.dim() > 0 and bool((value == first).all())
    return first.clone().expand(value.numel()).view(value.shape) if alike else value.detach().clone()


def needs_of(staged: Staged, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The needs of the model and its state: fields of `Ready`."""
    return {"blocks": sizes_of(staged, optimizer), **memory_of(staged.model)}


def sizes_of(staged: Staged, optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    """Bytes of weights and moments of each block; those before and after the blocks count to the nearest."""
    moments = [len(kept_by(optimizer, number).moments) for number in range(len(optimizer.param_groups))]
    kept = {id(each): moments[at] for at, group in enumerate(optimizer.param_groups) for each in group["params"]}
    named, sizes = dict(staged.model.named_parameters()), [0] * len(staged.blocks)
    for unit in staged.units:
        for each in map(named.__getitem__, unit.names):
            at = min(max(unit.stages[0], 0), len(sizes) - 1)
            sizes[at] += each.numel() * each.element_size() * (1 + kept.get(id(each), 0))
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor in a piece of memory."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Of the tensor."""
        return self.shape.numel() * self.dtype.itemsize

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        """As a view of the memory."""
        return memory[self.start : self.start + self.size_bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The place of each tensor of a unit; the same at all workers, from shapes, types and moments alone."""

    weights: tuple[Field, ...]
    kept: tuple[StateSpec, ...]  # of each parameter, by the optimizer, once it has begun with it
    moments: tuple[tuple[str, Field], ...]  # row by row: (name, where), for each parameter that has it
    owners: tuple[int, ...]  # of each moment, the number of its parameter
    counted: Field  # a row for each parameter: 1 if anything is kept of it, and its counters
    size_bytes: int
    gradients: tuple[Field, ...]
    gradient_bytes: int
    came: Field  # behind the gradients: of each one, by how many it was made
    sum_bytes: int

    def counted_of(self, states: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """From the states of an optimizer, a row for each parameter: whether it has a state, and its counters."""
        found = torch.zeros(self.counted.shape, dtype=self.counted.dtype)
        for row, state, kept in zip(found, states, self.kept, strict=False):
            names = [name for name, _ in kept.moments] + [name for name, _, _ in kept.counters]
            row[0] = any(state.get(name) is not None for name in names)
            for at, (name, _, _) in enumerate(kept.counters, 1):
                row[at] = float(state.get(name, 0.0))
        return found

    def counters_in(self, counted: torch.Tensor) -> dict[int, dict[str, torch.Tensor]]:
        """Counterpart: the counters by parameter, where there is a state."""
        found = {}
        for number, (kept, (begun, *row)) in enumerate(zip(self.kept, counted.tolist(), strict=False)):
            if begun:
                pairs = zip(kept.counters, row, strict=False)
                found[number] = {name: torch.tensor(each, dtype=kind) for (name, kind, _), each in pairs}
        return found


def layout_of(parameters: Sequence[torch.Tensor], kept: Sequence[StateSpec] = ()) -> Layout:
    """From parameters in their order, and their optimizer state: none before its first step."""
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
    """The parameters of one unit, which become views of it: from their values, or from memory that was sent.

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
        """The optimizer's moments lie here from now on, in this layout."""
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
        """The optimizer takes the state in this memory, and nothing else."""
        counters = self.layout.counters_in(self.layout.counted.seen_in(self.memory))
        for number, kept in enumerate(self.layout.kept):
            optimizer.state.pop(self.parameters[number], None)
            if number in counters:
                counted = {name: counters[number][name].to(device) for name, _, device in kept.counters}
                optimizer.state[self.parameters[number]] = counted | self._moments[number]

    def counted(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Flags and counters of the optimizer's state, as they are sent."""
        return self.layout.counted_of([optimizer.state.get(each, {}) for each in self.parameters])

    def sent(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """All of the memory, with counters of now."""
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
        """Gradients lie outside, and take no memory here."""
        self.loose, self.gradients = True, self.gradients.new_empty(0)
        self._seen = [None] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def see_gradients(self) -> None:
        """Gradients lie here."""
        if self.loose:
            self.loose = False
            self.gradients = blank(self.layout.sum_bytes, self.gradients.device)
            self._seen = [each.seen_in(self.gradients).data for each in self.layout.gradients]  # writes count for each
        for parameter, gradient, trained in zip(self.parameters, self._seen, self._trained, strict=True):
            if trained and parameter.grad is not gradient:
                parameter.grad = gradient

    def begin_step(self) -> None:
        """Before the first backward of a step."""
        self._ours = None
        if not self.loose:
            self.see_gradients()  # a script may have written `p.grad = None`, as one that freezes does
        self._versions = [] if self.loose else [_version(each) for each in self._seen]

    def tell_which_came(self) -> None:
        """After the last backward: which gradients were made here goes with the sum."""
        if self.loose:
            return
        came = [_version(each) != before for each, before in zip(self._seen, self._versions, strict=True)]
        where = self.layout.came
        if self._told is None or self._told[0] != came:
            self._told = came, torch.tensor(came, dtype=where.dtype, device=self.gradients.device)
        where.seen_in(self.gradients).copy_(self._told[1])
        self._ours = came if came == self._trained else None  # then there is no need to look at the sum

    def without(self) -> list[torch.nn.Parameter]:
        """Parameters without a gradient, here and at all members of the sum."""
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
        """The same, with the flags of which were made."""
        layout = self.layout
        return [] if self.loose else self._summed(layout.sum_bytes, (*layout.gradients, layout.came))

    def _summed(self, size_bytes: int, fields: Sequence[Field]) -> list[torch.Tensor]:
        kinds = {each.dtype for each in fields}
        if len(kinds) == 1:
            return [self.gradients[:size_bytes].view(next(iter(kinds)))]
        return [each.seen_in(self.gradients) for each in fields]


def _version(gradient: torch.Tensor | None) -> int:
    """Counts writes in place, as those of backward."""
    return -1 if gradient is None else times_written(gradient)


def _laid(tensors: Iterable[tuple[torch.Size, torch.dtype]], start: int) -> tuple[tuple[Field, ...], int]:
    """One after the other, each aligned; and their end."""
    found = []
    for shape, dtype in tensors:
        place = Field(start, shape, dtype)
        found.append(place)
        start += -(-place.size_bytes // ALIGN) * ALIGN
    return tuple(found), start


def blank(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Zeroed bytes; on the host in large pages where the system has them.

    A newcomer waits for the first touch of each page: 45 MB in pages of 4 KiB took 25 to 35 ms, of 2 MiB 13 to 17.
    """
    if device.type != "cpu" or size_bytes < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    room = mmap.mmap(-1, size_bytes + LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them: pages as usual
        room.madvise(mmap.MADV_HUGEPAGE)
    found = torch.frombuffer(room, dtype=torch.uint8)
    start = -found.data_ptr() % LARGE_BYTES
    return found[start : start + size_bytes]
