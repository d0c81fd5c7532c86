"""The units that a worker holds: arenas, the optimizer over just these, and what others get of them.

Whatever it does not hold takes no memory: its parameters keep their shape, as one number that is seen many times.

The optimizer's counters are known to all, though a worker may have nothing but frozen units: one number stands in then
for what is trained elsewhere, with a gradient of zero, and the optimizer counts its steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from sublet.train.elementwise import kept_by
from sublet.train.grid.absent import plainly, present
from sublet.train.grid.arena import Arena, Layout, layout_of
from sublet.train.grid.cutting import Unit
from sublet.train.grid.guard import Held, Moments
from sublet.train.grid.pages import blank

__all__ = ["Holdings", "sizes_of"]


class Holdings:
    """Of one worker. All parameters of the model are in exactly one unit."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, units: Sequence[Unit]) -> None:
        named = dict(model.named_parameters())
        self.parameters = [[named[name] for name in unit.names] for unit in units]
        self.optimizer = optimizer
        self.groups = [list(group["params"]) for group in optimizer.param_groups]  # all of them, whoever holds them
        everything = [each for group in self.groups for each in group]
        self.indices = {id(each): index for index, each in enumerate(everything)}  # as in the optimizer's state_dict
        self._moments, self._counter_names = _kept_by(optimizer)
        self._group_of = {id(each): number for number, group in enumerate(self.groups) for each in group}
        for unit in self.parameters:
            for each in unit:
                if each.requires_grad and id(each) not in self._group_of:
                    self._group_of[id(each)] = -1  # no group has it: it is never changed
        self.arenas: dict[int, Arena] = {}
        self.counters: dict[str, torch.Tensor] = {}  # of the optimizer, the same for all parameters
        self._ghosts: set[int] = set()  # units that take no memory
        self._cleared = True  # gradients are zero: nothing was added to them since
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._moments_in: dict[int, list[tuple[str, ...]]] = {}
        self._stand_in = torch.nn.Parameter(torch.zeros(1, device=self.device))
        self._stand_in.grad = torch.zeros_like(self._stand_in)
        self._begun = bool(optimizer.state)  # it has moments before its first step, as most have not

    @property
    def device(self) -> torch.device:
        """Where the units are."""
        return self.parameters[0][0].device

    @property
    def counter_names(self) -> tuple[str, ...]:
        """Of the optimizer, in an order that all workers have."""
        return self._counter_names

    def size_bytes(self, unit: int, *, stepped: bool) -> int:
        """Of what is sent."""
        return self.layout(unit, stepped=stepped).size_bytes

    def make(self, units: Iterable[int]) -> None:
        """From the weights that the model was built with: nobody has trained yet."""
        for unit in units:
            self.arenas[unit] = Arena(self.parameters[unit])
        self._hold(self.arenas)

    def expect(self, unit: int, *, stepped: bool) -> torch.Tensor:
        """Memory for a unit that comes; `take` when it has."""
        return blank(self.size_bytes(unit, stepped=stepped), self.device)

    def take(self, came: Mapping[int, torch.Tensor], keep: Iterable[int], *, stepped: bool) -> None:
        """What came, and of what we had, `keep`; the rest is let go."""
        wanted = set(keep)
        for unit, memory in came.items():
            self.arenas[unit] = Arena(self.parameters[unit], (self.layout(unit, stepped=stepped), memory))
        for unit in [each for each in self.arenas if each not in wanted]:
            del self.arenas[unit]
        self._hold(came.keys() & self.arenas.keys())

    def gradients(self, unit: int) -> list[torch.Tensor]:
        """In as few tensors as there are types, in the order of the parameters."""
        arena = self.arenas[unit]
        if arena.loose:
            return [each.grad for each in arena.parameters if each.grad is not None]
        kinds = {each.dtype for each in arena.layout.gradients}
        if len(kinds) == 1:
            return [arena.gradients.view(next(iter(kinds)))]
        return [each.seen_in(arena.gradients) for each in arena.layout.gradients]

    def loosen(self, units: Iterable[int]) -> None:
        """Gradients that nobody else needs lie outside of the arena: the first backward makes them, and adds nothing.

        Until this is said anew.
        """
        loose = frozenset(units)
        for unit, arena in self.arenas.items():
            if unit in loose:
                arena.loosen_gradients()
            else:
                arena.see_gradients()
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """All zero."""
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
        """From now on there may be something in the gradients."""
        self._cleared = False

    def step(self, own: Collection[int] = ()) -> None:
        """The optimizer's, over what we hold; what took no part in the step has a gradient of zero.

        All but our `own` units we keep for others.
        """
        for arena in self.arenas.values():
            for parameter in arena.parameters if arena.loose else ():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        kept = [each for unit, arena in self.arenas.items() if unit not in own for each in arena.parameters]
        with present(kept), self._updated():
            self.optimizer.step()
        for unit, arena in self.arenas.items():
            arena.adopt(self.optimizer, self._moments_of(unit))
        self.counters = self._counters()

    @contextmanager
    def _updated(self) -> Iterator[None]:
        """Whoever has written the optimizer may go through what it updates."""
        groups = [group["params"] for group in self.optimizer.param_groups]
        partial = [each for each in (*groups, self.optimizer.state) if isinstance(each, Held | Moments)]
        for each in partial:
            each.updates = True
        try:
            yield
        finally:
            for each in partial:
                each.updates = False

    def _counters(self) -> dict[str, torch.Tensor]:
        held = [parameter for arena in self.arenas.values() for parameter in arena.parameters]
        for parameter in [*held, self._stand_in]:
            state = self.optimizer.state.get(parameter)
            if state:
                return {name: state[name].clone() for name in self._counter_names if name in state}
        return {}

    def _hold(self, new: Iterable[int]) -> None:
        """The optimizer has what we hold, and nothing else; it does not know of the `new` ones yet."""
        held = {id(parameter) for arena in self.arenas.values() for parameter in arena.parameters}
        partial = len(self.arenas) < len(self.parameters)
        if partial != isinstance(self.optimizer.state, Moments):
            self.optimizer.state = (Moments if partial else defaultdict)(dict, self.optimizer.state)
        state = self.optimizer.state
        for parameter in [each for each in state if id(each) not in held]:
            del state[parameter]
        for group, everything in zip(self.optimizer.param_groups, self.groups, strict=True):
            ours = [each for each in everything if id(each) in held]
            group["params"] = ours if len(ours) == len(everything) else Held(ours)
        for arena in [self.arenas[unit] for unit in new]:
            for owner in set(arena.layout.owners):
                parameter = arena.parameters[owner]
                device = self._counts_on(parameter)
                counted = {name: value.to(device, copy=True) for name, value in self.counters.items()}
                state.setdefault(parameter, {}).update(counted)
            arena.hand_to(self.optimizer)
        if not any(each.requires_grad for group in self.optimizer.param_groups for each in group["params"]):
            self._stand_in_for_others()
        gone = {unit for unit in range(len(self.parameters)) if unit not in self.arenas}
        for parameter in [each for unit in gone - self._ghosts for each in self.parameters[unit]]:
            parameter.grad = None
            with plainly():
                parameter.data = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        self._ghosts = gone

    def _stand_in_for_others(self) -> None:
        """We train nothing: what the optimizer counts, it counts with this."""
        group, state = self.optimizer.param_groups[0], dict[str, torch.Tensor]()
        if self.counters or self._begun:
            device = self._counts_on(self._stand_in)
            counters = self.counters or {name: torch.tensor(0.0) for name in self._counter_names}
            state = {name: torch.zeros_like(self._stand_in) for name in self._moments[0]}
            state |= {name: value.to(device, copy=True) for name, value in counters.items()}
        self.optimizer.state[self._stand_in] = state
        group["params"] = Held([*group["params"], self._stand_in])

    def _counts_on(self, parameter: torch.Tensor) -> torch.device:
        """Where its optimizer wants a counter: kernels that do a whole update read it on the GPU."""
        group = self.optimizer.param_groups[self._group_of.get(id(parameter), 0)]
        return parameter.device if group.get("fused") or group.get("capturable") else torch.device("cpu")

    def layout(self, unit: int, *, stepped: bool) -> Layout:
        """The same at all workers, whether they hold the unit or not."""
        found = self._layouts.get((unit, stepped))
        if found is None:
            found = self._layouts[unit, stepped] = self._laid_out(unit, stepped=stepped)
        return found

    def _laid_out(self, unit: int, *, stepped: bool) -> Layout:
        parameters = self.parameters[unit]
        if not stepped:
            return layout_of(parameters, [()] * len(parameters))
        names = self._moments_of(unit)
        return layout_of(
            parameters,
            [tuple((name, each.dtype) for name in found) for each, found in zip(parameters, names, strict=True)],
        )

    def _moments_of(self, unit: int) -> list[tuple[str, ...]]:
        """Names, of each of its parameters: none of what is frozen, and stays so."""
        if unit not in self._moments_in:
            self._moments_in[unit] = [
                self._moments[self._group_of.get(id(each), -1)] if each.requires_grad else ()
                for each in self.parameters[unit]
            ]
        return self._moments_in[unit]


def sizes_of(
    model: torch.nn.Module, blocks: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer
) -> tuple[int, ...]:
    """Bytes of the state of each block: weights and moments.

    What the model names before its first block counts to that, and the rest to the last: nothing has run yet that
    would tell more.
    """
    moments, _ = _kept_by(optimizer)
    kept = {id(each): len(moments[at]) for at, group in enumerate(optimizer.param_groups) for each in group["params"]}
    where = {id(each): number for number, block in enumerate(blocks) for each in block.parameters()}
    sizes, last = [0] * len(blocks), len(blocks) - 1
    begun = False
    for parameter in model.parameters():
        begun |= id(parameter) in where
        number = where.get(id(parameter), last if begun else 0)
        sizes[number] += parameter.numel() * parameter.element_size() * (1 + kept.get(id(parameter), 0))
    return tuple(sizes)


def _kept_by(optimizer: torch.optim.Optimizer) -> tuple[dict[int, tuple[str, ...]], tuple[str, ...]]:
    """What it keeps in the shape of a parameter, by the number of the group, and its counters."""
    found: dict[int, tuple[str, ...]] = {-1: ()}
    counters: set[str] = set()
    for number in range(len(optimizer.param_groups)):
        kept = kept_by(optimizer, number)
        found[number] = tuple(name for name, _ in kept.moments)
        counters.update(name for name, _, _ in kept.counters)
    return found, tuple(sorted(counters))
