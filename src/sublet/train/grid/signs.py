"""What a function says of itself: which one it is, and the plain data that it holds and no state knows.

One rule for all that it can reach, by closures, defaults, arguments, attributes, slots, lists and dicts: what is known
is said by its name in the state, numbers and words as they are, objects by their class and what is in them. Tensors,
dice, what is long, and what is of one process (files, locks, logs, the session) are said by their class alone.
"""

from __future__ import annotations

import enum
import functools
import io
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from sublet.train.reach import TORCHS, is_users, slots_of
from sublet.train.remembered import PLAIN, kind_of
from sublet.train.values import SMALL, has_dice

__all__ = ["DEEPEST", "Sign"]

DEEPEST = 8  # things in things
MOST = 1000  # things in all
LISTS = (list, tuple, deque, set, frozenset)
CLOSED = (
    *(torch.Tensor, np.ndarray, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.utils.data.DataLoader, io.IOBase, types.ModuleType, types.GeneratorType, BaseException),
)
PROCESS = {"sublet", "logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "socket", "queue"}
PROCESS_OF_TORCH = ("torch.distributed", "torch._dynamo", "torch.utils.tensorboard", "torch.cuda")


class Sign:
    """Of one function."""

    def __init__(self, name_of: Callable[[Any], str | None], knows: Callable[[dict[str, Any], str], bool]) -> None:
        self._name_of = name_of  # in a state
        self._knows = knows  # a name of a file
        self._left = MOST
        self._within: list[int] = []

    def of(self, thing: Any) -> str:
        """In words."""
        if isinstance(thing, types.MethodType):
            return f"{self.of(thing.__func__)} of {self.of(thing.__self__)}"
        kind = _kind(thing)
        self._left -= 1
        if self._left < 0:
            return kind
        if (word := _word(thing)) is not None:
            return word
        if (name := self._name_of(thing)) is not None:
            return f"{kind} ({name})"
        if id(thing) in self._within or len(self._within) >= DEEPEST or _is_closed(thing):
            return kind
        self._within.append(id(thing))
        try:
            return self._inside(thing, kind)
        finally:
            self._within.pop()

    def _inside(self, thing: Any, kind: str) -> str:
        if isinstance(thing, functools.partial):
            inside = [*self._items(enumerate(thing.args)), *self._items(thing.keywords.items())]
            return f"partial of {self.of(thing.func)}{_listed(inside)}"
        if isinstance(thing, types.FunctionType):
            return f"{kind}{_listed(self._held(thing) if is_users(thing.__module__) else ())}"
        if isinstance(thing, type):
            return f"{kind}{_listed(self._items(_shared(thing)) if _is_open(thing) else ())}"
        if isinstance(thing, (*LISTS, dict)) and len(thing) > SMALL:
            return kind
        own = [self._listing(thing)] if isinstance(thing, (*LISTS, dict)) else []
        if type(thing) in (*LISTS, dict):
            return own[0]
        return f"{kind}{_listed([*own, *self._items(_attributes(thing)), *self._of_classes(type(thing))])}"

    def _listing(self, thing: Any) -> str:
        if isinstance(thing, dict):
            return f"{{{', '.join(f'{self.of(key)}: {self.of(each)}' for key, each in thing.items())}}}"
        said = [self.of(each) for each in thing]
        return f"[{', '.join(sorted(said) if isinstance(thing, set | frozenset) else said)}]"

    def _held(self, function: types.FunctionType) -> Iterator[str]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            known = self._name_of(cell)
            yield from self._items([(name, _content(cell))]) if known is None else [known]
        yield from self._items(enumerate(function.__defaults__ or ()))
        yield from self._items((function.__kwdefaults__ or {}).items())
        yield from self._items(function.__dict__.items())
        there = function.__globals__
        asked = (name for name in sorted({*function.__code__.co_names} & there.keys()) if not self._knows(there, name))
        yield from self._items((name, there[name]) for name in asked if _is_data(there[name]))

    def _of_classes(self, kind: type) -> Iterator[str]:
        for each in kind.__mro__:
            if _is_open(each) and self._name_of(each) is None:
                yield from self._items((f"{each.__name__}.{name}", value) for name, value in _shared(each))

    def _items(self, items: Iterable[tuple[Any, Any]]) -> Iterator[str]:
        for name, value in items:
            yield f"{name} = {self.of(value)}"


def _word(thing: Any) -> str | None:
    """What is said as it is."""
    if isinstance(thing, enum.Enum):
        return f"{type(thing).__qualname__}.{thing.name}"
    if isinstance(thing, PurePath | torch.dtype):
        return str(thing)
    if isinstance(thing, complex | bytes) or (not isinstance(thing, (*LISTS, dict)) and kind_of(thing) == PLAIN):
        return repr(thing)
    return None


def _kind(thing: Any) -> str:
    if isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
        return thing.__qualname__
    return type(thing).__qualname__


def _is_closed(thing: Any) -> bool:
    """What is in it is not said."""
    if isinstance(thing, CLOSED) or has_dice(thing):
        return True
    module = str(type(thing).__module__)
    return module.split(".", maxsplit=1)[0] in PROCESS or module.startswith(PROCESS_OF_TORCH)


def _is_open(kind: type) -> bool:
    """A class of the script's, with what all of its objects share."""
    return is_users(kind.__module__) and not isinstance(kind, enum.EnumMeta)


def _shared(kind: type) -> list[tuple[str, Any]]:
    own = ((name, value) for name, value in vars(kind).items() if not name.startswith(("__", "_abc_")))
    return [(name, value) for name, value in own if _is_data(value) and not hasattr(type(value), "__get__")]


def _is_data(value: Any) -> bool:
    """Not a file of code, nor a function, that a name stands for; a class of the script's has values, too."""
    if isinstance(value, type):
        return _is_open(value)
    return not isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType)


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    own = getattr(thing, "__dict__", None)
    found = dict(own) if isinstance(own, dict) else {}
    skips = next((names for kind, names in TORCHS if isinstance(thing, kind)), frozenset[str]())
    children = found.get("_modules") if isinstance(thing, torch.nn.Module) else None
    found |= {name: getattr(thing, name) for name in slots_of(type(thing)) if hasattr(thing, name)}
    found = {name: value for name, value in found.items() if name not in skips and not name.startswith("__")}
    return [*found.items(), *(children.items() if isinstance(children, Mapping) else ())]


def _listed(inside: Iterable[str]) -> str:
    text = ", ".join(inside)
    return f" with {text}" if text else ""


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None
