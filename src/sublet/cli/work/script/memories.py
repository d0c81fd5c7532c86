"""What a function remembers from call to call, where no name of the loop says so: it begins anew with each process."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from sublet.cli.work.script.effects import Effects, passed
from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.reading import is_method, names_in, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_memories"]

CACHES = ("functools.lru_cache", "functools.cache", "lru_cache", "cache")
SPACES = ("globals", "locals", "vars")
MADE = ("list", "dict", "set", "collections.deque", "collections.defaultdict", "collections.Counter")


def refuse_memories(effects: Effects, around: ast.For | ast.While) -> None:
    """Of all that the loop calls: `def scale(cache={"n": 0})` that changes it, and decorators that count calls."""
    changing = effects.state | effects.done_by(around, effects.script.scope_of(around)).writes.keys()
    for piece in (around, *effects.reached(around)):
        _refuse_unnamed(effects, piece)
    for function in effects.reached(around):
        changed = effects.done_by_function(function).writes
        for name, value in _defaults(function):
            if name in changed and _is_container(effects, value, around) and _is_left_out(effects, function, name):
                raise _forgotten(function, f"`{name}`, which its calls share", value.lineno)
        for decorator in function.decorator_list:
            around_it = effects.functions.get(root_of(decorator))
            if around_it is not None and (line := _counts(effects, around_it)):
                raise _forgotten(function, f"what {around_it.name}() changes around it", line)
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if effects.script.full_name(called) in CACHES and (name := _rests_on(effects, function, changing)):
                raise _forgotten(function, f"what it gave first (`{name}` is another by then)", decorator.lineno)


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


def _rests_on(effects: Effects, function: Function, changing: Iterable[str]) -> str:
    """What the value of a call goes by, and no argument of it says: a name that changes, or dice."""
    done, names = effects.done_by_function(function), set(changing)
    own = effects.script.parents.get(function)
    if isinstance(own, ast.ClassDef) and effects.is_module(own):
        return "self"
    return min(done.reads.keys() & names, default="chance" if done.draws else "")


def _refuse_unnamed(effects: Effects, piece: ast.AST) -> None:
    """`globals()["step"] = step + 1`."""
    for node in ast.walk(piece):
        whose: ast.expr | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            whose = node.value
        elif is_method(node, "update", "setdefault", "pop"):
            whose = node.func.value
        if isinstance(whose, ast.Call) and effects.script.full_name(whose.func) in SPACES:
            raise CannotConvert(
                f"{effects.script.text(whose)} gives a name a value, and which is kept cannot be told",
                whose.lineno,
                "the name itself, `step = step + 1`; in a function with `global step` before it",
            )


def _counts(effects: Effects, decorator: Function) -> int:
    """The line where a function within it changes what is not its own, and goes by it."""
    for inner in (each for each in ast.walk(decorator) if isinstance(each, Function) and each is not decorator):
        if said := next((node for node in inner.body if isinstance(node, ast.Nonlocal)), None):
            return said.lineno
        arguments = {each.arg for each in ast.walk(inner.args) if isinstance(each, ast.arg)}
        changed = {name: at for name, at in effects.done_by_function(inner).writes.items() if name not in arguments}
        for name, line in changed.items():
            if any(_asks(statement, name) for statement in inner.body):
                return line
    return 0


def _asks(statement: ast.stmt, name: str) -> bool:
    """Whether it goes by a name, and does not only change what the name stands for."""
    if isinstance(statement, ast.AugAssign) and root_of(statement.target) == name:
        return name in names_in(statement.value)
    if isinstance(statement, ast.Assign) and all(root_of(each) == name for each in statement.targets):
        return False
    call = statement.value if isinstance(statement, ast.Expr) else None
    return not (isinstance(call, ast.Call) and root_of(call) == name) and name in names_in(statement)
