"""What a loop remembers is written as what the session keeps: its name becomes `kept.name` from the loop on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.course import Around
from sublet.cli.work.script.files import SAVES
from sublet.cli.work.script.reading import Scope, Script, is_method
from sublet.cli.work.script.splice import CannotConvert, Splice

__all__ = ["is_inner", "keep_names", "read_by_others", "saves_by_all"]

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def keep_names(script: Script, splice: Splice, loop: Around, names: dict[str, int], kept: str) -> None:
    """From the loop on, each is one of what is kept. CannotConvert if somebody else speaks of it."""
    scope = script.scope_of(loop)
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        inside = script.scope_of(node)
        if _is_bound_within(script, node):
            continue
        if inside is not scope:
            if isinstance(inside, ast.Module) or _has_its_own(script, inside, node.id):
                continue
            if not isinstance(scope, ast.Module) or _called_before(script, inside, loop):
                raise _used_in(f"{inside.name}()", node)
        elif node.lineno < loop.lineno:
            if _is_in_lambda(script, node):  # it is called later, and would read what is not changed any more
                raise _used_in("a lambda", node)
            continue
        line = script.lines[node.lineno - 1].encode()
        if line[node.col_offset : node.end_col_offset].decode() != node.id:
            raise CannotConvert(f"`{node.id}` is in a text", node.lineno, f"write kept.{node.id} there")
        _refuse_amid(script, node)
        if not splice.tell(node, f"{kept}.{node.id}"):
            splice.replace(node, f"{kept}.{node.id}")
    for node in ast.walk(script.tree):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name in names:
            raise CannotConvert(
                f"`{node.name}` is remembered from turn to turn, and given a value by a `case`",
                node.lineno,
                f"another name there, and a line `{node.name} = ...` in the case",
            )


def _refuse_amid(script: Script, node: ast.Name) -> None:
    given = script.parents.get(node)
    if isinstance(given, ast.NamedExpr) and given.target is node:
        raise CannotConvert(
            f"`{node.id}` is remembered from turn to turn, and given a value amid an expression: what is kept is an "
            "attribute, to which `:=` gives none",
            node.lineno,
            f"a line of its own before it: `{node.id} = {script.text(given.value)}`",
        )


def read_by_others(script: Script, loop: Around) -> set[str]:
    """Names that functions, methods and lambdas of the script have from outside, which the loop may give them."""
    scope, found = script.scope_of(loop), set[str]()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or _is_bound_within(script, node):
            continue
        inside = script.scope_of(node)
        if inside is scope or isinstance(inside, ast.Module):
            if _is_in_lambda(script, node):
                found.add(node.id)
        elif not _has_its_own(script, inside, node.id):
            found.add(node.id)
    return found


def _used_in(where: str, node: ast.Name) -> CannotConvert:
    return CannotConvert(
        f"`{node.id}` is remembered from turn to turn, and used in {where}",
        node.lineno,
        f"kept = s.keep({node.id}=...) before the loop, and hand kept.{node.id} to it",
    )


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


def _has_its_own(script: Script, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether the name means something else in it."""
    if any(isinstance(node, ast.Global | ast.Nonlocal) and name in node.names for node in ast.walk(function)):
        return False
    return name in _arguments(function) or any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Store)
        and not _is_bound_within(script, node)
        for node in ast.walk(function)
    )


def _is_bound_within(script: Script, node: ast.Name) -> bool:
    """Whether it is a name of the comprehension, or the lambda, that it is in: none of the function's."""
    path: list[ast.AST] = [node]
    for above in script.above(node):
        if isinstance(above, Scope):
            return False
        if isinstance(above, ast.Lambda) and above.args not in path and node.id in _arguments(above):
            return True
        if isinstance(above, COMPREHENSIONS) and above.generators[0].iter not in path:  # which is read outside of it
            targets = [each for part in above.generators for each in ast.walk(part.target)]
            if any(isinstance(each, ast.Name) and each.id == node.id for each in targets):
                return True
        path.append(above)
    return False


def is_inner(script: Script, name: str, scope: Scope) -> bool:
    """Whether comprehensions alone give it a value."""
    given = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
    stored = [node for node in given if isinstance(node.ctx, ast.Store)]
    own = not isinstance(scope, ast.Module) and name in _arguments(scope)
    return not own and bool(stored) and all(_is_drawn(script, node) for node in stored)


def _is_drawn(script: Script, node: ast.Name) -> bool:
    parts = [each for each in script.above(node) if isinstance(each, ast.comprehension)]
    return any(node in ast.walk(each.target) for each in parts)


def _is_in_lambda(script: Script, node: ast.Name) -> bool:
    """Whether it is read when a lambda is called, and not where that is written (as its defaults are)."""
    path: list[ast.AST] = [node]
    for above in script.above(node):
        if isinstance(above, ast.Lambda) and above.args not in path:
            return True
        path.append(above)
    return False


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    return {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
