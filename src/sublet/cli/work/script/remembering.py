"""What a loop remembers by itself from one turn to the next, which is lost with its process: the best loss so far.

It has a plain value before the loop, and another is given to it in the loop, but not at the beginning of every turn.
`s.keep()` makes it part of the state, and its name becomes `kept.name` from the loop on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.reading import Script, is_method
from sublet.cli.work.script.splice import CannotConvert, Splice

__all__ = ["changes", "keep_names", "remembered", "saves_by_all"]

GROWS = ("append", "extend", "update", "add", "insert")
PLAIN_CALLS = ("float", "int", "list", "dict")
ENDLESS = ("math.inf", "numpy.inf", "torch.inf", "math.nan", "numpy.nan", "torch.nan")
SAVES = ("save_pretrained", "save_checkpoint", "save_model", "save_state")
Around = ast.For | ast.While


def remembered(script: Script, loop: Around) -> dict[str, int]:
    """Name -> the line of the loop where it changes first."""
    found = {}
    for name in sorted(_plain_before(script, loop)):
        changed = [node for node in loop.body if changes(node, name)]
        if changed and not _begins_anew(loop.body, name):
            found[name] = min(line for statement in changed for line in _lines(statement, name))
    return found


def changes(statement: ast.AST, name: str) -> bool:
    """Whether it gives the name another value, or puts something into it."""
    return any(True for _ in _lines(statement, name))


def keep_names(script: Script, splice: Splice, loop: Around, names: dict[str, int], kept: str) -> None:
    """From the loop on, each is one of what is kept. CannotConvert if somebody else speaks of it."""
    scope = script.scope_of(loop)
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        inside = script.scope_of(node)
        if inside is not scope:
            if not isinstance(inside, ast.Module) and not _has_its_own(inside, node.id):
                raise CannotConvert(
                    f"`{node.id}` is remembered from turn to turn, and used in {inside.name}()",
                    node.lineno,
                    f"kept = s.keep({node.id}=...) before the loop, and hand kept.{node.id} to it",
                )
            continue
        if node.lineno < loop.lineno:
            continue
        line = script.lines[node.lineno - 1].encode()
        if line[node.col_offset : node.end_col_offset].decode() != node.id:
            raise CannotConvert(f"`{node.id}` is in a text", node.lineno, f"write kept.{node.id} there")
        splice.replace(node, f"{kept}.{node.id}")


def saves_by_all(script: Script, node: ast.AST) -> Iterator[ast.Expr]:
    """Statements that write the model, or a state: each rank would."""
    writers = {
        each.name
        for each in ast.walk(script.tree)
        if isinstance(each, ast.FunctionDef)
        and any(_saves(script, call) for call in ast.walk(each))
        and not any(isinstance(inner, ast.Return) and inner.value is not None for inner in ast.walk(each))
        and not any(is_method(inner, "backward") for inner in ast.walk(each))
    }
    for each in ast.walk(node):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            called = each.value.func
            if _saves(script, each.value) or (isinstance(called, ast.Name) and called.id in writers):
                yield each


def _saves(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (script.full_name(node.func) == "torch.save" or is_method(node, *SAVES))


def _plain_before(script: Script, loop: Around) -> set[str]:
    """Names with a number, or nothing in them, before the loop and in its scope."""
    scope, found = script.scope_of(loop), set()
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign) or node.lineno >= loop.lineno or script.scope_of(node) is not scope:
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            found |= {one.id for one, value in pairs if isinstance(one, ast.Name) and _is_plain(script, value)}
    return found


def _is_plain(script: Script, value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_plain(script, value.operand)
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.List | ast.Tuple):
        return all(_is_plain(script, each) for each in value.elts)
    if isinstance(value, ast.Dict):
        return all(_is_plain(script, each) for each in value.values)
    if isinstance(value, ast.Call):
        return script.full_name(value.func) in PLAIN_CALLS and all(_is_plain(script, each) for each in value.args)
    return script.full_name(value) in ENDLESS


def _begins_anew(body: list[ast.stmt], name: str) -> bool:
    """Whether every turn gives it a value before anybody asks for the last one."""
    for statement in body:
        mentions = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id == name]
        if mentions:
            return isinstance(statement, ast.Assign) and all(isinstance(node.ctx, ast.Store) for node in mentions)
    return False


def _lines(statement: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            yield node.lineno
        inside = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        if (is_method(node, *GROWS) and _is_name(node.func.value, name)) or (inside and _is_name(node.value, name)):  # type: ignore[attr-defined]  # a Subscript
            yield node.lineno  # type: ignore[attr-defined]  # an expression


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _has_its_own(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether the name means something else in it."""
    if any(isinstance(node, ast.Global | ast.Nonlocal) and name in node.names for node in ast.walk(function)):
        return False
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return name in {each.arg for each in given} or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )
