"""Which models a loop trains, as expressions where the session is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.edits import CannotConvert
from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Scope, Script, is_method, last_of

__all__ = ["models_of"]

LOSSES = ("loss", "crit", "metric", "nll", "mse", "bce")


def models_of(training: Training, optimizer: ast.expr) -> list[str]:
    """Those whose parameters an optimizer has; if that is not said here, the one that the loop calls."""
    return _by_parameters(training, optimizer) or _by_calls(training)


def _by_parameters(training: Training, optimizer: ast.expr) -> list[str]:
    script, lifted = training.script, training.lifted(optimizer)
    try:
        tree: ast.expr = ast.parse(lifted, mode="eval").body
    except SyntaxError:
        return []
    for value in script.values_of(last_of(tree) or last_of(optimizer)):
        if not isinstance(value, ast.Call):
            continue
        found: list[str] = []
        for node in _receivers(script, value, 0):
            text = _seen_from(training, node, lifted)
            if text is not None and text not in found:
                found.append(text)
        if found:
            return found
    return []


def _receivers(script: Script, value: ast.AST, depth: int) -> Iterator[ast.expr]:
    """Objects whose `parameters()` are in it, also by the name of a list of them."""
    for node in ast.walk(value):
        if is_method(node, "parameters", "named_parameters", "configure_optimizers"):
            if script.text(node.func.value) not in ("self", "super()") or node.func.attr == "parameters":
                yield _whole(script, node.func.value)
        elif isinstance(node, ast.Name) and depth < 2:  # noqa: PLR2004 - a list of groups of a list of parameters
            scope = script.scope_of(node)
            for each in ast.walk(scope):
                if isinstance(each, ast.Assign) and last_of(each.targets[0]) == node.id and each.lineno < node.lineno:
                    yield from _receivers(script, each.value, depth + 1)


def _whole(script: Script, node: ast.expr) -> ast.expr:
    """`model` of `model.head`, `self.model` of `self.model.head`, `model` of `model.module`."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute | ast.Subscript):
        chain.append(chain[-1].value)
    if isinstance(chain[-1], ast.Call) and isinstance(chain[-1].func, ast.Attribute):
        return _whole(script, chain[-1].func.value)
    keeps = 2 if script.text(chain[-1]) == "self" and len(chain) > 1 else 1
    return chain[-keeps]


def _seen_from(training: Training, node: ast.expr, optimizer: str) -> str | None:
    """The model as it is called where the session is; None if it is another function's own."""
    script, text = training.script, training.script.text(node)
    where, scope = script.scope_of(node), training.scope
    holder = optimizer.rsplit(".", 1)[0]
    if "." in optimizer and text.isidentifier():  # self.optimizer, and self.model beside it
        own = any(
            isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and each.attr == text
            for each in ast.walk(script.tree)
        )
        return f"{holder}.{text}" if own else None
    if text.startswith("self."):
        return holder + text.removeprefix("self") if "." in optimizer else None
    if where is scope or isinstance(where, ast.Module):
        return text
    if isinstance(where, ast.FunctionDef) and _has(scope, text):
        return text if text.isidentifier() else None
    return None


def _has(scope: Scope, name: str) -> bool:
    formal = [each.arg for each in scope.args.args] if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return name in formal or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in ast.walk(scope)
    )


def _by_calls(training: Training) -> list[str]:
    script = training.script
    own = {each.name for each in ast.walk(script.tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    scopes: list[ast.AST] = [training.outer, *(hop.function for hop in (*training.hops, *training.within))]
    for scope in reversed(scopes):
        for node in ast.walk(scope):
            if is_method(node, "train", "eval") and not node.args and not isinstance(node.func.value, ast.Call):
                if script.text(node.func.value) == "self" or last_of(node.func.value) in own:
                    continue
                return [training.lifted(_whole(script, node.func.value))]
    for scope in reversed(scopes):
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = last_of(node.func)
            if not isinstance(node.func, ast.Name | ast.Attribute) or name in own:
                continue
            if any(word in name.lower() for word in LOSSES) or not ("model" in name.lower() or "net" in name.lower()):
                continue
            return [training.lifted(node.func)]
    line = training.updates[0].call.lineno
    raise CannotConvert(
        "which model the optimizer has is not said in this file", line, "train.session(model, optimizer, ...) by hand"
    )
