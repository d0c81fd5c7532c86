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

from sublet.cli.work.script.calls import Hop, arguments, is_local, only_value, substituted
from sublet.cli.work.script.edits import CannotConvert
from sublet.cli.work.script.reading import Scope, Script, is_method, last_of, names_in, root_of

__all__ = ["Training", "Update", "is_optimizer", "the_training"]

LOOP = ast.For | ast.While
OWN = "train.checkpointed: it keeps a loop of the script's own"
ONE = "a process has one training: a job of its own for each fold, seed or stage"
SCHEDULES = ("sched", "warmup", "lr_policy", "annealing", "plateau")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One `step()` of an optimizer."""

    call: ast.Call
    optimizer: ast.expr
    scaler: ast.expr | None


@dataclass(slots=True, kw_only=True)
class Training:
    """All that is found of one."""

    script: Script
    backwards: list[ast.Call]
    updates: list[Update]
    batches: ast.For | ast.While
    epochs: ast.For | ast.While | None
    hops: list[Hop]  # from the function of the batches outwards to that of the epochs
    within: list[Hop]  # from that of the update outwards to that of the batches
    micro: ast.For | None  # around the backward, and not around the update

    @property
    def outer(self) -> ast.For | ast.While:
        """The session goes around it."""
        return self.epochs or self.batches

    @property
    def scope(self) -> Scope:
        """Where the session is made."""
        return self.script.scope_of(self.outer)

    @property
    def inner_scope(self) -> Scope:
        """Where the update is."""
        return self.script.scope_of(self.updates[0].call)

    def lines(self) -> Iterator[ast.AST]:
        """All of the loops, and of the functions between them and the update."""
        for node in (self.outer, *(hop.function for hop in (*self.hops, *self.within))):
            yield from ast.walk(node)

    def lifted(self, node: ast.expr) -> str:
        """An expression of the update's function, as it is called where the session is made."""
        hops = [*self.within, *self.hops]
        scopes = [hop.function for hop in hops]
        scope = self.script.scope_of(node)
        if scope not in scopes:
            return self.script.text(node)
        text, tree = self.script.text(node), node
        for hop in hops[scopes.index(scope) :]:
            text = self._through(hop, tree, text)
            tree = ast.parse(text, mode="eval").body
        return text

    def _through(self, hop: Hop, tree: ast.expr, text: str) -> str:
        given = arguments(self.script, hop)
        bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        for name in sorted(bound):
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
    for each in found:
        each.backwards.sort(key=lambda call: call.lineno)
        each.updates.sort(key=lambda update: update.call.lineno)
    return found[0]


def _updates(script: Script) -> Iterator[Update]:
    """Every `step()` of an optimizer that a backward pass comes before, in one function."""
    for node in ast.walk(script.tree):
        if not is_method(node, "step"):
            continue
        scope = script.scope_of(node)
        if not list(_backwards(script, scope)):
            continue
        receiver = node.func.value
        if node.args and _is_scaler(script, receiver):
            yield Update(call=node, optimizer=node.args[0], scaler=receiver)
        elif is_optimizer(script, receiver):
            if node.args or node.keywords:
                raise CannotConvert("optimizer.step(closure) computes the loss as often as it likes", node.lineno, OWN)
            yield Update(call=node, optimizer=receiver, scaler=None)


def _backwards(script: Script, scope: Scope) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if is_method(node, "backward") and script.scope_of(node) is scope:
            yield node


def is_optimizer(script: Script, node: ast.expr) -> bool:
    """Of what has a `step()`: not a schedule, a profiler, an environment."""
    text = script.text(node)
    scope = script.scope_of(node)
    if isinstance(node, ast.Name) and isinstance(scope, ast.FunctionDef):
        for call in script.calls_of(scope):
            given = arguments(script, Hop(call, scope)).get(node.id)
            if given is not None and given != node.id and given.isidentifier():
                text = given
    last = text.lower().rsplit(".", 1)[-1].split("[")[0].split("(")[0]
    made = script.made_by(ast.Name(text)) if text.isidentifier() else script.made_by(node)
    if made and any(word in made.lower() for word in ("lr_scheduler", "schedule", "lrpolicy")):
        return False
    if made and (".optim." in made or made.lower().endswith(("optimizer", "optimizers")) or "optim" in made.lower()):
        return True
    if any(word in last for word in SCHEDULES):
        return False
    return "opt" in last or last in ("solver", "trainer_g", "trainer_d", "adam", "sgd", "adamw")


def _is_scaler(script: Script, node: ast.expr) -> bool:
    made = script.made_by(node) or ""
    return made.endswith("GradScaler") or "scaler" in script.text(node).lower()


def _around(script: Script, update: Update) -> Training:
    """The loops around an update, through the calls of the functions that they are in."""
    node: ast.AST = update.call
    loops: list[tuple[ast.For | ast.While, int]] = []
    hops: list[Hop] = []
    while True:
        scope = script.scope_of(node)
        for each in script.above(node):
            if each is scope:
                break
            if isinstance(each, LOOP):
                loops.append((each, len(hops)))
        if not isinstance(scope, ast.FunctionDef):
            break
        calls = [call for call in script.calls_of(scope) if not _is_second_try(script, call)]
        if not calls:
            break
        if len(calls) > 1:
            if not loops or len({script.scope_of(call) for call in calls}) == 1:
                raise CannotConvert(
                    f"{scope.name}() is called {len(calls)} times, and makes steps", calls[1].lineno, ONE
                )
            break
        if any(hop.function is scope for hop in hops):
            break
        hops.append(Hop(calls[0], scope))
        node = calls[0]
    loops = [(loop, depth) for loop, depth in loops if not _is_over_optimizers(update, loop)]
    if not loops:
        name = getattr(script.scope_of(update.call), "name", "")
        where = f" in {name}()" if name else ""
        raise CannotConvert(
            f"the step{where} is in no loop of this file", update.call.lineno, "convert the file whose loop calls it"
        )
    (batches, depth), rest = loops[0], loops[1:]
    epochs = None
    if rest:
        (epochs, outer_depth), rest = rest[0], rest[1:]
        if rest:
            raise CannotConvert("the loop over epochs is in another loop", rest[0][0].lineno, ONE)
    else:
        outer_depth = depth
    scope = script.scope_of(update.call)
    backwards = [call for call in _backwards(script, scope) if _shares(script, call, update.call, batches)]
    if not backwards:
        raise CannotConvert("no backward() comes before this step", update.call.lineno, "a loop with both")
    inside = [
        each
        for each in _loops_between(script, backwards[0], batches)
        if each not in [loop for loop, _ in loops] and isinstance(each, ast.For)
    ]
    return Training(
        script=script,
        backwards=backwards,
        updates=[update],
        batches=batches,
        epochs=epochs,
        within=hops[:depth],
        hops=hops[depth:outer_depth],
        micro=inside[-1] if inside else None,
    )


def _is_second_try(script: Script, call: ast.Call) -> bool:
    """`except OutOfMemoryError: train(...)`: the same once more."""
    return any(isinstance(each, ast.ExceptHandler) for each in script.above(call))


def _loops_between(script: Script, node: ast.AST, outer: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for each in script.above(node):
        if each is outer or isinstance(each, Scope):
            break
        if isinstance(each, LOOP):
            found.append(each)
    return found


def _shares(script: Script, call: ast.Call, step: ast.Call, batches: ast.AST) -> bool:
    """Whether a backward pass is in the loop of the step, or both in a function that has no loop."""
    above, others = list(script.above(call)), list(script.above(step))
    return (batches in above) == (batches in others)


def _is_over_optimizers(update: Update, loop: ast.AST) -> bool:
    if isinstance(loop, ast.For) and root_of(update.optimizer) in names_in(loop.target):
        raise CannotConvert(
            "the optimizers of a list are stepped in turn", loop.lineno, "one optimizer with a group for each part"
        )
    return False


def _beside(script: Script) -> Iterator[Path]:
    """Files that it imports from its own folder, or the one above, and that have a backward()."""
    for name in sorted(script.modules):
        for folder in script.path.resolve().parents[:3]:
            parts = name.split(".")
            for count in range(len(parts), 0, -1):
                path = folder.joinpath(*parts[:count]).with_suffix(".py")
                if path.is_file() and b".backward(" in path.read_bytes():
                    yield path


def _nothing(script: Script) -> CannotConvert:
    """No update was found: what there is instead."""
    backward = next((node for node in ast.walk(script.tree) if is_method(node, "backward", "manual_backward")), None)
    if backward is None:
        where = next(iter(_beside(script)), None)
        if where is not None:
            return CannotConvert(f"its loop is in {where}, which it imports", 1, f"sublet convert {where}", where)
        return CannotConvert("no backward() is in it: nothing here trains by torch", 1, "name the script that trains")
    if any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(script.tree)):
        do = "an optimizer of torch.optim: torch.optim.SGD(model.parameters(), lr=lr) makes that update"
        return CannotConvert("the update is made by hand, from `.grad`", backward.lineno, do)
    for node in ast.walk(script.tree):
        if is_method(node, "step") and len(node.args) == 1 and "opt" in script.text(node.func.value).lower():
            return CannotConvert("optimizer.step(closure) computes the loss as often as it likes", node.lineno, OWN)
        if isinstance(node, ast.Call) and "step" in last_of(node.func) and node.lineno > backward.lineno:
            what = f"the update is in {last_of(node.func)}(), which is not in this file"
            return CannotConvert(what, node.lineno, "its lines, with `optimizer.step()`, where the loop is")
    do = "the loop, its backward() and the optimizer's step() in one file"
    return CannotConvert("no step() of an optimizer comes after this backward()", backward.lineno, do)
