"""Where the objects that a training runs through keep what they remember: attributes, closures, names of the script.

A `state_dict` tells of weights. But a dataset may count its samples in an attribute, a hook in a list that it sees as a
closure, a `collate_fn` in a dict of the script, the function of a `LambdaLR` in another. From what the session has in
its hands all of that is found: attributes of objects, variables of functions, the names that they ask the script for.

Only what the script's own files define is looked into, and torch's own kinds of datasets and transforms: what other
libraries keep is theirs, and may belong to something that a state cannot hold, such as an open file.
"""

from __future__ import annotations

import argparse
import dis
import enum
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sublet.train.remembered import MANY, OTHER, Remembered, kind_of

__all__ = ["HOOKS", "TORCHS", "Place", "is_still", "is_users", "places_of", "remembered", "slots_of"]

DEEPEST = 12  # objects in objects
HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),  # of modules
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_post_accumulate_grad_hooks"),
)
KNOWN = ("torch", "torchvision", "torchaudio")  # what they keep in attributes is what a user has told them
TORCHS: tuple[tuple[type, frozenset[str]], ...] = (
    (torch.nn.Module, frozenset(vars(torch.nn.Module())) - {"training"}),
    (
        torch.optim.Optimizer,
        frozenset({"state", "param_groups", "defaults", "_opt_called"})  # the last is a scheduler's, to warn by
        | {
            f"_optimizer_{what}{when}_hooks"
            for what in ("step_", "state_dict_", "load_state_dict_")
            for when in ("pre", "post")
        },
    ),
)
WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch._dynamo")  # they keep what is of one process
NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
OURS = Path(__file__).parents[1]
TRAIN = __name__.rpartition(".")[0]
LIBRARIES = (OURS, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))


class Place(NamedTuple):
    """Values by name: of an object, a function or a module."""

    name: str  # the same in every process that runs the script
    values: MutableMapping[str, Any]
    skips: frozenset[str] = frozenset()  # of these, what torch keeps there for itself

    def items(self) -> list[tuple[str, Any]]:
        """All but what is torch's."""
        return [(name, value) for name, value in self.values.items() if name not in self.skips]

    def cells(self) -> list[tuple[str, types.CellType]]:
        """Variables of a function around this one, by name."""
        return list(self.values.cells.items()) if isinstance(self.values, _Cells) else []

    def asked(self) -> set[tuple[int, str]]:
        """Names that a file is asked for."""
        return self.values.asked() if isinstance(self.values, _Some) else set()

    def itself(self) -> Any:
        """What has these values: a list, a class, an object with slots; of others the dict in which they are."""
        return self.values.of if isinstance(self.values, _Items | _Slots | _Own) else self.values


def places_of(roots: Iterable[tuple[str, Any]]) -> list[Place]:
    """All that can be reached from these, each once."""
    walk = _Walk(roots)
    walk.go()
    return walk.found


def remembered(places: Iterable[Place]) -> dict[str, dict[str, Remembered]]:
    """Their values as they are now, by the names of the places."""
    return {place.name: {name: Remembered(value) for name, value in place.items()} for place in places}


def is_still(places: Iterable[Place], were: Mapping[str, Mapping[str, Remembered]]) -> bool:
    """Whether all values are those that were remembered."""
    return all(
        name in (first := were.get(place.name, {})) and first[name].is_still(value)
        for place in places
        for name, value in place.items()
    )


class _Walk:
    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self._roots = list(roots)
        self._named = {id(thing) for _, thing in self._roots}  # they have names of their own
        self.found: list[Place] = []
        self._seen: set[int] = set()
        self._asked: dict[int, tuple[dict[str, Any], set[str]]] = {}  # variables of files, and the names asked for
        self._fresh = True

    def go(self) -> None:
        for name, thing in self._roots:
            self._look(name, thing, 0)
        while self._fresh:  # what a name of the script stands for may be a function that asks for others
            self._fresh = False
            for variables, names in list(self._asked.values()):
                for name in sorted(names & variables.keys()):
                    self._look(f"{variables.get('__name__')}.{name}", variables[name], 1)
        self.found += [
            Place(f"names of {variables.get('__name__')}", _Some(variables, names))
            for variables, names in self._asked.values()
        ]

    def _look(self, name: str, thing: Any, depth: int) -> None:
        known = id(thing) in self._seen or (depth > 0 and id(thing) in self._named)
        if known or depth > DEEPEST:
            return
        self._seen.add(id(thing))
        inner = functools.partial(self._look, depth=depth + 1)
        if isinstance(thing, types.FunctionType):
            self._look_at_function(name, thing, inner)
        elif isinstance(thing, types.MethodType):
            inner(name, thing.__self__)
            inner(name, thing.__func__)
        elif isinstance(thing, functools.partial):
            inner(name, thing.func)
            self._take(Place(name, thing.keywords), inner)
            self._take(Place(f"{name} args", _Items(thing.args)), inner)
        elif type(thing) in (list, tuple, deque) and len(thing) <= MANY:
            self._take(Place(name, _Items(thing)), inner)
        elif isinstance(thing, dict) and len(thing) <= MANY and all(isinstance(key, str) for key in thing):
            self._take(Place(name, thing), inner)
        elif isinstance(thing, type):
            if is_users(thing.__module__) and not isinstance(thing, enum.EnumMeta):
                self._look_at_class(name, thing, inner)
        elif isinstance(getattr(thing, "__dict__", None), dict) and _is_looked_into(thing):
            self._look_at_object(name, thing, inner)
        elif (slots := slots_of(type(thing))) and is_users(type(thing).__module__):
            self._take(Place(name, _Slots(thing, slots)), inner)

    def _look_at_object(self, name: str, thing: Any, inner: Any) -> None:
        skips = next((names for kind, names in TORCHS if isinstance(thing, kind)), frozenset())
        if type(thing).__module__.startswith(WRAPPERS):
            skips = frozenset(vars(thing)) - {"training"}
        self._take(Place(name, vars(thing), skips), inner)
        for hooks in HOOKS:
            given = vars(thing).get(hooks)
            theirs = [hook for hook in given.values() if not _is_ours(hook)] if isinstance(given, Mapping) else []
            for number, hook in enumerate(theirs):
                inner(f"{name} {hooks[1:]} {number}", hook)
        for child, module in vars(thing).get("_modules", {}).items() if isinstance(thing, torch.nn.Module) else ():
            inner(f"{name}.{child}", module)
        for kind in type(thing).__mro__:
            if is_users(kind.__module__):
                inner(kind.__qualname__, kind)

    def _look_at_class(self, name: str, kind: type, inner: Any) -> None:
        self._take(Place(f"class {name}", _Own(kind)), inner)
        for attribute, value in vars(kind).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))  # of a classmethod, of a property
            if isinstance(function, types.FunctionType):
                inner(f"{name}.{attribute}", function)

    def _look_at_function(self, name: str, function: types.FunctionType, inner: Any) -> None:
        if not is_users(function.__module__):
            return
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._take(Place(f"{name} closure", _Cells(cells)), inner)
        self._take(Place(f"{name} attributes", function.__dict__), inner)
        self._take(Place(f"{name} defaults", _Items(function.__defaults__ or ())), inner)
        if function.__kwdefaults__:
            self._take(Place(f"{name} keyword defaults", function.__kwdefaults__), inner)
        asked, attributes = _asked_by(function.__code__)
        self._ask(function.__globals__, asked)
        for each in asked:
            module = function.__globals__.get(each)
            if isinstance(module, types.ModuleType) and is_users(module.__name__):
                self._ask(vars(module), attributes)

    def _ask(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        known = self._asked.setdefault(id(variables), (variables, set()))[1]
        names = {name for name in names if not name.startswith("__")}
        self._fresh |= not names <= known
        known |= names

    def _take(self, place: Place, inner: Any) -> None:
        self.found.append(place)  # though it is empty: something may be put there
        for key, value in place.items():
            if kind_of(value) == OTHER:  # all else is a value of this place
                inner(f"{place.name}.{key}", value)


@functools.cache
def _asked_by(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a function, and those that are written in it, ask their file for; and attributes of anything."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    attributes = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            more = _asked_by(each)
            names |= more[0]
            attributes |= more[1]
    return frozenset(names), frozenset(attributes)


def _is_looked_into(thing: Any) -> bool:
    kind = type(thing)
    if isinstance(thing, torch.Tensor | torch.optim.lr_scheduler.LRScheduler | torch.utils.data.DataLoader):
        return False  # their states are known, or the script's own
    return isinstance(thing, NAMESPACES) or kind.__module__.split(".")[0] in KNOWN or is_users(kind.__module__)


@functools.cache
def is_users(module: str | None) -> bool:
    """Whether a file of the script's own defines it."""
    if module in ("__main__", "__mp_main__"):
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None:
        return False
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return not installed and not any(path.is_relative_to(each) for each in LIBRARIES)


def _is_ours(hook: Any) -> bool:
    """A hook of the session's own, which every worker registers for itself."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", None)).startswith(f"{TRAIN}.")


def slots_of(kind: type) -> list[str]:
    """Attributes of a class that has no others."""
    found = [vars(each).get("__slots__", ()) for each in kind.__mro__]
    return [name for each in found for name in ((each,) if isinstance(each, str) else each)]


class _Slots(MutableMapping[str, Any]):
    """Attributes that are not in a dict."""

    def __init__(self, thing: Any, slots: list[str]) -> None:
        self.of, self._slots = thing, slots

    def __getitem__(self, name: str) -> Any:
        if not hasattr(self.of, name):  # it has no value, or none any more
            raise KeyError(name)
        return getattr(self.of, name)

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.of, name, value)  # of one that is frozen, too

    def __delitem__(self, name: str) -> None:
        delattr(self.of, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._slots if hasattr(self.of, name)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Some(MutableMapping[str, Any]):
    """Some of the variables of a file."""

    def __init__(self, variables: dict[str, Any], names: set[str]) -> None:
        self._variables, self._names = variables, names

    def asked(self) -> set[tuple[int, str]]:
        return {(id(self._variables), name) for name in self._names}

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._variables[name] = value

    def __delitem__(self, name: str) -> None:
        del self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in self._names if name in self._variables))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Cells(MutableMapping[str, Any]):
    """Variables of a function around this one."""

    def __init__(self, cells: dict[str, types.CellType]) -> None:
        self.cells = cells

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # it has no value yet
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.cells:
            self.cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cells[name].cell_contents

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.cells if self._has(name)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has(self, name: str) -> bool:
        try:
            _ = self.cells[name].cell_contents
        except ValueError:
            return False
        return True


class _Own(MutableMapping[str, Any]):
    """What a class of the script has in attributes of its own."""

    def __init__(self, kind: type) -> None:
        self.of = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self.of)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.of, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in vars(self.of) if not name.startswith("__")])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Items(MutableMapping[str, Any]):
    """What is in a list, by its number; what is in a tuple can be written to, and not replaced."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.of = items

    def __getitem__(self, name: str) -> Any:
        if int(name) >= len(self.of):  # it was longer where it was saved: whoever holds it is given all of it
            raise KeyError(name)
        return self.of[int(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        at = int(name)
        if isinstance(self.of, list | deque) and at < len(self.of):
            self.of[at] = value

    def __delitem__(self, name: str) -> None:
        """What is in a list stays in it."""

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self.of)))

    def __len__(self) -> int:
        return len(self.of)
