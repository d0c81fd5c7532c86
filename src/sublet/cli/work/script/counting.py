"""A count of batches that a script makes before its step: `n += 1`, first thing in a turn.

A step that is made again would count twice. The session counts steps itself, so `n = s.steps + 1` is what it was.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import is_method, names_in

__all__ = ["counts_before_steps"]


def counts_before_steps(
    effects: Effects, around: ast.For | ast.While, inner: ast.For | ast.While
) -> dict[str, tuple[ast.AugAssign, int]]:
    """Names that count every turn before its step, from a number on, and are asked for in turns alone."""
    scope = effects.script.scope_of(around)
    found: dict[str, tuple[ast.AugAssign, int]] = {}
    for statement in inner.body:
        if any(is_method(node, "backward") for node in ast.walk(statement)):
            break
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, values = statement.target.id, [(each, value) for each, value in bindings_in(scope)]
        given = [value for each, value in values if each == name and value is not statement.value]
        once = isinstance(statement.op, ast.Add) and _whole(statement.value) == 1
        begins = _whole(given[0]) if len(given) == 1 and given[0].lineno < around.lineno else None
        if once and begins is not None and not _spoken_outside(effects, around, inner, name):
            found[name] = (statement, begins + 1)
    return found


def _whole(value: ast.expr) -> int | None:
    return value.value if isinstance(value, ast.Constant) and type(value.value) is int else None


def _spoken_outside(effects: Effects, around: ast.stmt, inner: ast.stmt, name: str) -> bool:
    """By more than a print: in an epoch beside its batches, after the loop, or in a function."""
    script, scope = effects.script, effects.script.scope_of(around)
    inside = set(ast.walk(inner))
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Name) or node.id != name or node in inside:
            continue
        statement = next((each for each in script.above(node) if isinstance(each, ast.stmt)), None)
        before = node.lineno < around.lineno and isinstance(node.ctx, ast.Store)
        told = statement is not None and effects.only_tells(statement) and name in names_in(statement)
        if script.scope_of(node) is not scope or not (before or told):
            return True
    return False
