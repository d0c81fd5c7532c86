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

from sublet.cli.work.script.edits import CannotConvert
from sublet.cli.work.script.reading import Scope, Script, is_method, root_of

__all__ = ["Hop", "Training", "Update", "counted_in", "is_wrapper", "statement_of", "the_training", "unwrapped"]

LOOP = ast.For | ast.While
ONE = "a process has one training: a job of its own for each fold, seed or stage"
WRAPPERS = ("enumerate", "tqdm", "trange", "iter", "track", "islice", "cycle", "auto", "tqdm_notebook", "progress")
SCHEDULES = ("sched", "warmup", "lr_policy", "annealing", "plateau")


@dataclass(frozen=True, slots=True)
class Hop:
    """A function of the script, and the one call by which it is run."""

    call: ast.Call
    function: ast.FunctionDef


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
        given = _arguments(self.script, hop)
        bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        line = getattr(tree, "lineno", 1)
        for name in sorted(bound):
            if name not in given and _is_local(hop.function, name):
                value = _only_value(hop.function, name)
                if value is None or any(_is_local(hop.function, each) and each not in given for each in _names(value)):
                    raise CannotConvert(
                        f"`{name}` is made in {hop.function.name}(), which is called again and again",
                        hop.function.lineno,
                        f"make `{name}` once, before the loop over epochs, and hand it to {hop.function.name}()",
                    )
                given[name] = _substituted(self.script.text(value), value, given)
        del line
        return _substituted(text, tree, given)


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
                raise CannotConvert(
                    "optimizer.step(closure) computes the loss as often as it likes",
                    node.lineno,
                    "train.checkpointed: 'A loop that cannot be a session' in docs/guides/make-a-script-elastic.md",
                )
            yield Update(call=node, optimizer=receiver, scaler=None)


def _backwards(script: Script, scope: Scope) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if is_method(node, "backward") and script.scope_of(node) is scope:
            yield node


def is_optimizer(script: Script, node: ast.expr) -> bool:
    """Of what has a `step()`: not a schedule, a profiler, an environment."""
    text = script.text(node).lower()
    last = text.rsplit(".", 1)[-1].split("[")[0].split("(")[0]
    made = script.made_by(node)
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
        calls = list(script.calls_of(scope))
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
    loops = [(loop, depth) for loop, depth in loops if not _is_over_optimizers(script, loop)]
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


def _is_over_optimizers(script: Script, loop: ast.AST) -> bool:
    if isinstance(loop, ast.For) and "opt" in script.text(loop.iter).lower():
        raise CannotConvert(
            "the optimizers of a list are stepped in turn", loop.lineno, "one optimizer with a group for each part"
        )
    return False


def _nothing(script: Script) -> CannotConvert:
    """No update was found: what there is instead."""
    backward = next((node for node in ast.walk(script.tree) if is_method(node, "backward", "manual_backward")), None)
    if backward is None:
        return CannotConvert("no backward() is in it: nothing here trains by torch", 1, "name the script that trains")
    if any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(script.tree)):
        do = "an optimizer of torch.optim: torch.optim.SGD(model.parameters(), lr=lr) makes that update"
        return CannotConvert("the update is made by hand, from `.grad`", backward.lineno, do)
    do = "the loop, its backward() and the optimizer's step() in one file"
    return CannotConvert("no step() of an optimizer comes after this backward()", backward.lineno, do)


# ------------------------------------------------------------------------------------------- what loops go over


def is_wrapper(script: Script, node: ast.expr) -> bool:
    """`enumerate(...)`, `tqdm(...)` and the like: they give what is in them."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = script.full_name(node.func).rsplit(".", 1)[-1]
    return name in WRAPPERS or name.endswith(("_progress", "log_every", "progress_bar"))


def unwrapped(script: Script, node: ast.expr, scope: Scope) -> ast.expr:
    """What a loop goes over, without bars and numbers around it; `bar = tqdm(loader)` is looked through."""
    for _ in range(6):
        if is_method(node, "log_every"):
            return node.args[0] if node.args else node
        if is_wrapper(script, node):
            assert isinstance(node, ast.Call)  # noqa: S101 - is_wrapper says so
            node = node.args[0]
        elif isinstance(node, ast.Name) and (value := bar_of(script, node, scope)) is not None:
            node = value
        else:
            break
    return node


def bar_of(script: Script, name: ast.Name, scope: Scope) -> ast.expr | None:
    """What a name stands for, where it is that of a bar, given to it right in this function."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.end_lineno and node.lineno < name.lineno:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name.id and is_wrapper(script, node.value):
                return node.value
        if isinstance(node, ast.With) and node.lineno <= name.lineno:
            for item in node.items:
                same = isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name.id
                if same and is_wrapper(script, item.context_expr):
                    return item.context_expr
    return None


def counted_in(script: Script, loop: ast.For | ast.While) -> ast.Call | None:
    """`range(...)` and its kin that a loop goes over."""
    if isinstance(loop, ast.While):
        return None
    over = loop.iter
    for _ in range(4):
        if isinstance(over, ast.Call) and script.full_name(over.func).rsplit(".", 1)[-1] in (
            "range",
            "trange",
            "count",
        ):
            return over
        inner = unwrapped(script, over, script.scope_of(loop))
        if inner is over:
            return None
        over = inner
    return None


def statement_of(script: Script, node: ast.AST) -> ast.stmt:
    """That it is in."""
    while not isinstance(node, ast.stmt):
        node = script.parents[node]
    return node


# ------------------------------------------------------------------------------------------- names across calls


def _arguments(script: Script, hop: Hop) -> dict[str, str]:
    """What each parameter of a function stands for where it is called."""
    given: dict[str, str] = {}
    formal = hop.function.args
    names = [each.arg for each in (*formal.posonlyargs, *formal.args)]
    call = hop.call
    if names and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute):
        given[names[0]] = script.text(call.func.value)
        names = names[1:]
    if any(isinstance(each, ast.Starred) for each in call.args):
        return given
    defaults = formal.defaults[-len(names) :] if names else []
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        given[name] = script.text(default)
    for each, default in zip(formal.kwonlyargs, formal.kw_defaults, strict=True):
        if default is not None:
            given[each.arg] = script.text(default)
    given |= {name: script.text(value) for name, value in zip(names, call.args, strict=False)}
    given |= {word.arg: script.text(word.value) for word in call.keywords if word.arg}
    return given


def _substituted(text: str, tree: ast.expr, given: dict[str, str]) -> str:
    parsed = ast.parse(text, mode="eval").body
    del tree
    places = sorted(
        ((node.col_offset, node.lineno, node.id) for node in ast.walk(parsed) if isinstance(node, ast.Name)),
        reverse=True,
    )
    lines = text.encode().split(b"\n")
    for column, line, name in places:
        if name in given:
            value = given[name]
            simple = isinstance(
                ast.parse(value, mode="eval").body, ast.Name | ast.Attribute | ast.Constant | ast.Call | ast.Subscript
            )
            raw = lines[line - 1]
            new = (value if simple else f"({value})").encode()
            lines[line - 1] = raw[:column] + new + raw[column + len(name.encode()) :]
    return b"\n".join(lines).decode()


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_local(function: ast.FunctionDef, name: str) -> bool:
    formal = function.args
    named = [*formal.posonlyargs, *formal.args, *formal.kwonlyargs]
    if any(each.arg == name for each in named):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def _only_value(function: ast.FunctionDef, name: str) -> ast.expr | None:
    stores = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    if len(stores) != 1:
        return None
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] is stores[0]:
            return node.value
    return None


_ = root_of
