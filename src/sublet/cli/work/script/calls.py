"""Names across the calls of functions: what a parameter stands for where the function is called."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.reading import Script

__all__ = ["Hop", "arguments", "is_local", "only_value", "substituted"]


@dataclass(frozen=True, slots=True)
class Hop:
    """A function of the script, and the one call by which it is run."""

    call: ast.Call
    function: ast.FunctionDef


def arguments(script: Script, hop: Hop) -> dict[str, str]:
    """What each parameter of a function stands for where it is called."""
    given: dict[str, str] = {}
    formal = hop.function.args
    names = [each.arg for each in (*formal.posonlyargs, *formal.args)]
    call = hop.call
    if names and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute):
        given[names[0]] = script.text(call.func.value)
        names = names[1:]
    if any(isinstance(each, ast.Starred) for each in call.args):
        return given
    defaults = formal.defaults[-len(names) :] if names else []
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        given[name] = script.text(default)
    for each, value in zip(formal.kwonlyargs, formal.kw_defaults, strict=True):
        if value is not None:
            given[each.arg] = script.text(value)
    given |= {name: script.text(value) for name, value in zip(names, call.args, strict=False)}
    given |= {word.arg: script.text(word.value) for word in call.keywords if word.arg}
    return given


def substituted(text: str, given: dict[str, str]) -> str:
    """An expression with other names."""
    parsed = ast.parse(text, mode="eval").body
    places = sorted(
        ((node.col_offset, node.lineno, node.id) for node in ast.walk(parsed) if isinstance(node, ast.Name)),
        reverse=True,
    )
    lines = text.encode().split(b"\n")
    for column, line, name in places:
        if name in given:
            value = given[name]
            simple = isinstance(
                ast.parse(value, mode="eval").body, ast.Name | ast.Attribute | ast.Constant | ast.Call | ast.Subscript
            )
            raw = lines[line - 1]
            new = (value if simple else f"({value})").encode()
            lines[line - 1] = raw[:column] + new + raw[column + len(name.encode()) :]
    return b"\n".join(lines).decode()


def is_local(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function gives it a value, or has it for a parameter."""
    formal = function.args
    named = [*formal.posonlyargs, *formal.args, *formal.kwonlyargs]
    if any(each.arg == name for each in named):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def only_value(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """What a function gives a name, if it does so once."""
    stores = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    if len(stores) != 1:
        return None
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] is stores[0]:
            return node.value
    return None
