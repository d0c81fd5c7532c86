"""Where a loop over batches is left before its end: alike in every worker, or refused.

A worker that leaves an epoch leaves it alone, unless what it goes by is the same in all of them: arguments, the number
of the batch or of the epoch, a count. Losses of its own part of the batch and clocks are not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.calls import GROWS
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import within
from sublet.cli.work.script.reading import is_method, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["early_ends", "is_left_early", "refuse_skips"]

ALIKE = ("len", "int", "float", "min", "max", "abs", "round", "bool", "range", "isinstance", "getattr", "hasattr")
PLAIN = (
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Subscript,
    ast.Call,
)


def is_left_early(inner: ast.For) -> bool:
    """Whether a `break` is in it."""
    return any(isinstance(node, ast.Break) for node in within(inner))


def refuse_skips(inner: ast.For) -> None:
    """A turn that ends without its step, in this worker alone perhaps."""
    for node in within(inner):
        if isinstance(node, ast.Continue | ast.Return):
            raise CannotConvert(
                f"`{type(node).__name__.lower()}` is in the loop",
                node.lineno,
                "every worker must take every batch to s.step(): leave it out of the loss, or of the dataset",
            )
    if inner.orelse:
        do = "write it after the loop"
        if is_left_early(inner):
            do += ", under `if whole:`, with `whole = True` before the loop and `whole = False` before `break`"
        raise CannotConvert("the loop has an `else`", inner.lineno, do)


def early_ends(effects: Effects, around: ast.For, inner: ast.For, first: int, last: int) -> list[ast.stmt]:
    """Statements that leave it after the step, from line `last` on: they belong to a step that was made.

    Before the step, up to line `first`, a batch is left that was only looked at. CannotConvert for any other end.
    """
    found: list[ast.stmt] = []
    for node in within(inner):
        if not isinstance(node, ast.Break):
            continue
        above = [*_up_to(effects, node, inner)]
        if any(isinstance(each, ast.For | ast.While) for each in above):
            raise CannotConvert("`break` is in a loop within the loop", node.lineno, "a function of its own for it")
        if first <= node.lineno <= last:
            why = "`break` is between backward and step, and the session makes its step with backward"
            raise CannotConvert(why, node.lineno, "before backward, or after step")
        for each in above:
            if isinstance(each, ast.If):
                _refuse_unlike(effects, around, each.test, node.lineno, set())
            elif not isinstance(each, ast.With):
                raise CannotConvert("`break` is not under a plain `if`", node.lineno, "`if step >= N: break`")
        if node.lineno > last:
            found.append(next((each for each in above if isinstance(each, ast.If)), node))
    return found


def _up_to(effects: Effects, node: ast.stmt, inner: ast.For) -> Iterator[ast.stmt]:
    for each in effects.script.above(node):
        if each is inner:
            return
        if isinstance(each, ast.stmt):
            yield each


def _refuse_unlike(effects: Effects, around: ast.For, value: ast.expr, line: int, seen: set[str]) -> None:
    """What is the same at every worker: names that nobody changes, and what is computed from such by plain means."""
    script, scope = effects.script, effects.script.scope_of(around)
    for node in ast.walk(value):
        if isinstance(node, ast.expr) and not isinstance(node, PLAIN):
            raise _unlike(script.text(value), line)
        if isinstance(node, ast.Call) and script.full_name(node.func) not in ALIKE:
            raise _unlike(script.text(node), line)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in seen:
            seen.add(node.id)
            given = [*effects.given_in(around, node.id), *_put_into(around, node.id)]
            if not given and effects.is_imported(node) and script.full_name(node) not in ALIKE:
                raise _unlike(node.id, line)
            for each in given:
                if not (_is_of_loop(each, around) or effects.is_loader(each, scope)):  # what a batch has is seen to
                    _refuse_unlike(effects, around, each, line, seen)


def _put_into(around: ast.For, name: str) -> Iterator[ast.expr]:
    """What the loop puts into an object: `state["t"] = ...`, `seen.append(...)`."""
    for node in ast.walk(around):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign):
            parts = [each for each in targets if isinstance(each, ast.Subscript | ast.Attribute)]
            yield from (node.value for each in parts if root_of(each) == name)
        elif is_method(node, *GROWS) and root_of(node.func) == name:
            yield from node.args


def _is_of_loop(value: ast.expr, around: ast.For) -> bool:
    """`epoch`, of `for epoch in range(N)`."""
    return value is around.iter


def _unlike(what: str, line: int) -> CannotConvert:
    return CannotConvert(
        f"`break` goes by `{what}`, which may be otherwise in another worker",
        line,
        "by s.steps, s.steps_in_epoch, a count or an argument, which are the same in all workers; or by s.loss",
    )
