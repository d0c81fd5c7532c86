"""What a loop remembers is written as what the session keeps: its name becomes `kept.name` from the loop on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.course import Around
from sublet.cli.work.script.files import SAVES
from sublet.cli.work.script.reading import Script, is_method
from sublet.cli.work.script.splice import CannotConvert, Splice

__all__ = ["keep_names", "saves_by_all"]


def keep_names(script: Script, splice: Splice, loop: Around, names: dict[str, int], kept: str) -> None:
    """From the loop on, each is one of what is kept. CannotConvert if somebody else speaks of it."""
    scope = script.scope_of(loop)
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        inside = script.scope_of(node)
        if inside is not scope:
            if isinstance(inside, ast.Module) or _has_its_own(inside, node.id):
                continue
            if not isinstance(scope, ast.Module) or _called_before(script, inside, loop):
                raise CannotConvert(
                    f"`{node.id}` is remembered from turn to turn, and used in {inside.name}()",
                    node.lineno,
                    f"kept = s.keep({node.id}=...) before the loop, and hand kept.{node.id} to it",
                )
        elif node.lineno < loop.lineno:
            continue
        line = script.lines[node.lineno - 1].encode()
        if line[node.col_offset : node.end_col_offset].decode() != node.id:
            raise CannotConvert(f"`{node.id}` is in a text", node.lineno, f"write kept.{node.id} there")
        splice.replace(node, f"{kept}.{node.id}")


def _called_before(script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef, loop: Around) -> bool:
    """Whether it may run before the loop, where nothing is kept yet: in another function, or by a line above."""
    spoken = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name) and node.id == function.name]
    return function not in script.tree.body or any(
        not isinstance(script.scope_of(node), ast.Module) or node.lineno < loop.lineno for node in spoken
    )


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
