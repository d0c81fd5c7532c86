"""What a function remembers from call to call, where no name of the loop says so: it begins anew with each process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.effects import Effects, passed
from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.reading import Scope, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_memories"]

MADE = ("list", "dict", "set", "collections.deque", "collections.defaultdict", "collections.Counter")


def refuse_memories(effects: Effects, around: ast.For | ast.While) -> None:
    """Of all that the loop calls: `def scale(cache={"n": 0})` that changes it, and decorators that count calls."""
    for function in effects.reached(around):
        changed = effects.done_by_function(function).writes
        for name, value in _defaults(function):
            if name in changed and _is_container(effects, value, around) and _is_left_out(effects, function, name):
                raise _forgotten(function, f"`{name}`, which its calls share", value.lineno)
        for decorator in function.decorator_list:
            around_it = effects.functions.get(root_of(decorator))
            if around_it is not None and (line := _counts(around_it)):
                raise _forgotten(function, f"what {around_it.name}() changes around it", line)


def _forgotten(function: Function, what: str, line: int) -> CannotConvert:
    return CannotConvert(
        f"{function.name}() remembers {what}: it begins anew in a process that goes on",
        line,
        "a name of the loop, handed to the function and given back by it, which s.keep() can keep",
    )


def _defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    args = function.args
    plain = [*args.posonlyargs, *args.args]
    yield from ((each.arg, value) for each, value in zip(plain[::-1], args.defaults[::-1], strict=False))
    yield from (
        (each.arg, value) for each, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None
    )


def _is_container(effects: Effects, value: ast.expr, around: ast.For | ast.While) -> bool:
    values = [value]
    if isinstance(value, ast.Name):
        values = list(effects.given(value.id, effects.script.scope_of(around)))
    return any(
        isinstance(each, ast.List | ast.Dict | ast.Set)
        or (isinstance(each, ast.Call) and effects.script.full_name(each.func) in MADE)
        for each in values
    )


def _is_left_out(effects: Effects, function: Function, name: str) -> bool:
    """Whether a call may leave the default as it is."""
    calls = [node for node in ast.walk(effects.script.tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function.name]
    return not named or any(name not in passed(function, call) for call in named)


def _counts(decorator: Function) -> int:
    """The line where a function within it says that it changes a name of the other."""
    within = (node for each in ast.walk(decorator) if isinstance(each, Scope) for node in each.body)
    return next((node.lineno for node in within if isinstance(node, ast.Nonlocal)), 0)
