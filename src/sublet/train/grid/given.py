"""The functions that a script gives to `s.step`: what they hold is part of the state, or is the same at all workers.

A script may choose between several (`s.step(warm if s.steps < 100 else full, batch)`). All that its loop has in hand
where it first calls for a step, and could give, is known from then on: functions, objects that can be called, those in
lists and dicts, methods. What these ask for is part of the state as what the first asks for is, whether they have been
given yet or not. Every process begins its loop with `s.steps` of 0, so all of them know the same, by the same names.

A function that is made later (a `partial` or a lambda for every step, one that a phase begins with) nobody can lay
values into before it is there. So each has a `sign`: which one it is, with the numbers and words that it holds and no
state knows. A worker that takes a state over, which goes over the last step, must come to the sign of that step, and
members say theirs when they agree on one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sublet.errors import InvalidValue
from sublet.train.reach import Place, is_users
from sublet.train.remembered import MANY, PLAIN, kind_of
from sublet.train.values import is_small

__all__ = ["FIRST", "MADE", "Given", "check_again", "in_hand", "lines"]

FIRST = "loss_of"
DEEPEST = 4  # functions in functions
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
        yield from ((f"{name}.{key}", each) for key, each in inside if _can_be_given(each))
    elif is_users(type(value).__module__):
        own = getattr(value, "__dict__", {})
        if any(callable(getattr(type(value), each, None)) or _can_be_given(own.get(each)) for each in taken):
            yield name, value  # a method of it


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
        self._homes = dict[int, str]()  # of objects and functions that a state knows, by where their attributes are
        self._cells = dict[int, str]()
        self._asked = set[tuple[int, str]]()  # names of files
        self._codes = set[Any]()

    def know(self, places: Iterable[Place]) -> None:
        """These are part of the state."""
        self._places = list(places)  # so that nothing else comes to lie where they are
        for place in self._places:
            self._homes.setdefault(id(place.values), place.name)
            for name, cell in place.cells():
                self._cells.setdefault(id(cell), f"{place.name}.{name}")
            self._asked |= place.asked()

    def is_new(self, loss_of: Any) -> bool:
        """Whether none of this code was given before."""
        code = getattr(getattr(loss_of, "__func__", loss_of), "__code__", type(loss_of))
        known = code in self._codes
        self._codes.add(code)
        return not known

    def sign(self, loss_of: Any) -> str:
        """The same at all workers that give the same, with the same in it."""
        return self._sign(loss_of, 0)

    def _sign(self, thing: Any, deep: int) -> str:
        if isinstance(thing, types.MethodType):
            return f"{self._sign(thing.__func__, deep)} of {self._sign(thing.__self__, deep + 1)}"
        if isinstance(thing, functools.partial):
            inside = [*self._values(enumerate(thing.args), deep), *self._values(thing.keywords.items(), deep)]
            return f"partial of {self._sign(thing.func, deep)}{_listed(inside)}"
        if isinstance(thing, types.FunctionType):
            return f"{thing.__qualname__}{_listed(self._held(thing, deep) if is_users(thing.__module__) else ())}"
        kind, facts = type(thing), getattr(thing, "__dict__", None)
        if id(facts) in self._homes:
            return f"{kind.__qualname__} ({self._homes[id(facts)]})"
        own = facts if isinstance(facts, dict) and is_users(kind.__module__) else {}
        return f"{kind.__qualname__}{_listed(self._values(own.items(), deep))}"

    def _held(self, function: types.FunctionType, deep: int) -> Iterator[str]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) in self._cells:
                yield self._cells[id(cell)]
            else:
                yield from self._values([(name, _content(cell))], deep)
        if id(function.__dict__) not in self._homes:
            yield from self._values(enumerate(function.__defaults__ or ()), deep)
            yield from self._values(function.__dict__.items(), deep)
        there = function.__globals__
        names = sorted({*function.__code__.co_names} & there.keys())
        asked = [(name, there[name]) for name in names if (id(there), name) not in self._asked]
        yield from self._values(((name, value) for name, value in asked if _can_be_said(value)), deep)

    def _values(self, items: Iterable[tuple[Any, Any]], deep: int) -> Iterator[str]:
        for name, value in items:
            if _can_be_said(value):
                yield f"{name} = {_said(value)}"
            elif deep < DEEPEST:
                yield f"{name} = {self._sign(value, deep + 1)}"


def check_again(sign: str, gave: str, step: int) -> None:
    """InvalidValue if the loop goes over that step, which was made by another, with another function."""
    if gave and sign != gave:
        one, two = sign.split(", "), gave.split(", ")
        own, theirs = [each for each in one if each not in two], [each for each in two if each not in one]
        name = sign.partition(" with ")[0]
        raise InvalidValue("loss_of", f"{name}: {', '.join(own)}; step {step} was made by {', '.join(theirs)}", MADE)


def _listed(inside: Iterable[str]) -> str:
    text = ", ".join(inside)
    return f" with {text}" if text else ""


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _can_be_said(value: Any) -> bool:
    """Numbers and words, and few of them in lists and dicts."""
    if kind_of(value) == PLAIN:
        return True
    if type(value) not in (list, tuple, deque, dict, set, frozenset) or not is_small(value):
        return False
    return all(map(_can_be_said, (*value, *value.values()) if isinstance(value, Mapping) else value))


def _said(value: Any) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, set | frozenset) else value)
