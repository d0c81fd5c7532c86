"""Torch's dice are each worker's own: what a loop chooses by one of them is another choice in each.

if torch.rand(1) < 0.5:              # `random.random() < 0.5` is the same in all: sublet.train.choices
    loss = ...
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.calls import draws, seeds, tells
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.kinds import within
from sublet.cli.work.script.reading import Scope, Script, is_method, names_in
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["DO", "WHY", "chosen_by_torch", "refuse_own_dice"]

WHY = "torch's dice are each worker's own, and what is chosen by this one is another in each"
DO = "random.random(), or numpy's: the same in all workers"


def refuse_own_dice(effects: Effects, around: ast.AST, inner: ast.AST) -> None:
    """CannotConvert if what all of a batch is trained by, or anything but a print, goes by one of them."""
    if line := min(chosen_by_torch(effects, around, inner), default=0):
        raise CannotConvert(WHY, line, DO)


def chosen_by_torch(effects: Effects, around: ast.AST, inner: ast.AST) -> Iterator[int]:
    """Lines that throw a die for a condition of the loop, or for one number in the loop over batches."""
    script = effects.script
    statements = [each for each in ast.walk(around) if isinstance(each, ast.stmt) and _only_tells(effects, each)]
    told = {id(node) for each in statements for node in ast.walk(each)}
    for node in within(around):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and id(node) not in told:
            yield from _thrown(effects, node.test, script.scope_of(node))
    for node in within(inner):
        if isinstance(node, ast.Call) and id(node) not in told and _is_own(script, node) and _is_one(script, node):
            yield node.lineno


def _only_tells(effects: Effects, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    printed = isinstance(call, ast.Call) and tells(effects.script.full_name(call.func))
    return printed or effects.only_tells(statement)


def _thrown(effects: Effects, test: ast.expr, scope: Scope) -> Iterator[int]:
    """In a condition, in what its names are made from in a turn, and in functions that it asks."""
    names = effects.rests_on(names_in(test), scope)
    where = effects.loop if effects.loop is not None else scope
    values = [test, *(value for name in names for value in effects.given_in(where, name))]
    for value in values:
        for node in (each for piece in (value, *effects.reached(value)) for each in ast.walk(piece)):
            if isinstance(node, ast.Call) and _is_own(effects.script, node):
                yield node.lineno


def _is_own(script: Script, call: ast.Call) -> bool:
    """Whether it draws from torch's generator of the process; one of the script's is part of the state."""
    full = script.full_name(call.func)
    given = any(word.arg == "generator" for word in call.keywords)
    return full.startswith("torch.") and "nn" not in full.split(".") and draws(full) and not seeds(full) and not given


def _is_one(script: Script, call: ast.Call) -> bool:
    """`torch.rand(1)`, `torch.randint(5, (1,))`, `torch.rand(1).item()`: for all samples of a batch."""
    above = script.parents.get(call)
    if isinstance(above, ast.Attribute) and is_method(script.parents[above], "item"):
        return True
    last = script.full_name(call.func).rpartition(".")[2]
    size = call.args[-1:] if last == "randint" else call.args[:1] if last in ("rand", "randn") else []
    return len(size) == 1 and script.text(size[0]) in ("1", "()", "(1,)", "[1]", "[]")
