"""The update of a loop becomes `s.step(loss)`: what was said around it, the session is told as options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.loops import Training, Update, is_optimizer, statement_of
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in

__all__ = ["Told", "tell_update"]

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm", "clip_grad_value_": "clip_value"}


@dataclass(slots=True, kw_only=True)
class Told:
    """What becomes of the update."""

    options: dict[str, str] = field(default_factory=dict)
    times: str = ""  # batches to a step, where gradients are accumulated
    guard: ast.If | None = None  # around the update, once in so many batches
    keeps: dict[str, str] = field(default_factory=dict)  # schedules that the script steps itself
    loss: str = ""  # the name that `s.step` is given, if it is one
    steps: list[ast.stmt] = field(default_factory=list)  # statements that are `s.step(...)` now
    marks: list[tuple[ast.expr, str]] = field(default_factory=list)


def tell_update(training: Training, edits: Edits, session: str, turns: dict[str, str]) -> Told:
    """`turns`: the name of each optimizer, where there are several."""
    script, told = training.script, Told()
    told.guard, told.times = _accumulates(training)
    gone: list[ast.stmt] = []
    for update, backwards in _sequences(training):
        losses = []
        for call in backwards:
            loss, scaler = _loss_of(script, call)
            if scaler is not None:
                told.options["scaler"] = _optional(training, scaler, call)
            losses.append(_undivided(training, edits, loss, told.times))
        name = turns.get(training.lifted(update.optimizer), "")
        last = _place(training, backwards[-1], update)
        given = " + ".join(losses) + (f', "{name}"' if name else "")
        edits.replace(last, f"{session}.step({given})")
        told.steps.append(last)
        told.loss = losses[-1] if len(losses) == 1 else ""
        gone += [statement_of(script, call) for call in backwards]
        gone.append(statement_of(script, update.call))
        if update.scaler is not None:
            told.options["scaler"] = _optional(training, update.scaler, update.call)
    gone += _scaler_calls(training) + list(_clearing(training))
    _tell_clipping(training, edits, told, gone, session)
    _tell_schedules(training, told, gone)
    for each in dict.fromkeys(gone):
        if each not in told.steps:
            edits.remove(each)
    _refuse_gradients(training, edits)
    return told


# ------------------------------------------------------------------------------------------- losses and their order


def _sequences(training: Training) -> Iterator[tuple[Update, list[ast.Call]]]:
    """Each step, and the backward passes that go into it."""
    script, pending, seen = training.script, list(training.backwards), dict[str, Update]()
    for update in training.updates:
        ours = [
            call
            for call in pending
            if (call.lineno, call.col_offset) < (update.call.lineno, update.call.col_offset)
            and not _excludes(script, call, update.call)
        ]
        text = script.text(update.optimizer)
        other = seen.get(text)
        if other is not None and not _excludes(script, other.call, update.call):
            raise CannotConvert(
                f"`{text}` makes two steps of one batch", update.call.lineno, "one step for each batch of the session"
            )
        if not ours:
            if other is None:
                raise CannotConvert(
                    f"`{text}` steps by the gradients of another optimizer's loss",
                    update.call.lineno,
                    "one optimizer with a parameter group for each part",
                )
            continue
        seen[text] = update
        pending = [call for call in pending if call not in ours]
        exclusive = [call for call in ours if any(_excludes(script, call, each) for each in ours)]
        if exclusive:
            for call in exclusive:
                yield update, [call]
        else:
            yield update, ours
    if pending:
        raise CannotConvert(
            "after this backward() no optimizer makes a step", pending[0].lineno, "one backward() for each step"
        )


def _excludes(script: Script, one: ast.AST, other: ast.AST) -> bool:
    """Whether they are in two ways of an `if`."""
    above = list(script.above(one))
    for each in script.above(other):
        if isinstance(each, ast.If) and each in above:
            ways = [_is_in(script, node, each.body) for node in (one, other)]
            if ways[0] != ways[1]:
                return True
    return False


def _is_in(script: Script, node: ast.AST, block: list[ast.stmt]) -> bool:
    return any(each in block for each in [node, *script.above(node)])


def _loss_of(script: Script, call: ast.Call) -> tuple[ast.expr, ast.expr | None]:
    """The plain loss, and the scaler that it is scaled by."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - it is a method
    for word in call.keywords:
        if word.arg == "create_graph" and not (isinstance(word.value, ast.Constant) and not word.value.value):
            raise CannotConvert("gradients of gradients are computed", call.lineno, "train.checkpointed")
    if any(word.arg in ("gradient", "inputs") for word in call.keywords) or call.args:
        raise CannotConvert("backward() is given a gradient", call.lineno, "a loss that is one number")
    receiver = call.func.value
    if is_method(receiver, "scale") and receiver.args:
        return receiver.args[0], receiver.func.value
    return receiver, None


def _place(training: Training, backward: ast.Call, update: Update) -> ast.stmt:
    """Which statement becomes the step: the backward pass; or the update, if rates are set in between."""
    script = training.script
    first, last = statement_of(script, backward), statement_of(script, update.call)
    if not isinstance(first, ast.Expr):
        raise CannotConvert("backward() is a part of something", first.lineno, "give it a line of its own")
    block = getattr(script.parents[last], "body", [])
    if first in block and last in block:
        between = block[block.index(first) + 1 : block.index(last)]
        if any("param_groups" in script.text(each) or "lr" in names_in(each) for each in between):
            return last
    return first


# ------------------------------------------------------------------------------------------- accumulation


def _accumulates(training: Training) -> tuple[ast.If | None, str]:
    """Whether a step is made once in so many batches: the condition around it, and how many."""
    script, update = training.script, training.updates[0]
    if training.micro is not None:
        call = training.micro.iter
        if not (isinstance(call, ast.Call) and script.full_name(call.func) == "range" and len(call.args) == 1):
            raise CannotConvert(
                "several losses are computed in a loop within the loop over batches",
                training.micro.lineno,
                "one loss for each batch; accumulation as `if (i + 1) % k == 0` or `for _ in range(k)`",
            )
        return None, training.lifted(call.args[0])
    around = list(script.above(training.backwards[0]))
    for each in script.above(update.call):
        if each is training.batches or not isinstance(each, ast.If | ast.For | ast.While | ast.With | ast.Try):
            if isinstance(each, ast.FunctionDef) or each is training.batches:
                break
            continue
        if not isinstance(each, ast.If) or each in around:
            continue
        for node in ast.walk(each.test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                return each, training.lifted(node.right)
        if any(_is_in(script, call, each.orelse) or _is_in(script, call, each.body) for call in training.backwards):
            continue
        if "scaler" in script.text(each.test) or "amp" in script.text(each.test).lower():
            continue
        raise CannotConvert(
            f"a step is made only `if {script.text(each.test)}`",
            each.lineno,
            "a step for each batch; `if (i + 1) % k == 0` for gradients that are accumulated",
        )
    _refuse_left_out(training)
    return None, ""


def _refuse_left_out(training: Training) -> None:
    """A batch without a loss: `continue` before the step, or a loss under a condition."""
    script, block = training.script, training.batches.body
    first = training.backwards[0].lineno
    for node in ast.walk(training.batches):
        if (
            isinstance(node, ast.Continue)
            and node.lineno < first
            and script.scope_of(node) is script.scope_of(training.batches)
        ):
            loop = next(each for each in script.above(node) if isinstance(each, ast.For | ast.While))
            if loop is training.batches:
                raise CannotConvert(
                    "a batch may be left out before its loss",
                    node.lineno,
                    "a loss for each batch of the session (0.0 * loss where it should not count)",
                )
    del block
    for call in training.backwards:
        for each in script.above(call):
            if isinstance(each, ast.FunctionDef) or each is training.batches:
                break
            if isinstance(each, ast.If) and not any(_excludes(script, call, other) for other in training.backwards):
                raise CannotConvert(
                    f"a step is made only `if {script.text(each.test)}`",
                    each.lineno,
                    "a loop over training batches, and another for those of evaluation",
                )


def _undivided(training: Training, edits: Edits, loss: ast.expr, times: str) -> str:
    """The loss of a micro-batch; a division by how many there are to a step goes."""
    script = training.script
    if not times:
        return script.text(loss)
    if isinstance(loss, ast.BinOp) and _divides(training, loss, times):
        return script.text(loss.left)
    name = script.text(loss)
    for node in ast.walk(training.inner_scope):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and script.text(node.target) == name:
            if training.lifted(node.value) == times:
                edits.remove(node)
                return name
        if isinstance(node, ast.Assign) and script.text(node.targets[0]) == name:
            value = node.value
            if isinstance(value, ast.BinOp) and _divides(training, value, times):
                if script.text(value.left) == name:
                    edits.remove(node)
                else:
                    edits.replace(value, _bare(script.text(value.left)))
                return name
    return f"{name} * {times}"


def _bare(text: str) -> str:
    if text.startswith("(") and text.endswith(")"):
        try:
            ast.parse(text[1:-1], mode="eval")
        except SyntaxError:
            return text
        return text[1:-1]
    return text


def _divides(training: Training, node: ast.BinOp, times: str) -> bool:
    return isinstance(node.op, ast.Div) and training.lifted(node.right) == times


# ------------------------------------------------------------------------------------------- what goes with it


def _own(training: Training) -> Iterator[ast.AST]:
    """All of the loops, and of the functions between them and the update."""
    yield from ast.walk(training.outer)
    for hop in (*training.hops, *training.within):
        yield from ast.walk(hop.function)


def _optional(training: Training, scaler: ast.expr, call: ast.Call) -> str:
    """`scaler if amp else None`, where it is used in one of two ways."""
    script, text = training.script, training.lifted(scaler)
    for each in script.above(call):
        if isinstance(each, ast.FunctionDef) or each is training.batches:
            break
        if isinstance(each, ast.If) and any(_excludes(script, call, other) for other in training.backwards):
            test = training.lifted(each.test)
            if test in (text, f"{text} is not None"):
                return text
            positive = _is_in(script, call, each.body)
            return f"{text} if {test} else None" if positive else f"None if {test} else {text}"
    return text


def _scaler_calls(training: Training) -> list[ast.stmt]:
    script = training.script
    scalers = {script.text(update.scaler) for update in training.updates if update.scaler is not None}
    return [
        statement_of(script, node)
        for node in _own(training)
        if is_method(node, "unscale_", "update") and script.text(node.func.value) in scalers
    ]


def _clearing(training: Training) -> Iterator[ast.stmt]:
    script = training.script
    for node in _own(training):
        if is_method(node, "zero_grad") and isinstance(script.parents[node], ast.Expr):
            yield statement_of(script, node)
        if isinstance(node, ast.For) and all(
            isinstance(each, ast.Assign) and script.text(each.targets[0]).endswith(".grad") for each in node.body
        ):
            yield node


def _tell_clipping(training: Training, edits: Edits, told: Told, gone: list[ast.stmt], session: str) -> None:
    script = training.script
    for node in _own(training):
        if not isinstance(node, ast.Call) or last_of(node.func) not in CLIPS:
            continue
        option = CLIPS[last_of(node.func)]
        words = {word.arg: word.value for word in node.keywords}
        limit = words.get("max_norm") or words.get("clip_value") or (node.args[1] if len(node.args) > 1 else None)
        if limit is None:
            continue
        if "norm_type" in words and script.text(words["norm_type"]) not in ("2", "2.0"):
            raise CannotConvert(
                "gradients are clipped by another norm", node.lineno, "clip_norm=, which is by the 2-norm"
            )
        if len(training.updates) > 1 and len({script.text(each.optimizer) for each in training.updates}) > 1:
            raise CannotConvert(
                "one of several optimizers has its gradients clipped",
                node.lineno,
                "clip_norm= of the session is for all of them; take the line out, or clip all alike",
            )
        text, statement = training.lifted(limit), statement_of(script, node)
        condition = _own_condition(training, node, told.guard)
        if condition is not None:
            text = f"{text} if {training.lifted(condition)} else None"
        if told.options.setdefault(option, text) != text:
            raise CannotConvert("gradients are clipped in two ways", node.lineno, "one clip_norm= for the session")
        if isinstance(statement, ast.Expr) and statement.value is node:
            gone.append(statement)
        else:
            edits.replace(node, f"{session}.grad_norm")
            told.marks.append((node, "clip"))


def _own_condition(training: Training, node: ast.AST, guard: ast.If | None) -> ast.expr | None:
    """Of a line that the update does not share."""
    script = training.script
    above = [*script.above(training.updates[0].call)]
    for each in script.above(node):
        if isinstance(each, ast.FunctionDef) or each is training.batches:
            return None
        if isinstance(each, ast.If) and each is not guard and each not in above:
            return each.test
    return None


def _tell_schedules(training: Training, told: Told, gone: list[ast.stmt]) -> None:
    """Stepped with every update, or every epoch: the session's. Otherwise the script's, and kept."""
    script = training.script
    found: dict[str, list[ast.Call]] = {}
    for node in _own(training):
        if not is_method(node, "step", "step_update") or any(node is each.call for each in training.updates):
            continue
        receiver = node.func.value
        if is_optimizer(script, receiver) or not _is_schedule(script, receiver):
            continue
        calls = found.setdefault(training.lifted(receiver), [])
        if node not in calls:
            calls.append(node)
    ours: dict[str, str] = {}
    for name, calls in found.items():
        every = {_every(training, call, told.guard) for call in calls}
        if len(every) == 1 and (kind := every.pop()):
            ours[name] = kind
    for name, calls in found.items():
        if name in ours and ours[name] == next(iter(ours.values())):
            gone += [statement_of(script, call) for call in calls]
        else:
            told.keeps[_word(name)] = name
            ours.pop(name, None)
    if ours:
        names = list(ours)
        told.options["scheduler"] = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        if next(iter(ours.values())) == "epoch":
            told.options["scheduler_every"] = '"epoch"'


def _word(name: str) -> str:
    last = name.rsplit(".", 1)[-1]
    return last if last.isidentifier() else "scheduler"


def _is_schedule(script: Script, node: ast.expr) -> bool:
    made = script.made_by(node).lower()
    text = last_of(node).lower() if not isinstance(node, ast.Subscript) else script.text(node).lower()
    return "lr_scheduler" in made or "sched" in made or "sched" in text or "warmup" in text


def _every(training: Training, call: ast.Call, guard: ast.If | None) -> str:
    """By the "step", by the "epoch", or "" for what the session cannot do."""
    script, statement = training.script, statement_of(training.script, call)
    if call.args or call.keywords or not isinstance(statement, ast.Expr):
        return ""
    block = script.parents[statement]
    if training.epochs is not None and block is training.epochs:
        return "epoch"
    above = [*script.above(training.updates[0].call)]
    if block is guard or block is training.batches:
        accumulates = bool(training.micro is None and guard is not None)
        return "" if block is training.batches and accumulates else "step"
    if block in above or (isinstance(block, ast.FunctionDef) and block is training.inner_scope):
        return "step"
    hops = [hop.function for hop in training.hops]
    if block in hops and training.epochs is not None:
        return "epoch"
    return ""


def _refuse_gradients(training: Training, edits: Edits) -> None:
    """Between two steps a session has none."""
    script = training.script
    for node in _own(training):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            statement: ast.AST = statement_of(script, node)
            chain = [statement, *script.above(statement)]
            if not any(edits.is_removed(each) for each in chain):
                raise CannotConvert(
                    "`.grad` is used in the loop: a session has gradients only within its step",
                    node.lineno,
                    "s.grad_norm is the norm (with clip_norm=); parameter.register_hook() sees a worker's part",
                )
