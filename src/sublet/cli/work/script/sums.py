"""Whether a loss is a sum over samples, where its lines say so: a session has to be told."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.loops import Training
from sublet.cli.work.script.reading import Scope, Script, is_method, last_of

__all__ = ["is_summed"]


def is_summed(training: Training) -> bool:
    """A sum that nothing divides, in the lines that make the loss."""
    script = training.script
    call = training.backwards[-1]
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - it is a method
    made = list(_made_of(script, call.func.value, script.scope_of(call), 0))
    sums = any(_sums(script, node) for each in made for node in ast.walk(each))
    divided = any(
        isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
        for each in made
        for node in ast.walk(each)
    )
    means = any(
        is_method(node, "mean") or last_of(getattr(node, "func", node)) == "mean"
        for each in made
        for node in ast.walk(each)
    )
    return sums and not divided and not means


def _made_of(script: Script, node: ast.AST, scope: Scope, depth: int) -> Iterator[ast.AST]:
    """The expression, and those that its names and functions were given."""
    yield node
    if depth > 3:  # noqa: PLR2004 - a loss of a sum of a call of a function
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            for line in ast.walk(scope):
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                if not isinstance(line, ast.Assign | ast.AugAssign) or last_of(target or line) != each.id:
                    continue
                if script.scope_of(line) is scope and line.lineno <= getattr(node, "lineno", 0):
                    if isinstance(line, ast.AugAssign):
                        yield line
                    if line.value is not node:
                        yield from _made_of(script, line.value, scope, depth + 1)
        if isinstance(each, ast.Call):
            name = last_of(each.func)
            for value in script.values_of(name):  # criterion = nn.MSELoss(reduction="sum")
                if isinstance(value, ast.Call):
                    yield value
            for function in ast.walk(script.tree):
                if isinstance(function, ast.FunctionDef) and function.name == name and "loss" in name.lower():
                    for back in ast.walk(function):
                        if isinstance(back, ast.Return) and back.value is not None:
                            yield from _made_of(script, back.value, function, depth + 1)


def _sums(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    for word in node.keywords:
        text = script.text(word.value)
        if (word.arg == "reduction" and text in ('"sum"', "'sum'")) or (word.arg == "size_average" and text == "False"):
            return True
    whole = not node.args and not node.keywords
    return is_method(node, "sum") and whole and script.text(node.func.value) not in ("torch", "np", "numpy")
