"""The loop that trains, found by its structure: `backward()` and the optimizer's `step()`, and the loops around them.

for epoch in range(n):          epochs, if there is such a loop
    one_epoch(model, loader)    a hop, if the batches are in another function
        for x, y in batches:    batches
            loss.backward()     backwards
            optimizer.step()    updates
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sublet.cli.work.script.reading import CannotConvert, Hop, Script, is_method, lifted, names_in, root_of

Loop = ast.For | ast.While
OWN = "train.checkpointed, for a loop that stays as it is: docs/guides/make-a-script-elastic.md"
ONE = "a job of its own for each fold, seed or stage: a job has one training"
SEVERAL = "the session with a name for each optimizer: docs/reference/session.md#several-models-and-optimizers"
SCHEDULES = ("sched", "warmup", "lr_policy", "lrpolicy", "annealing", "plateau")
OPTIMIZERS = ("opt", "solver", "adam", "sgd")


class Update(NamedTuple):
    """One `step()` of an optimizer."""

    call: ast.Call
    optimizer: ast.expr
    scaler: ast.expr | None


@dataclass
class Training:
    """The parts of a training loop."""

    script: Script
    updates: list[Update]
    backwards: list[ast.Call]
    loops: list[tuple[Loop, int]]  # around the update, innermost first, with the calls in between
    hops: list[Hop]  # functions between the update and the outer loop, innermost first

    def __post_init__(self) -> None:
        (self.batches, depth), (self.outer, calls) = self.loops[0], self.loops[-1]  # the session goes around `outer`
        self.epochs = self.outer if len(self.loops) > 1 else None
        self.within, self.hops = self.hops[:depth], self.hops[:calls]  # within: between the update and the batches
        self.scope = self.script.scope_of(self.outer)  # where the session is made
        self.inner_scope = self.script.scope_of(self.updates[0].call)
        inner = [each for each in self.script.within(self.backwards[0], self.batches) if isinstance(each, ast.For)]
        known = [loop for loop, _ in self.loops]
        self.micro = next((each for each in reversed(inner) if each not in known), None)  # the update is behind it

    @property
    def steps(self) -> list[ast.Call]:
        """The calls of `step()`."""
        return [update.call for update in self.updates]

    def lines(self) -> list[ast.AST]:
        """All nodes of the loops, and of the functions between them and the update."""
        parts = [self.outer, *(hop.function for hop in self.hops)]
        return list(dict.fromkeys(node for part in parts for node in ast.walk(part)))

    def lifted(self, node: ast.expr) -> str:
        """An expression of the update's function, in the names that it has where the session is made."""
        scopes = [hop.function for hop in self.hops]
        text, scope = self.script.text(node), self.script.scope_of(node)
        for hop in self.hops[scopes.index(scope) :] if scope in scopes else []:
            text = lifted(self.script, hop, text)
        return text


def the_training(script: Script) -> Training:
    """The only one of the script; CannotConvert if there is none, or several."""
    found: dict[Loop, Training] = {}
    for update in _updates(script):
        training = _around(script, update)
        first = found.setdefault(training.batches, training)
        if first is not training:
            first.updates.append(update)
            first.backwards += [call for call in training.backwards if call not in first.backwards]
    if not found:
        raise _nothing(script)
    training, *others = found.values()
    if others:
        why = f"there is a second training loop, beside that of line {training.batches.lineno}"
        raise CannotConvert(why, others[0].batches.lineno, ONE)
    training.backwards.sort(key=lambda call: call.lineno)
    training.updates.sort(key=lambda update: update.call.lineno)
    names = dict.fromkeys(f"`{training.lifted(update.optimizer)}`" for update in training.updates)
    if len(names) > 1:
        why = f"several optimizers are stepped: {', '.join(names)}"
        raise CannotConvert(why, training.updates[-1].call.lineno, SEVERAL)
    for what, do, calls in (
        (f"{next(iter(names))} is stepped twice for one batch", "one step for each batch", training.steps),
        ("two backward() come before one step", "one backward() of the sum of both losses", training.backwards),
    ):
        for one, other in itertools.combinations(calls, 2):
            if not excludes(script, one, other):
                raise CannotConvert(what, other.lineno, do)
    return training


def excludes(script: Script, one: ast.AST, other: ast.AST) -> bool:
    """Whether they are in two ways of an `if`."""
    return any(splits(script, each, (one, other)) for each in script.above(one))


def splits(script: Script, each: ast.AST, calls: Sequence[ast.AST]) -> bool:
    """Whether it is an `if` with some of them in each of its ways."""
    inside = [call for call in calls if is_in(script, call, [each])]
    return isinstance(each, ast.If) and len({is_in(script, call, each.body) for call in inside}) > 1


def is_in(script: Script, node: ast.AST, block: Sequence[ast.AST]) -> bool:
    """Whether it is one of these statements, or below one."""
    return any(each in block for each in [node, *script.above(node)])


def _updates(script: Script) -> Iterator[Update]:
    """Every `step()` of an optimizer in a function that has a backward pass, too."""
    for node in script.calls:
        if is_method(node, "step") and _backwards(script, node):
            receiver = node.func.value
            scales = script.made_by(receiver).endswith("GradScaler") or "scaler" in script.text(receiver).lower()
            if node.args and scales:
                yield Update(call=node, optimizer=node.args[0], scaler=receiver)
            elif kind_of(script, receiver) == "optimizer":
                if node.args or node.keywords:
                    raise CannotConvert("optimizer.step(closure) computes the loss several times", node.lineno, OWN)
                yield Update(call=node, optimizer=receiver, scaler=None)


def _backwards(script: Script, beside: ast.AST) -> list[ast.Call]:
    scope = script.scope_of(beside)
    return [node for node in script.calls if is_method(node, "backward") and script.scope_of(node) is scope]


def kind_of(script: Script, node: ast.expr) -> str:
    """Whether this is an "optimizer" or a "schedule", by its name or what made it; "" for all else."""
    name = script.text(node).lower().split("[")[0].split("(")[0].rsplit(".", 1)[-1]
    for text, optimizers in ((name, OPTIMIZERS), (script.made_by(node).lower(), ("optim",))):
        if any(word in text for word in SCHEDULES):
            return "schedule"
        if any(word in text for word in optimizers):
            return "optimizer"
    return ""


def _around(script: Script, update: Update) -> Training:
    """The loops around an update, through the calls of the functions that it is in."""
    loops, hops = _loops_around(script, update.call)
    line, why, do = update.call.lineno, "", ""
    if not loops:
        where = getattr(script.scope_of(update.call), "name", "")
        why = f"the step{f' in {where}()' if where else ''} is in no loop of this file"
        do = "convert the file whose loop calls it"
    for loop, _ in loops:
        if isinstance(loop, ast.For) and root_of(update.optimizer) in names_in(loop.target):
            line, why, do = loop.lineno, "a loop steps a list of optimizers", SEVERAL
    if len(loops) > 2:  # noqa: PLR2004 - of batches, and of epochs
        line, why, do = loops[2][0].lineno, "the loop over epochs is in another loop", ONE
    if why:
        raise CannotConvert(why, line, do)
    batches, depth = loops[0]
    calls = [call for call in _backwards(script, update.call) if is_in(script, call, [batches]) == (depth == 0)]
    backwards = [call for call in calls if depth == 0 or call.lineno < line]
    if not backwards or backwards[0].lineno > line:
        raise CannotConvert("no backward() comes before this step", line, "a loop with both")
    return Training(script, [update], backwards, loops, hops)


def _loops_around(script: Script, node: ast.AST) -> tuple[list[tuple[Loop, int]], list[Hop]]:
    """Each loop with the number of calls between it and the node, innermost first; and the calls."""
    loops: list[tuple[Loop, int]] = []
    hops: list[Hop] = []
    while True:
        scope = script.scope_of(node)
        loops += [(each, len(hops)) for each in script.within(node, scope) if isinstance(each, Loop)]
        if not isinstance(scope, ast.FunctionDef) or any(hop.function is scope for hop in hops):
            return loops, hops
        calls = list(script.calls_of(scope))  # `except OutOfMemoryError: train(...)` is the same once more
        calls = [call for call in calls if not any(isinstance(each, ast.ExceptHandler) for each in script.above(call))]
        if len(calls) > 1 and (not loops or len({script.scope_of(call) for call in calls}) == 1):
            do = f"one call of {scope.name}() in the loop; or a job of its own for each training"
            raise CannotConvert(f"{scope.name}() makes steps, and is called in {len(calls)} places", scope.lineno, do)
        if len(calls) != 1:
            return loops, hops
        hops.append(Hop(calls[0], scope))
        node = calls[0]


def _nothing(script: Script) -> CannotConvert:
    """No update was found: the reason, or the file with the loop that it imports from its folder or one above."""
    for call in script.calls:
        if is_method(call, "backward", "manual_backward"):
            do = "the loop, its backward() and the optimizer's step() in one file"
            return CannotConvert("no step() of an optimizer comes after this backward()", call.lineno, do)
    for name, folder in itertools.product(sorted(script.modules), script.path.resolve().parents[:3]):
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            where = folder.joinpath(*parts[:count]).with_suffix(".py")
            if where.is_file() and b".backward(" in where.read_bytes():
                return CannotConvert(f"the training loop is in {where}", 1, f"sublet convert {where}", where)
    why = "neither this file nor one that it imports has a backward()"
    return CannotConvert(why, 1, "name the script, or the file, that trains")
