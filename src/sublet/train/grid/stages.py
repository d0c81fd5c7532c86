"""Models that are a sequence of stages: declared by a script, and never cut within a stage.

    model = train.Stages(first, blocks, last)       # first: of the inputs; last: gives the output
    model = nn.Sequential(...)                      # each of its modules is a block

Each stage takes the output of the one before, one tensor or a tuple of tensors, and knows nothing of parts. A *part*
runs some of them, one after the other. The parameters of a stage are a *unit*; those that several stages share (tied
weights) are one unit, which all parts with one of these stages hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sublet.domain.seats import borders
from sublet.errors import InvalidValue
from sublet.wire.messages import NO_PLACE


class Stages(nn.Module):
    """`last(blocks(first(x)))`: called alone it is a module as any other."""

    def __init__(self, first: nn.Module, blocks: Iterable[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last

    def forward(self, x: Any) -> Any:
        """The output of the last stage."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters of one stage, or of those that share them, by their names in the model.

    Stages are counted as blocks are: -1 is before them, and their number after them.
    """

    stages: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks from `low` up to, not including, `high`; the first part also has the stage before, the last that after."""

    low: int
    high: int
    first: bool
    last: bool

    def has(self, unit: Unit) -> bool:
        """Whether one of its stages runs here."""
        return any((at >= self.low or self.first) and (at < self.high or self.last) for at in unit.stages)


def holders(unit: Unit, parts: Sequence[Part]) -> tuple[int, ...]:
    """The parts that have it. Where there are several, gradients are summed over them."""
    return tuple(number for number, part in enumerate(parts) if part.has(unit))


def is_staged(model: Any) -> bool:
    """Whether it is a sequence of stages, with the forward of one."""
    kind: Any = type(model)
    return (isinstance(model, Stages) and kind.forward is Stages.forward and bool(model.blocks)) or (
        isinstance(model, nn.Sequential) and kind.forward is nn.Sequential.forward and bool(len(model))
    )


class Staged:
    """A model of stages, as members of a grid see it: its blocks and its units."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._ends: tuple[nn.Module | None, nn.Module | None] = (None, None)
        if isinstance(model, Stages):
            self._ends, self.blocks = (model.first, model.last), list(model.blocks)
        elif isinstance(model, nn.Sequential):
            self.blocks = list(model)
        else:
            raise InvalidValue("model", type(model).__name__, "train.Stages(first, blocks, last), or an nn.Sequential")
        self.device = next(model.parameters()).device  # of all of it; what is with others says nothing of theirs
        self.units = tuple(self._units())

    def of(self, part: Part) -> Iterator[tuple[int, nn.Module]]:
        """The stages of a part in their order, each with its number."""
        first, last = self._ends
        if part.first and first is not None:
            yield -1, first
        yield from enumerate(self.blocks[part.low : part.high], part.low)
        if part.last and last is not None:
            yield len(self.blocks), last

    def _units(self) -> Iterator[Unit]:
        """In the order of their stages, those of several stages last."""
        everything = Part(0, len(self.blocks), first=True, last=True)
        at: dict[int, list[int]] = {}
        for number, stage in self.of(everything):
            for each in stage.parameters():
                at.setdefault(id(each), []).append(number)
        found: dict[tuple[int, ...], list[str]] = {}
        for name, each in self.model.named_parameters():
            if id(each) not in at:
                raise InvalidValue("model", name, "of parameters that belong to its stages")
            found.setdefault(tuple(dict.fromkeys(at[id(each)])), []).append(name)
        for stages in sorted(found, key=lambda each: (len(each) > 1, each)):
            yield Unit(stages, tuple(found[stages]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A place of a grid. Its number in the mesh is `copy * parts + part`; spare workers with replicas come last."""

    copy: int
    part: int
    copies: int
    parts: tuple[Part, ...]
    keeps: tuple[int, ...] = ()
    world: int = 0  # with spare workers; 0 = there are none

    @property
    def trains(self) -> bool:
        """Whether it has a place."""
        return self.part != NO_PLACE

    @property
    def rank(self) -> int:
        """The number in the mesh, of one that has a place."""
        return self.at(self.copy, self.part)

    def at(self, copy: int, part: int) -> int:
        """The number of another seat."""
        return copy * len(self.parts) + part

    def everyone(self) -> range:
        """All workers that agree on a step."""
        return range(max(self.world, self.copies * len(self.parts)))

    def neighbours(self) -> list[int]:
        """Of our copy, before and after our part: their numbers; none for a spare one."""
        parts = [self.part - 1, self.part + 1] if self.trains else []
        return [self.at(self.copy, part) for part in parts if 0 <= part < len(self.parts)]

    def same_part(self) -> tuple[int, ...]:
        """The numbers of all copies of our part."""
        return tuple(self.at(copy, self.part) for copy in range(self.copies))

    def same_copy(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of these parts in our copy."""
        return tuple(self.at(self.copy, part) for part in parts)


def parts_of(blocks: int, parts: int, ends: Sequence[int] = ()) -> tuple[Part, ...]:
    """Ranges of blocks, as even as possible, or up to these ends."""
    at = borders(blocks, parts, ends)
    return tuple(
        Part(at[number], at[number + 1], first=number == 0, last=number == parts - 1) for number in range(parts)
    )
