"""The loop that trains, by its structure: `backward()` is its anchor, the optimizer's `step()` its end.

def fit(...):                            scope: where the session is made
for epoch in range(n):               epochs, if there is such a loop
one_epoch(model, loader)         a hop, if the batches are in another function

def one_epoch(model, batches):
for x, y in batches:                 batches
... loss.backward() ...          backwards
optimizer.step()                 updates
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sublet.cli.work.script.reading import (
    CannotConvert,
    Hop,
    Scope,
    Script,
    arguments,
    is_local,
    is_method,
    last_of,
    names_in,
    only_value,
    root_of,
    substituted,
)

__all__ = ["Training", "Update", "is_optimizer", "the_training"]

Loop = ast.For | ast.While
OWN = "train.checkpointed: it keeps a loop of the script's own"
ONE = "a process has one training: a job of its own for each fold, seed or stage"
SCHEDULES = ("sched", "warmup", "lr_policy", "annealing", "plateau")
OPTIMIZERS = ("solver", "trainer_g", "trainer_d", "adam", "sgd", "adamw")
CLOSURE = "optimizer.step(closure) computes the loss as often as it likes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One `step()` of an optimizer."""

    call: ast.Call
    optimizer: ast.expr
    scaler: ast.expr | None


@dataclass(kw_only=True)
class Training:
    """All that is found of one."""

    script: Script
    backwards: list[ast.Call]
    updates: list[Update]
    batches: Loop
    epochs: Loop | None
    hops: list[Hop]  # from the function of the batches outwards to that of the epochs
    within: list[Hop]  # from that of the update outwards to that of the batches
    micro: ast.For | None  # around the backward, and not around the update

    def __post_init__(self) -> None:
        self.outer = self.epochs or self.batches  # the session goes around it
        self.scope = self.script.scope_of(self.outer)  # where the session is made
        self.inner_scope = self.script.scope_of(self.updates[0].call)

    @property
    def around(self) -> list[ast.AST]:
        """What the update is in."""
        return list(self.script.above(self.updates[0].call))

    def lines(self) -> list[ast.AST]:
        """All of the loops, and of the functions between them and the update."""
        parts = [self.outer, *(hop.function for hop in (*self.hops, *self.within))]
        return list(dict.fromkeys(node for part in parts for node in ast.walk(part)))

    def lifted(self, node: ast.expr) -> str:
        """An expression of the update's function, as it is called where the session is made."""
        hops = [*self.within, *self.hops]
        scopes = [hop.function for hop in hops]
        text, scope = self.script.text(node), self.script.scope_of(node)
        for hop in hops[scopes.index(scope) :] if scope in scopes else []:
            text = self._through(hop, text)
        return text

    def _through(self, hop: Hop, text: str) -> str:
        given = arguments(self.script, hop)
        for name in sorted(names_in(ast.parse(text, mode="eval"))):
            if name not in given and is_local(hop.function, name):
                value = only_value(hop.function, name)
                if value is None or any(is_local(hop.function, each) and each not in given for each in names_in(value)):
                    raise CannotConvert(
                        f"`{name}` is made in {hop.function.name}(), which is called again and again",
                        hop.function.lineno,
                        f"make `{name}` once, before the loop over epochs, and hand it to {hop.function.name}()",
                    )
                given[name] = substituted(self.script.text(value), given)
        return substituted(text, given)


def the_training(script: Script) -> Training:
    """The only one there is; CannotConvert if there is none, or several."""
    found: list[Training] = []
    for update in _updates(script):
        training = _around(script, update)
        same = next((each for each in found if each.batches is training.batches), None)
        if same is None:
            found.append(training)
        else:
            same.updates += training.updates
            same.backwards += [call for call in training.backwards if call not in same.backwards]
    if not found:
        raise _nothing(script)
    if len(found) > 1:
        line = found[1].batches.lineno
        raise CannotConvert(f"a second loop trains, beside that of line {found[0].batches.lineno}", line, ONE)
    found[0].backwards.sort(key=lambda call: call.lineno)
    found[0].updates.sort(key=lambda update: update.call.lineno)
    return found[0]


def _updates(script: Script) -> Iterator[Update]:
    """Every `step()` of an optimizer that a backward pass comes before, in one function."""
    for node in script.calls:
        if not is_method(node, "step") or not _backwards(script, script.scope_of(node)):
            continue
        receiver = node.func.value
        if node.args and (script.made_by(receiver).endswith("GradScaler") or "scaler" in script.text(receiver).lower()):
            yield Update(call=node, optimizer=node.args[0], scaler=receiver)
        elif is_optimizer(script, receiver):
            if node.args or node.keywords:
                raise CannotConvert(CLOSURE, node.lineno, OWN)
            yield Update(call=node, optimizer=receiver, scaler=None)


def _backwards(script: Script, scope: Scope) -> list[ast.Call]:
    return [node for node in script.calls if is_method(node, "backward") and script.scope_of(node) is scope]


def is_optimizer(script: Script, node: ast.expr) -> bool:
    """Of what has a `step()`: not a schedule, a profiler, an environment."""
    text, scope = script.text(node), script.scope_of(node)
    if isinstance(node, ast.Name) and isinstance(scope, ast.FunctionDef):
        for call in script.calls_of(scope):
            given = arguments(script, Hop(call, scope)).get(node.id)
            if given is not None and given != node.id and given.isidentifier():
                text = given
    made = script.made_by(ast.Name(text) if text.isidentifier() else node).lower()
    if any(word in made for word in ("lr_scheduler", "schedule", "lrpolicy")):
        return False
    last = text.lower().rsplit(".", 1)[-1].split("[")[0].split("(")[0]
    if "optim" in made or any(word in last for word in SCHEDULES):
        return "optim" in made
    return "opt" in last or last in OPTIMIZERS


def _around(script: Script, update: Update) -> Training:
    """The loops around an update, through the calls of the functions that they are in."""
    node: ast.AST = update.call
    loops: list[tuple[Loop, int]] = []
    hops: list[Hop] = []
    while True:
        scope = script.scope_of(node)
        loops += [(each, len(hops)) for each in script.within(node, scope) if isinstance(each, Loop)]
        if not isinstance(scope, ast.FunctionDef) or any(hop.function is scope for hop in hops):
            break
        calls = [  # `except OutOfMemoryError: train(...)` is the same once more
            call
            for call in script.calls_of(scope)
            if not any(isinstance(each, ast.ExceptHandler) for each in script.above(call))
        ]
        if len(calls) > 1 and (not loops or len({script.scope_of(call) for call in calls}) == 1):
            do = f"one call of {scope.name}() in the loop; or a job of its own for each training"
            raise CannotConvert(f"{scope.name}() makes steps, and is called in {len(calls)} places", scope.lineno, do)
        if len(calls) != 1:
            break
        hops.append(Hop(calls[0], scope))
        node = calls[0]
    for loop, _ in loops:
        if isinstance(loop, ast.For) and root_of(update.optimizer) in names_in(loop.target):
            do = "one optimizer with a group for each part"
            raise CannotConvert("the optimizers of a list are stepped in turn", loop.lineno, do)
    if not loops:
        where = getattr(script.scope_of(update.call), "name", "")
        why = f"the step{f' in {where}()' if where else ''} is in no loop of this file"
        raise CannotConvert(why, update.call.lineno, "convert the file whose loop calls it")
    if len(loops) > 2:  # noqa: PLR2004 - of batches, and of epochs
        raise CannotConvert("the loop over epochs is in another loop", loops[2][0].lineno, ONE)
    (batches, depth), (epochs, outer_depth) = loops[0], loops[1] if len(loops) > 1 else (None, loops[0][1])
    inside = batches in list(script.above(update.call))
    backwards = [
        call
        for call in _backwards(script, script.scope_of(update.call))
        if (batches in list(script.above(call))) == inside
    ]
    if not backwards:
        raise CannotConvert("no backward() comes before this step", update.call.lineno, "a loop with both")
    known = [loop for loop, _ in loops]
    between = [each for each in script.within(backwards[0], batches) if each not in known and isinstance(each, ast.For)]
    return Training(
        script=script,
        backwards=backwards,
        updates=[update],
        batches=batches,
        epochs=epochs,
        within=hops[:depth],
        hops=hops[depth:outer_depth],
        micro=between[-1] if between else None,
    )


def _beside(script: Script) -> Path | None:
    """A file that it imports from its own folder, or one above, and that has a backward()."""
    for name in sorted(script.modules):
        parts = name.split(".")
        for folder in script.path.resolve().parents[:3]:
            for count in range(len(parts), 0, -1):
                path = folder.joinpath(*parts[:count]).with_suffix(".py")
                if path.is_file() and b".backward(" in path.read_bytes():
                    return path
    return None


def _nothing(script: Script) -> CannotConvert:
    """No update was found: what there is instead."""
    backward = next((node for node in script.calls if is_method(node, "backward", "manual_backward")), None)
    if backward is None:
        if (where := _beside(script)) is not None:
            return CannotConvert(f"its loop is in {where}, which it imports", 1, f"sublet convert {where}", where)
        why = "no backward() is in it, or in a file that it imports"
        return CannotConvert(why, 1, "name the script, or the file, that trains")
    if any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in script.nodes):
        do = "an optimizer of torch.optim: torch.optim.SGD(model.parameters(), lr=lr) makes that update"
        return CannotConvert("no optimizer makes a step: `.grad` is used by hand", backward.lineno, do)
    for node in script.calls:
        if is_method(node, "step") and len(node.args) == 1 and "opt" in script.text(node.func.value).lower():
            return CannotConvert(CLOSURE, node.lineno, OWN)
        if "step" in last_of(node.func) and node.lineno > backward.lineno:
            what = f"the update is in {last_of(node.func)}(), which is not in this file"
            return CannotConvert(what, node.lineno, "its lines, with `optimizer.step()`, where the loop is")
    do = "the loop, its backward() and the optimizer's step() in one file"
    return CannotConvert("no step() of an optimizer comes after this backward()", backward.lineno, do)
