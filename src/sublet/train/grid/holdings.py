"""The units that a worker holds: arenas, the optimizer over just these, and what others get of them.

Whatever it does not hold takes no memory: its parameters keep their shape, as one number that is seen many times. It is
not a number (NaN), so that whatever a script computes of weights that are elsewhere is none either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from sublet.train.grid.arena import Arena, Layout, blank, layout_of
from sublet.train.grid.stages import Staged, Unit
from sublet.train.numerics.elementwise import Kept, kept_by

__all__ = ["Holdings", "sizes_of"]


class Holdings:
    """Of one worker. All parameters of the model are in exactly one unit."""

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
        self.groups = [list(group["params"]) for group in optimizer.param_groups]  # all of them, whoever holds them
        everything = [each for group in self.groups for each in group]
        self.indices = {id(each): index for index, each in enumerate(everything)}  # as in the optimizer's state_dict
        for number in range(len(optimizer.param_groups)):
            kept_by(optimizer, number)  # or it is refused
        self._group_of = {id(each): number for number, group in enumerate(self.groups) for each in group}
        self._frozen = frozenset(map(id, frozen))  # for good; `requires_grad` of now would differ from worker to worker
        self.arenas: dict[int, Arena] = {}
        self._ghosts: set[int] = set()  # units that take no memory
        self._cleared = True  # gradients are zero: nothing was added to them since
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._kept: dict[tuple[int, torch.dtype, torch.device], Kept] = {}

    @property
    def device(self) -> torch.device:
        """Where the units are."""
        return self.parameters[0][0].device

    def size_bytes(self, unit: int, *, stepped: bool) -> int:
        """Of what is sent."""
        return self.layout(unit, stepped=stepped).size_bytes

    def make(self, units: Iterable[int]) -> None:
        """From the weights that the model was built with: nobody has trained yet."""
        for unit in units:
            self.arenas[unit] = Arena(self.parameters[unit], trained=self._trained(unit))
        self._hold(self.arenas)

    def expect(self, unit: int, *, stepped: bool) -> torch.Tensor:
        """Memory for a unit that comes; `take` when it has."""
        return blank(self.size_bytes(unit, stepped=stepped), self.device)

    def take(self, came: Mapping[int, torch.Tensor], keep: Iterable[int], *, stepped: bool) -> None:
        """What came, and of what we had, `keep`; the rest is let go."""
        wanted = set(keep)
        for unit, memory in came.items():
            sent = self.layout(unit, stepped=stepped), memory
            self.arenas[unit] = Arena(self.parameters[unit], sent, trained=self._trained(unit))
        for unit in [each for each in self.arenas if each not in wanted]:
            del self.arenas[unit]
        self._hold(came.keys() & self.arenas.keys())

    def sent(self, unit: int) -> torch.Tensor:
        """As another takes it."""
        return self.arenas[unit].sent(self.optimizer)

    def counted(self, unit: int) -> torch.Tensor:
        """What the optimizer has counted of it: a row for each parameter, as `layout.counted` says."""
        return self.arenas[unit].counted(self.optimizer)

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
        for arena in self.arenas.values():
            arena.begin_step()

    def step(self) -> None:
        """The optimizer's, over what we hold; what took no part in the step, at anybody, has no gradient, as ever."""
        for each in [each for arena in self.arenas.values() for each in arena.without()]:
            each.grad = None  # an optimizer would move it by a zero, too, and count a step; `begin_step` sees it again
        self.optimizer.step()
        for unit, arena in self.arenas.items():
            arena.adopt(self.optimizer, self.layout(unit, stepped=True))

    def _hold(self, new: Iterable[int]) -> None:
        """The optimizer has what we hold, and nothing else; it does not know of the `new` ones yet."""
        held = {id(parameter) for arena in self.arenas.values() for parameter in arena.parameters}
        state = self.optimizer.state
        for parameter in [each for each in state if id(each) not in held]:
            del state[parameter]
        for group, everything in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [each for each in everything if id(each) in held]
        for arena in [self.arenas[unit] for unit in new]:
            arena.hand_to(self.optimizer)
        gone = {unit for unit in range(len(self.parameters)) if unit not in self.arenas}
        for parameter in [each for unit in gone - self._ghosts for each in self.parameters[unit]]:
            parameter.grad = None
            nothing = parameter.detach().new_full((), math.nan if parameter.is_floating_point() else 0)
            parameter.data = nothing.expand(parameter.shape)
        self._ghosts = gone

    def layout(self, unit: int, *, stepped: bool) -> Layout:
        """The same at all workers, whether they hold the unit or not."""
        if (unit, stepped) not in self._layouts:
            parameters = self.parameters[unit]
            kept = [self._kept_of(each) for each in parameters] if stepped else ()
            self._layouts[unit, stepped] = layout_of(parameters, kept)
        return self._layouts[unit, stepped]

    def _trained(self, unit: int) -> list[bool]:
        return [id(each) not in self._frozen for each in self.parameters[unit]]

    def _kept_of(self, parameter: torch.nn.Parameter) -> Kept:
        """Nothing of what is frozen, and stays so, or in no group; all of what is frozen for a while."""
        number = self._group_of.get(id(parameter), -1)
        if number < 0 or id(parameter) in self._frozen:
            return Kept((), ())
        kind = (number, parameter.dtype, parameter.device)
        if kind not in self._kept:
            self._kept[kind] = kept_by(self.optimizer, number, parameter)
        return self._kept[kind]


def sizes_of(staged: Staged, optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    """Bytes of the state of each block, weights and moments; what is before and after them counts to the next one."""
    moments = [len(kept_by(optimizer, number).moments) for number in range(len(optimizer.param_groups))]
    kept = {id(each): moments[at] for at, group in enumerate(optimizer.param_groups) for each in group["params"]}
    named, sizes = dict(staged.model.named_parameters()), [0] * len(staged.blocks)
    for unit in staged.units:
        for each in map(named.__getitem__, unit.names):
            at = min(max(unit.stages[0], 0), len(sizes) - 1)
            sizes[at] += each.numel() * each.element_size() * (1 + kept.get(id(each), 0))
    return tuple(sizes)
