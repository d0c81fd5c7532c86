"""One part of a model that knows nothing of parts: each runs the user's own forward, and skips what is not its own.

    cut = Cut(model, "transformer.h")           # the name of the list of blocks, nothing else
    cut.learn(lambda: loss_of(model, batch))    # one run in which nothing is computed
    cut.become(Part(2, 4, first=False, last=False))
    end = cut.run(lambda: loss_of(model, batch), received)   # what goes to the next part, or the loss

Blocks of others, and modules around the blocks whose parameters are of others, answer with zeros of the right shape
that take no memory (`ghosts`). The first own block takes what was received in place of them, and where the first block
of the next part begins, an exception that carries what it would take leaves the forward: so what is computed between
two blocks is computed by the part before. Masks, positions and the like are computed by each part from its own batch,
so one tensor crosses a border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from sublet.errors import InvalidValue
from sublet.train.grid.absent import Absence, Absent, past_the_blocks
from sublet.train.grid.attributes import Attributes
from sublet.train.grid.borders import First, Next, PartEnd, skipped, stopped
from sublet.train.grid.calls import around_calls
from sublet.train.grid.ghosts import Called, Ghost, Heard, Stand
from sublet.train.grid.untouched import untouched

__all__ = ["AFTER", "BEFORE", "Cut", "Ended", "Part", "Unit", "holders"]

BEFORE, AFTER, TIED, LOOSE = "before", "after", "tied", "loose"


@dataclass(frozen=True, slots=True)
class Unit:
    """What is never cut: one block, or what comes before or after all of them. Names are the model's own."""

    kind: str  # BEFORE, AFTER, TIED (in both), LOOSE (nobody knows who needs it) or the number of a block
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks from `low` up to, not including, `high`; the first has what comes before all, the last what follows."""

    low: int
    high: int
    first: bool
    last: bool

    def has(self, unit: Unit) -> bool:
        """What of a model is its own."""
        match unit.kind:
            case "before":
                return self.first
            case "after":
                return self.last
            case "tied":
                return self.first or self.last
            case "loose":
                return True
            case block:
                return self.low <= int(block) < self.high


@dataclass(frozen=True, slots=True)
class Ended:
    """What a part's forward came to: for the next part, or, at the last part, what the user's function returned."""

    value: Any
    last: bool


def holders(unit: Unit, parts: Sequence[Part]) -> tuple[int, ...]:
    """Which parts have it. Where there are several, gradients are summed over them."""
    return tuple(number for number, part in enumerate(parts) if part.has(unit))


class Cut:
    """The model, as one part of it runs. It is whole again after `restore`."""

    def __init__(self, model: nn.Module, blocks: str) -> None:
        self.model, self.name, self.absence = model, blocks, Absence()
        try:
            found = model.get_submodule(blocks)
        except AttributeError as error:
            lists = [name for name, each in model.named_modules() if isinstance(each, nn.ModuleList)]
            raise InvalidValue("blocks", blocks, f"the name of a list of blocks: {', '.join(lists)}") from error
        if not isinstance(found, nn.ModuleList | nn.Sequential) or not len(found):
            raise InvalidValue("blocks", blocks, "an nn.ModuleList or nn.Sequential that is not empty")
        self._list: nn.ModuleList | nn.Sequential = found
        self.blocks: list[nn.Module] = list(found)
        self._received: torch.Tensor | None = None
        self._part: Part | None = None
        self._watched: list[Callable[[], None]] = []
        self._enter: Callable[[int], None] = _nobody
        self._leave: Callable[[int], None] = _nobody
        self._own = False  # ghosts of blocks have memory of their own
        self._answers: dict[int, dict[Any, Any]] = {}  # of ghosts, by the module
        self._left_by = Attributes()  # ghosts
        self._around: dict[str, nn.Module] = {}  # modules outside of the blocks that have parameters of their own
        self._sides: dict[str, frozenset[str]] = {}  # of the blocks on which each of them runs, or its weights are used
        self.units: tuple[Unit, ...] = ()
        self._weights: dict[str, nn.Parameter] = {}
        inside = {id(each) for block in self.blocks for each in block.modules()}
        for name, each in model.named_modules(remove_duplicate=False):
            if (
                name
                and id(each) not in inside
                and each is not found
                and not isinstance(each, nn.ParameterList | nn.ParameterDict)  # which nobody calls: all have them
                and any(True for _ in each.parameters(recurse=False))
            ):
                self._around[name] = each
        self._places: dict[int, int] = {}  # a number for each module, whose dice it is
        for each in (*self.blocks, *self._around.values()):
            self._places.setdefault(id(each), len(self._places))

    def learn(self, call: Callable[[], Any]) -> None:
        """Which modules run before the blocks, and which after: `call` runs the model once, and nothing is computed.

        Where what blocks give is written into, ghosts need memory of their own; where the forward needs numbers to go
        on, it is computed after all, and nothing of it is left.
        """
        seen: dict[str, set[str]] = {}
        for own, answers in ((False, self.ghost), (True, self.ghost), (True, _itself)):
            self._own = own
            try:
                with untouched(self.model.modules()):
                    seen = self._listened(call, answers)
            except Exception as error:
                if answers is not _itself:
                    continue
                if not isinstance(error, InvalidValue):
                    with untouched(self.model.modules()), torch.no_grad():
                        call()  # it may fail by itself
                    raise stopped(error) from error
                raise
            else:
                break
        self._sides = {name: frozenset(sides).union(*_around(name, seen)) for name, sides in seen.items()}
        self.units = tuple(self._units())
        self._weights = dict(self.model.named_parameters())

    def _listened(self, call: Callable[[], Any], answers: Callable[[nn.Module], nn.Module]) -> dict[str, set[str]]:
        began, seen = False, dict[str, set[str]]()

        def heard(name: str) -> None:
            seen.setdefault(name, set()).add(AFTER if began else BEFORE)

        def begun(block: nn.Module, *args: Any, **facts: Any) -> Any:
            nonlocal began
            began = True
            return answers(block)(*args, **facts)

        with (
            self.replaced(
                lambda name, module: Heard(module, partial(heard, name), answers(module)),
                lambda _, block: Called(block, partial(begun, block)),
            ),
            torch.no_grad(),
        ):
            call()
        return seen

    @contextmanager
    def replaced(
        self, around: Callable[[str, nn.Module], nn.Module], block: Callable[[int, nn.Module], nn.Module]
    ) -> Iterator[None]:
        """With others in place of the blocks, and of the modules around them; all of the model afterwards."""
        for name, module in self._around.items():
            self._put(name, around(name, module))
        for number, each in enumerate(self.blocks):
            self._list[number] = block(number, each)
        try:
            yield
        finally:
            self.restore()

    def become(self, part: Part) -> None:
        """From now on the model is this part of itself."""
        self.restore()
        self._part = part
        self.absence.only(self._names_of(unit for unit in self.units if not part.has(unit)))
        for number, block in enumerate(self.blocks):
            if number == part.high:
                self._list[number] = Next(block, number)
            elif not part.low <= number < part.high:
                self._list[number] = self.ghost(block, f"{self.name}.{number}", behind=number > part.high)
            elif number == part.low and not part.first:
                self._list[number] = First(block, self.take_received)
        for name, sides in self._sides.items():
            if not (BEFORE in sides and part.first) and not (AFTER in sides and part.last):
                self._put(name, self.ghost(self._around[name], name, behind=AFTER in sides))
        self._left_by.spare = {id(each) for each in self.real()}

    def sit_out(self) -> None:
        """From now on none of it is here: a spare computes nothing."""
        self.restore()
        self.absence.only(self._weights)

    def ghost(self, module: nn.Module, name: str = "", *, behind: bool = False) -> nn.Module:
        """In place of it; dice are thrown when it has answered, as if it had run.

        What comes before the blocks may be written into. Where the model is a part, answers are known as such, and who
        is `behind` it is never asked: the forward has ended.
        """
        own = self._own or not any(module is block for block in self.blocks)
        mark = _itself if self._part is None else partial(self._answered, self._part, name, behind)
        seen, keep = self._answers.setdefault(id(module), {}), self._left_by.put if self._part is not None else _nothing
        return Ghost(module, seen, partial(self._over, module), own=own, mark=mark, keep=keep)

    def watch(self, enter: Callable[[int], None], leave: Callable[[int], None]) -> None:
        """Call `enter` before each block of ours with the block's number, and with one more after the last of all.

        And `leave` after each other one, and after each module around them, with a number of its own, whether it is
        ours or not. So dice can be thrown alike in every grid.
        """
        self._enter, self._leave = enter, leave
        numbers = {id(block): number for number, block in reversed([*enumerate(self.blocks)])}
        for module in {id(each): each for each in (*self.blocks, *self._around.values())}.values():
            before = partial(self._began, numbers[id(module)]) if id(module) in numbers else None
            self._watched.append(around_calls(module, before, self._over))

    def close(self) -> None:
        """All of the model, and nobody watches it: its dice are the script's. Weights of others stay so."""
        self._put_all_back()
        for undo in self._watched:
            undo()
        self._watched, self._enter, self._leave = [], _nobody, _nobody

    def run(self, call: Callable[[], Any], received: torch.Tensor | None = None) -> Ended:
        """The user's function, in which the model is this part; `received` is what the part before has made."""
        part = self._part
        self.hold(received)
        self.absence.begin()
        if received is not None:
            self.absence.cast()
        try:
            ended = Ended(call(), last=True)
        except PartEnd as end:
            ended = Ended(end.value, last=False)
        finally:
            taken = self._received is None
            self.hold(None)
            self.absence.end()
        self.absence.check()
        if part is not None and not taken:
            raise skipped(part.low)
        if part is not None and ended.last != part.last:
            raise skipped(part.high)
        if isinstance(ended.value, Absent):
            raise past_the_blocks(ended.value, "the loss")
        return ended

    def restore(self) -> None:
        """All of the model, and its weights."""
        self._put_all_back()
        self.absence.clear()

    def _put_all_back(self) -> None:
        self._part = None
        self._left_by.put_back()
        for number, block in enumerate(self.blocks):
            self._list[number] = block
        for name, module in self._around.items():
            self._put(name, module)

    def real(self) -> Iterator[nn.Module]:
        """Modules that compute here: all but those of others."""
        left, seen = [self.model], set[int]()
        while left:
            each = left.pop()
            if isinstance(each, First):
                each = each.__dict__["sublet.inner"]
            if id(each) not in seen and not isinstance(each, Stand):
                seen.add(id(each))
                yield each
                left += each.children()

    def hold(self, received: torch.Tensor | None) -> None:
        """What a part's first block takes; also where it runs once more in a backward pass (activation checkpointing).

        None if nothing is to be taken any more.
        """
        self._received, self.absence.shadow = received, received is not None
        if received is None:
            self.absence.lift()

    def take_received(self) -> torch.Tensor:
        """By the first block of a part."""
        if self._received is None:
            raise InvalidValue(
                "received", None, "what the part before has made: the model was called twice in one pass"
            )
        received = self._received
        self.hold(None)
        return received

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """For whoever needs all modules for a moment; weights stay where they are."""
        kept = (
            [self._list[number] for number in range(len(self.blocks))],
            {name: self.model.get_submodule(name) for name in self._around},
        )
        part = self._part
        self._put_all_back()
        try:
            yield self.model
        finally:
            self._part = part
            for number, block in enumerate(kept[0]):
                self._list[number] = block
            for name, module in kept[1].items():
                self._put(name, module)

    def _units(self) -> Iterator[Unit]:
        """Each parameter once, by the first of its names."""
        sides: dict[int, set[str]] = {}
        names: dict[int, str] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), name)
            sides.setdefault(id(parameter), set()).update(self._sides_of(name))
        found: dict[str, list[str]] = {}
        for each, name in names.items():
            found.setdefault(_kind(sides[each]), []).append(name)
        order = [BEFORE, *map(str, range(len(self.blocks))), AFTER, TIED, LOOSE]
        for kind in order:
            if kind in found:
                yield Unit(kind, tuple(found[kind]))

    def _sides_of(self, name: str) -> frozenset[str]:
        module = self.model.get_submodule(name.rpartition(".")[0])
        inside = {
            str(number) for number, block in enumerate(self.blocks) if any(each is module for each in block.modules())
        }
        if inside:  # of several, where they share it
            return frozenset(inside)
        return frozenset[str]().union(*_around(name, self._sides)) or frozenset({LOOSE})

    def side_of(self, path: str) -> str:
        """BEFORE or AFTER the blocks, of a module outside of them that runs on one side alone; empty for all others."""
        sides = self._sides.get(path, frozenset[str]()).union(*_around(path, self._sides))
        return next(iter(sides)) if len(sides) == 1 else ""

    def _names_of(self, units: Iterable[Unit]) -> dict[str, nn.Parameter]:
        return {name: self._weights[name] for unit in units for name in unit.names}

    def _answered(self, part: Part, name: str, behind: bool, answer: torch.Tensor) -> torch.Tensor:  # noqa: FBT001 - ours
        if behind and not part.last and not self.absence.shadow:
            raise skipped(part.high)
        return self.absence.answered(answer, name)

    def _began(self, number: int, *_: Any) -> None:
        if not Ghost.looking:
            self._enter(number)

    def _over(self, module: nn.Module) -> None:
        if Ghost.looking:
            return
        if module is self.blocks[-1]:
            self._enter(len(self.blocks))
        else:
            self._leave(self._places[id(module)])

    def _put(self, name: str, module: nn.Module) -> None:
        head, _, leaf = name.rpartition(".")
        self.model.get_submodule(head)._modules[leaf] = module  # noqa: SLF001 - a dictionary of modules has no setattr


def _itself(same: Any) -> Any:
    return same


def _nobody(_: int) -> None:
    """Watches."""


def _nothing(*_: Any) -> None:
    """Is kept."""


def _around(name: str, sides: Mapping[str, Iterable[str]]) -> Iterator[frozenset[str]]:
    """Where modules run that it is in: it runs there too."""
    while name := name.rpartition(".")[0]:
        yield frozenset(sides.get(name, ()))


def _kind(sides: set[str]) -> str:
    if len(sides) == 1:
        return next(iter(sides))
    return TIED if sides == {BEFORE, AFTER} else LOOSE
