"""What a loop goes over, through `enumerate` and bars that show how far it is: `for i, b in enumerate(tqdm(loader))`.

A bar may have a name, so that more can be shown on it: `bar = tqdm(loader)`, in every epoch before its batches.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import Script

__all__ = ["bar_name", "given_to"]

BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.std.tqdm", "tqdm.notebook.tqdm")  # they give what they go over


def given_to(script: Script, inner: ast.For, outer: ast.For | None) -> ast.expr:
    """The expression at the bottom of it."""
    over = inner.iter
    if isinstance(over, ast.Call) and script.full_name(over.func) == "enumerate" and len(over.args) == 1:
        over = over.args[0]
    if isinstance(over, ast.Name) and (bar := _made(script, over.id, inner, outer)) is not None:
        over = bar
    return over.args[0] if _is_bar(script, over) and isinstance(over, ast.Call) else over


def bar_name(script: Script, inner: ast.For, outer: ast.For | None) -> str:
    """Of a bar that has one; "" of any other."""
    over = inner.iter
    if isinstance(over, ast.Call) and script.full_name(over.func) == "enumerate" and len(over.args) == 1:
        over = over.args[0]
    return over.id if isinstance(over, ast.Name) and _made(script, over.id, inner, outer) is not None else ""


def _made(script: Script, name: str, inner: ast.For, outer: ast.For | None) -> ast.Call | None:
    """Where it is made, in every epoch, and nowhere else."""
    if outer is None or inner not in outer.body:
        return None
    values = [value for each, value in bindings_in(script.scope_of(inner)) if each == name]
    before = outer.body[: outer.body.index(inner)]
    made = [each.value for each in before if isinstance(each, ast.Assign) and each.value in values]
    found = made[0] if len(made) == len(values) == 1 else None
    return found if isinstance(found, ast.Call) and _is_bar(script, found) else None


def _is_bar(script: Script, over: ast.expr) -> bool:
    return isinstance(over, ast.Call) and script.full_name(over.func) in BARS and len(over.args) == 1
