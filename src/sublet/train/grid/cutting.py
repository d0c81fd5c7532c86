"""One part of a model that knows nothing of parts: each runs the user's own forward, and skips what is not its own.

    cut = Cut(model, "transformer.h")           # the name of the list of blocks, nothing else
    cut.learn(lambda: loss_of(model, batch))    # one run in which nothing is computed
    cut.become(Part(2, 4, first=False, last=False))
    end = cut.run(lambda: loss_of(model, batch), received)   # what goes to the next part, or the loss

Blocks of others, and modules around the blocks whose parameters are of others, answer with zeros of the right shape
that take no memory. The first own block takes what was received in place of them, and the last own one leaves the
forward, by an exception that carries what it made. Masks, positions and the like are computed by each part from its own
batch, so one tensor crosses a border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map

from sublet.errors import InvalidValue

__all__ = ["AFTER", "BEFORE", "Cut", "Ended", "Ghost", "Part", "Unit", "holders"]

BEFORE, AFTER, TIED, LOOSE = "before", "after", "tied", "loose"


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks from `low` up to, not including, `high`; the first has what comes before all, the last what follows."""

    low: int
    high: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Unit:
    """What is never cut: one block, or what comes before or after all of them. Names are the model's own."""

    kind: str  # BEFORE, AFTER, TIED (in both), LOOSE (nobody knows who needs it) or the number of a block
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a part's forward came to: for the next part, or, at the last part, what the user's function returned."""

    value: Any
    last: bool


def holders(unit: Unit, parts: Sequence[Part]) -> tuple[int, ...]:
    """Which parts have it. Where there are several, gradients are summed over them."""
    match unit.kind:
        case "before":
            return (0,)
        case "after":
            return (len(parts) - 1,)
        case "tied":
            return (0,) if len(parts) == 1 else (0, len(parts) - 1)
        case "loose":
            return tuple(range(len(parts)))
        case block:
            return tuple(number for number, part in enumerate(parts) if part.low <= int(block) < part.high)


class _PartEnd(BaseException):
    """Leaves the user's forward; no `except Exception` there keeps it."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value


class Cut:
    """The model, as one part of it runs. It is whole again after `restore`."""

    def __init__(self, model: nn.Module, blocks: str) -> None:
        self.model = model
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
        self._watched: list[Any] = []
        self._around: dict[str, nn.Module] = {}  # modules outside of the blocks that have parameters of their own
        self._sides: dict[str, frozenset[str]] = {}  # of the blocks on which each of them runs, or its weights are used
        self.units: tuple[Unit, ...] = ()
        inside = {id(each) for block in self.blocks for each in block.modules()}
        for name, each in model.named_modules(remove_duplicate=False):
            if (
                name
                and id(each) not in inside
                and each is not found
                and any(True for _ in each.parameters(recurse=False))
            ):
                self._around[name] = each

    def learn(self, call: Callable[[], Any]) -> None:
        """Which modules run before the blocks, and which after: `call` runs the model once, and nothing is computed."""
        began, seen = False, dict[str, set[str]]()

        def heard(name: str) -> None:
            seen.setdefault(name, set()).add(AFTER if began else BEFORE)

        def begin() -> None:
            nonlocal began
            began = True

        with (
            self.replaced(
                lambda name, module: _Heard(module, partial(heard, name)), lambda _, block: Ghost(block, begin)
            ),
            torch.no_grad(),
        ):
            call()
        self._sides = {name: frozenset(sides) for name, sides in seen.items()}
        self.units = tuple(self._units())

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
        for number, block in enumerate(self.blocks):
            if not part.low <= number < part.high:
                self._list[number] = Ghost(block)
            else:
                takes = number == part.low and not part.first
                ends = number == part.high - 1 and not part.last
                if takes or ends:
                    self._list[number] = _Edge(block, self, takes=takes, ends=ends)
        for name, sides in self._sides.items():
            if not (BEFORE in sides and part.first) and not (AFTER in sides and part.last):
                self._put(name, Ghost(self._around[name]))

    def watch(self, begin: Callable[[int], None]) -> None:
        """Call it before each block of ours with the block's number, and with one more after the last of all.

        So a unit's dice can be thrown alike in every grid.
        """

        def entered(number: int, *_: Any) -> None:
            begin(number)

        for number, block in enumerate(self.blocks):
            self._watched.append(block.register_forward_pre_hook(partial(entered, number)))
        self._watched.append(self.blocks[-1].register_forward_hook(partial(entered, len(self.blocks))))

    def close(self) -> None:
        """All of the model, and nobody watches it: its dice are the script's again."""
        self.restore()
        for each in self._watched:
            each.remove()
        self._watched = []

    def run(self, call: Callable[[], Any], received: torch.Tensor | None = None) -> Ended:
        """The user's function, in which the model is this part; `received` is what the part before has made."""
        self._received = received
        try:
            return Ended(call(), last=True)
        except _PartEnd as end:
            return Ended(end.value, last=False)
        finally:
            self._received = None

    def restore(self) -> None:
        """All of the model."""
        for number, block in enumerate(self.blocks):
            self._list[number] = block
        for name, module in self._around.items():
            self._put(name, module)

    def hold(self, received: torch.Tensor | None) -> None:
        """What a part's first block takes, where it runs once more in a backward pass (activation checkpointing)."""
        self._received = received

    def take_received(self) -> torch.Tensor:
        """By the first block of a part."""
        if self._received is None:
            raise InvalidValue(
                "received", None, "what the part before has made: the model was called twice in one pass"
            )
        received, self._received = self._received, None
        return received

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """For whoever needs all of it for a moment."""
        kept = (
            [self._list[number] for number in range(len(self.blocks))],
            {name: self.model.get_submodule(name) for name in self._around},
        )
        self.restore()
        try:
            yield self.model
        finally:
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
        return self._sides.get(name.rpartition(".")[0], frozenset({LOOSE}))

    def _put(self, name: str, module: nn.Module) -> None:
        head, _, leaf = name.rpartition(".")
        self.model.get_submodule(head)._modules[leaf] = module  # noqa: SLF001 - a dictionary of modules has no setattr


def _kind(sides: set[str]) -> str:
    if len(sides) == 1:
        return next(iter(sides))
    return TIED if sides == {BEFORE, AFTER} else LOOSE


class _Stand(nn.Module):
    """In place of another module, whose parameters are none of the model's meanwhile; its attributes are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.__dict__["inner"] = inner
        self.train(inner.training)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch has it
        self.__dict__["inner"].train(mode)
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)


class Ghost(_Stand):
    """A module of another part: right shapes, no work, no memory."""

    def __init__(self, inner: nn.Module, heard: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self.__dict__["heard"], self.__dict__["seen"] = heard, {}

    def forward(self, *args: Any, **facts: Any) -> Any:
        """As the module's own."""
        if self.__dict__["heard"] is not None:
            self.__dict__["heard"]()
        return _made_of_nothing(self.__dict__["inner"], self.__dict__["seen"], args, facts)


class _Heard(Ghost):
    """Also tells of parameters that others read: `x @ self.embed.weight.T` runs the embedding no second time."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, nn.Parameter):
            self.__dict__["heard"]()
        return found


class _Edge(_Stand):
    """The first block of a part, or the last."""

    def __init__(self, inner: nn.Module, cut: Cut, *, takes: bool, ends: bool) -> None:
        super().__init__(inner)
        self.__dict__["cut"], self.__dict__["takes"], self.__dict__["ends"] = cut, takes, ends

    def forward(self, *args: Any, **facts: Any) -> Any:
        if self.__dict__["takes"]:
            received = self.__dict__["cut"].take_received()
            if args:
                args = (received, *args[1:])
            else:
                facts = {**facts, next(iter(facts)): received}
        out = self.__dict__["inner"](*args, **facts)
        if self.__dict__["ends"]:
            raise _PartEnd(out[0] if isinstance(out, tuple) else out)
        return out


def _made_of_nothing(module: nn.Module, seen: dict[Any, Any], args: Any, facts: Any) -> Any:
    """What the module would return, as zeros; remembered by the shapes of what it gets, and apart for evaluations."""
    flat, form = tree_flatten((args, facts))
    key = (tuple(map(_shape_of, flat)), str(form), module.training)
    if any(isinstance(each, _Unknown) for each in key[0]):  # what it does may change, and its number may be another's
        seen = {}
    if key not in seen:
        state = {name: each.detach().to("meta") for name, each in module.named_parameters(remove_duplicate=False)}
        state |= {name: each.to("meta") for name, each in module.named_buffers(remove_duplicate=False)}
        with torch.no_grad():
            made = functional_call(module, state, tree_map(_to_meta, args), tree_map(_to_meta, facts))
        seen[key] = made
    devices = {each.device for each in flat if isinstance(each, torch.Tensor)}
    return tree_map(lambda each: _zeros(each, devices), seen[key])


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return value if isinstance(value, int | float | str | bool | None) else _Unknown()


class _Unknown:
    """An argument of which we know nothing."""


def _to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _zeros(value: Any, devices: set[torch.device]) -> Any:
    """Of its shape: one number, seen many times."""
    if not (isinstance(value, torch.Tensor) and value.is_meta):
        return value
    return torch.zeros((), dtype=value.dtype, device=next(iter(devices), None)).expand(value.shape)
