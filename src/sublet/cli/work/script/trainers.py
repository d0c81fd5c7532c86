"""Loops in methods (`class Trainer`): not converted, and told line by line what to write."""

from __future__ import annotations

import ast

from sublet.cli.work.script.bars import given_to
from sublet.cli.work.script.reading import Script, is_method
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_methods"]


def refuse_methods(script: Script) -> None:
    """CannotConvert if the loop in which a step is made is in a method."""
    for node in ast.walk(script.tree):
        loop = next((each for each in script.above(node) if isinstance(each, ast.For)), None)
        backward = [] if loop is None else [each for each in ast.walk(loop) if is_method(each, "backward")]
        if loop is None or not backward or not is_method(node, "step") or not _is_own(node.func.value):
            continue
        method = script.scope_of(loop)
        owner = script.parents.get(method)
        if isinstance(method, ast.Module) or not isinstance(owner, ast.ClassDef):
            continue
        optimizer, loader = script.text(node.func.value), script.text(given_to(script, loop, None))
        around = _epochs(script, owner, method, loop)
        update = sorted(
            {
                each.lineno
                for each in ast.walk(loop)
                if is_method(each, "backward", "zero_grad") or (is_method(each, "step") and _is_own(each.func.value))
            }
        )
        lines = ", ".join(map(str, update))
        raise CannotConvert(
            f"the loop is in a method, {owner.name}.{method.name}(), and what it trains is in `self`",
            loop.lineno,
            f"by hand: `with train.session({_model(script, owner)}, {optimizer}, {loader}, epochs=N) as s:` and in it "
            f"`for epoch in s.epochs():` in line {around.lineno}; `for {script.text(loop.target)} in s:` in line "
            f"{loop.lineno}; `s.step(loss)` in place of lines {lines}; what the object remembers (a count, a best) is "
            "kept by kept = s.keep(best=...)",
        )


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _epochs(
    script: Script, owner: ast.ClassDef, method: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For
) -> ast.For:
    """The loop over epochs: around it, or around a call of its method; itself if there is none."""
    above = [each for each in script.above(loop) if isinstance(each, ast.For)]
    if above:
        return above[0]
    calls = [node for node in ast.walk(owner) if is_method(node, method.name)]
    around = [each for call in calls for each in script.above(call) if isinstance(each, ast.For)]
    return around[0] if around else loop


def _model(script: Script, owner: ast.ClassDef) -> str:
    """What is put into its training mode, or has parameters."""
    for word in ("parameters", "train"):
        for node in ast.walk(owner):
            if is_method(node, word) and _is_own(node.func.value):
                return script.text(node.func.value)
    return "self.model"
