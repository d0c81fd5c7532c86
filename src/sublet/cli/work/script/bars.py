"""What a loop goes over, through `enumerate` and bars that show how far it is: `for i, b in enumerate(tqdm(loader))`.

Epochs may have one, too: `for epoch in tqdm(range(N))`, `for epoch in trange(N)`.
A bar may have a name, so that more can be shown on it: `bar = tqdm(loader)`, in every epoch before its batches.
"""

from __future__ import annotations

import ast

from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import Script

__all__ = ["bar_name", "epochs_of", "first_number", "given_to", "is_counted", "is_shown"]

BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.std.tqdm", "tqdm.notebook.tqdm")  # they give what they go over
RANGES = ("range", "tqdm.trange", "tqdm.auto.trange", "tqdm.notebook.trange")


def epochs_of(script: Script, outer: ast.For) -> ast.Call | None:
    """`range(N)` of `for epoch in range(N)`, or in a bar; None if it goes over something else."""
    over = _under_bar(script, outer.iter)
    if not isinstance(over, ast.Call) or script.full_name(over.func) not in RANGES:
        return None
    return over if script.full_name(over.func) != "range" or not over.keywords else None


def is_shown(script: Script, made: ast.expr) -> bool:
    """Whether it makes a bar, of what it goes over or of a number."""
    return isinstance(made, ast.Call) and script.full_name(made.func) in BARS and len(made.args) <= 1


def is_counted(script: Script, inner: ast.For) -> bool:
    """Whether it has numbers with its batches."""
    return _counted(script, _under_bar(script, inner.iter)) is not None


def first_number(script: Script, inner: ast.For) -> int:
    """That of the first batch: 1 of `enumerate(loader, 1)`."""
    over = _under_bar(script, inner.iter)
    said = _begins(over) if _counted(script, over) is not None and isinstance(over, ast.Call) else []
    return said[0] if said and said[0] is not None else 0


def _counted(script: Script, over: ast.expr) -> ast.expr | None:
    """What `enumerate(loader)`, or `enumerate(loader, 1)`, goes over; None if it counts otherwise."""
    if not isinstance(over, ast.Call) or script.full_name(over.func) != "enumerate" or not over.args:
        return None
    return over.args[0] if None not in _begins(over) else None


def _begins(call: ast.Call) -> list[int | None]:
    """What `enumerate` is told to begin with: a number, or None for what is not known."""
    said = [*call.args[1:], *(word.value for word in call.keywords)]
    return [each.value if isinstance(each, ast.Constant) and type(each.value) is int else None for each in said]


def _under_bar(script: Script, over: ast.expr) -> ast.expr:
    return over.args[0] if isinstance(over, ast.Call) and _is_bar(script, over) else over


def given_to(script: Script, inner: ast.For, outer: ast.For | None) -> ast.expr:
    """The expression at the bottom of it."""
    over = _counted(script, inner.iter) or inner.iter
    if isinstance(over, ast.Name) and (bar := _made(script, over.id, inner, outer)) is not None:
        over = bar
    if not _is_bar(script, over) or not isinstance(over, ast.Call):
        return over
    counted = _counted(script, over.args[0]) if over is inner.iter else None  # of a bar with a name it is not seen
    return over.args[0] if counted is None else counted


def bar_name(script: Script, inner: ast.For, outer: ast.For | None) -> str:
    """Of a bar that has one; "" of any other."""
    over = _counted(script, inner.iter) or inner.iter
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
