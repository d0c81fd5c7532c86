"""The functions that a script gives to `s.step`: what they hold is part of the state, or is the same at all workers.

A script may choose between several (`s.step(warm if s.steps < 100 else full, batch)`). All that its loop has in hand
where it first calls for a step, and could give, is known from then on: functions, objects that can be called, those in
lists and dicts, methods. What these ask for is part of the state as what the first asks for is, whether they have been
given yet or not. Every process begins its loop with `s.steps` of 0, so all of them know the same, by the same names.

A function that is made later (a `partial` or a lambda for every step, one that a phase begins with) nobody can lay
values into before it is there. So each has a sign (`signs.py`): which one it is, with the numbers and words that it
holds and no state knows. A worker that takes a state over, which goes over the last step, must come to the sign of that
step, and members say theirs when they agree on one.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import textwrap
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.grid.signs import DEEPEST, Sign
from sublet.train.reach import Place, is_users
from sublet.train.remembered import MANY, PLAIN, kind_of
from sublet.train.values import is_small

__all__ = ["FIRST", "MADE", "Given", "check_again", "in_hand", "lines"]

FIRST = "loss_of"
FIXED = (tuple, frozenset, type, types.FunctionType, types.ModuleType, enum.Enum, torch.dtype, torch.Tensor)
ANY = ".*"  # behind a name: an attribute of it that the lines ask for by `getattr`
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MADE = (
    "the same for a step in every worker, with the same in it: make it before the loop, so that what it holds is part "
    "of the state; or let which one it is, and what is in it, follow from s.steps, s.epoch, s.loss and what is kept "
    "(s.keep)"
)


def in_hand(loop: types.CodeType | None = None) -> dict[str, Any]:
    """What those lines of the script that run now could give, by their names for it; from the call to their `loop`."""
    frames = list(_running())
    codes = [each.f_code for each in frames]
    frames = frames[: codes.index(loop) + 1] if loop in codes else frames
    found = dict[str, Any]()
    for each in frames:
        taken, there = _taken_by(each), {**each.f_globals, **each.f_locals}
        for name in sorted(taken & there.keys()):
            for path, thing in _givable(name, there[name], taken):
                if getattr(thing, "__code__", None) not in codes:
                    found.setdefault(f"{each.f_code.co_name}.{path}", thing)
    return found


def lines() -> types.CodeType | None:
    """Of the script, which run now."""
    return next((each.f_code for each in _running()), None)


def _running() -> Iterator[types.FrameType]:
    """Those of the script, from the last call outwards."""
    frame = inspect.currentframe()
    while frame is not None:
        if is_users(frame.f_globals.get("__name__")):
            yield frame
        frame = frame.f_back


def _taken_by(frame: types.FrameType) -> set[str]:
    """Names and attributes that its lines take as they are. What they only call they do not give."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(frame)))
    except (OSError, SyntaxError):  # what was typed in has no file
        code = frame.f_code
        return {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names}
    found, left = set[str](), list[ast.AST](tree.body)
    if frame.f_code.co_name != "<module>":
        left = [line for top in tree.body for line in getattr(top, "body", [top])]
    while left:
        node = left.pop()
        if isinstance(node, FUNCTIONS):  # what is in it counts if it is taken itself
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "getattr" and node.args:
                found |= {f"{each.id}{ANY}" for each in ast.walk(node.args[0]) if isinstance(each, ast.Name)}
            left += [*node.args, *node.keywords]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            left += [node.func.value, *node.args, *node.keywords]
        elif isinstance(node, ast.Lambda):  # it may be given, and what it calls with it
            found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        else:
            found |= {node.id} if isinstance(node, ast.Name) else set()
            found |= {node.attr} if isinstance(node, ast.Attribute) else set()
            left += ast.iter_child_nodes(node)
    return found


def _givable(name: str, value: Any, taken: set[str]) -> Iterator[tuple[str, Any]]:
    if _can_be_given(value):
        yield name, value
    elif isinstance(value, types.ModuleType):
        there = vars(value) if is_users(value.__name__) else {}
        known = ((each, there[each]) for each in sorted(taken & there.keys()))
        yield from ((f"{name}.{each}", thing) for each, thing in known if _can_be_given(thing))
    elif type(value) in (list, tuple, deque, dict) and len(value) <= MANY:
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        known = ((f"{name}.{key}", each) for key, each in inside)
        yield from ((path, each) for path, each in known if _can_be_given(each) or _gives(name, each, taken))
    elif _gives(name, value, taken):
        yield name, value


def _gives(name: str, value: Any, taken: set[str]) -> bool:
    """Whether a method of it is taken, or one that only running lines know the name of."""
    if not is_users(type(value).__module__):
        return False
    own = getattr(value, "__dict__", {})
    found = (callable(getattr(type(value), each, None)) or _can_be_given(own.get(each)) for each in taken)
    return f"{name}{ANY}" in taken or any(found)


def _can_be_given(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return is_users(value.__module__)
    if isinstance(value, types.MethodType):
        return _can_be_given(value.__func__)
    known = isinstance(value, functools.partial) or is_users(type(value).__module__)
    return known and callable(value) and not isinstance(value, type)


class Given:
    """Of one process."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._homes = dict[int, str]()  # of what a state knows: by where its values are, or itself
        self._reached = dict[int, tuple[str, Place, str, Any, Any]]()  # lists, dicts and objects in values of these
        self._asked = set[tuple[int, str]]()  # names of files
        self._codes = set[Any]()

    def know(self, places: Iterable[Place]) -> None:
        """These are part of the state."""
        self._places = list(places)  # so that nothing else comes to lie where they are
        for place in self._places:
            if not isinstance(place.itself(), tuple):  # what cannot change is said as it is
                self._homes.setdefault(id(place.itself()), place.name.removesuffix(" attributes"))
            for name, cell in place.cells():
                self._homes.setdefault(id(cell), f"{place.name}.{name}")
            for name, value in place.items():
                for path, each in _in(f"{place.name}.{name}", value):
                    self._reached.setdefault(id(each), (path, place, name, value, each))
            self._asked |= place.asked()

    def is_new(self, loss_of: Any) -> bool:
        """Whether none of this code was given before."""
        code = getattr(getattr(loss_of, "__func__", loss_of), "__code__", type(loss_of))
        known = code in self._codes
        self._codes.add(code)
        return not known

    def sign(self, loss_of: Any) -> str:
        """The same at all workers that give the same, with the same in it."""
        return Sign(self._name_of, lambda there, name: (id(there), name) in self._asked).of(loss_of)

    def _name_of(self, thing: Any) -> str | None:
        """In a state, which then tells what is in it."""
        facts = thing.keywords if isinstance(thing, functools.partial) else getattr(thing, "__dict__", None)
        name = self._homes.get(id(facts)) if isinstance(facts, dict) else None
        name = name or self._homes.get(id(thing))
        if name is None and id(thing) in self._reached:
            path, place, key, value, _ = self._reached[id(thing)]
            name = path if place.values.get(key) is value else None  # it may have been replaced
        return name


def _in(path: str, value: Any, deep: int = 0) -> Iterator[tuple[str, Any]]:
    """All that can change, by identity: what it has come to is the state's to tell."""
    if not isinstance(value, FIXED) and kind_of(value) != PLAIN:
        yield path, value
    if type(value) in (list, tuple, deque, dict) and deep < DEEPEST and is_small(value):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in inside:
            yield from _in(f"{path}.{key}", each, deep + 1)


def check_again(sign: str, gave: str, step: int) -> None:
    """InvalidValue if the loop goes over that step, which was made by another, with another function."""
    if gave and sign != gave:
        one, two = sign.split(", "), gave.split(", ")
        own, theirs = [each for each in one if each not in two], [each for each in two if each not in one]
        told = f"here it is {', '.join(own) or sign}; step {step} was made by {', '.join(theirs) or gave}"
        raise InvalidValue("loss_of", sign.partition(" with ")[0], f"{MADE}; {told}")  # a long value would be cut
