"""The update of a loop becomes `s.step(loss)`: what was said around it, the session is told as options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import Edits
from sublet.cli.work.script.extent import atom
from sublet.cli.work.script.loops import Training, Update, is_optimizer
from sublet.cli.work.script.reading import (
    CannotConvert,
    Script,
    is_method,
    last_of,
    names_in,
    statement_of,
    stores_in,
)

__all__ = ["NO_GRADIENT", "Told", "tell_update"]

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm", "clip_grad_value_": "clip_value"}
NO_GRADIENT = "pass  # no gradients are left after s.step()"


@dataclass(slots=True, kw_only=True)
class Told:
    """What becomes of the update."""

    options: dict[str, str] = field(default_factory=dict)
    times: str = ""  # batches to a step, where gradients are accumulated
    guard: ast.If | None = None  # around the update, once in so many batches
    keeps: dict[str, str] = field(default_factory=dict)  # schedules that the script steps itself
    loss: str = ""  # the name that `s.step` is given, if it is one
    steps: list[ast.stmt] = field(default_factory=list)  # statements that are `s.step(...)` now


def tell_update(training: Training, edits: Edits, session: str, turns: dict[str, str]) -> Told:
    """`turns`: the name of each optimizer, where there are several."""
    script, told = training.script, Told()
    told.guard, told.times = _accumulates(training)
    gone: list[ast.stmt] = []
    for update, backwards in _sequences(training):
        losses = []
        for call in backwards:
            loss, scaler = _loss_of(call)
            if scaler is not None:
                told.options["scaler"] = _optional(training, scaler, call)
            losses.append(_undivided(training, edits, loss, told.times))
        name = turns.get(training.lifted(update.optimizer), "")
        last, whose = _place(training, backwards[-1], update), f', "{name}"' if name else ""
        loss, times = losses[-1]
        if len(losses) == 1 and last is statement_of(script, backwards[-1]):
            apart = bool(times) and not isinstance(loss, ast.Name | ast.Call | ast.Attribute)
            before, after = ("(", ")") if apart else ("", "")
            edits.leave(last, loss, f"{session}.step({before}", f"{after}{times}{whose})")
        else:
            _keep_filled(training, edits, backwards)
            given = " + ".join(f"{script.text(each)}{factor}" for each, factor in losses)
            edits.replace(last, f"{session}.step({given}{whose})")
        told.steps.append(last)
        told.loss = script.text(loss) if len(losses) == 1 and not times else ""
        gone += [statement_of(script, call) for call in (*backwards, update.call)]
        if update.scaler is not None:
            told.options["scaler"] = _optional(training, update.scaler, update.call)
    clears = list(_clearing(training))
    _refuse_uncleared(training, clears, told.guard)
    scalers = {script.text(update.scaler) for update in training.updates if update.scaler is not None}
    gone += clears + [
        statement_of(script, node)
        for node in training.lines()
        if is_method(node, "unscale_", "update") and script.text(node.func.value) in scalers
    ]
    gone += _clipping(training, edits, told, session) + _schedules(training, told)
    for each in dict.fromkeys(gone):
        if each not in told.steps:
            edits.remove(each)
    _refuse_edits(training)
    edits.close_empty()
    _leave_out_gradients(training, edits)
    return told


# ------------------------------------------------------------------------------------------- losses and their order


def _sequences(training: Training) -> Iterator[tuple[Update, list[ast.Call]]]:
    """Each step, and the backward passes that go into it."""
    script, pending, seen = training.script, list(training.backwards), dict[str, Update]()
    for update in training.updates:
        end = (update.call.lineno, update.call.col_offset)
        before = [call for call in pending if (call.lineno, call.col_offset) < end]
        ours = [call for call in before if not _excludes(script, call, update.call)]
        text, line = script.text(update.optimizer), update.call.lineno
        other = seen.get(text)
        if other is not None and not _excludes(script, other.call, update.call):
            raise CannotConvert(f"`{text}` makes two steps of one batch", line, "one step for each batch")
        if not ours:
            if other is None:
                do = "one optimizer with a parameter group for each part"
                raise CannotConvert(f"`{text}` steps by the gradients of another optimizer's loss", line, do)
            continue
        seen[text] = update
        pending = [call for call in pending if call not in ours]
        exclusive = [call for call in ours if any(_excludes(script, call, each) for each in ours)]
        for calls in [[call] for call in exclusive] or [ours]:
            yield update, calls
    if pending:
        do = "one backward() for each step"
        raise CannotConvert("after this backward() no optimizer makes a step", pending[0].lineno, do)


def _excludes(script: Script, one: ast.AST, other: ast.AST) -> bool:
    """Whether they are in two ways of an `if`."""
    above = list(script.above(one))
    shared = [each for each in script.above(other) if isinstance(each, ast.If) and each in above]
    return any(_is_in(script, one, each.body) != _is_in(script, other, each.body) for each in shared)


def _is_in(script: Script, node: ast.AST, block: list[ast.stmt]) -> bool:
    return any(each in block for each in [node, *script.above(node)])


def _loss_of(call: ast.Call) -> tuple[ast.expr, ast.expr | None]:
    """The plain loss, and the scaler that it is scaled by."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - it is a method
    words = {word.arg: word.value for word in call.keywords}
    if getattr(words.get("create_graph"), "value", "create_graph" in words):
        raise CannotConvert("gradients of gradients are computed", call.lineno, "train.checkpointed")
    if call.args or words.keys() & {"gradient", "inputs"}:
        raise CannotConvert("backward() is given a gradient", call.lineno, "a loss that is one number")
    receiver = call.func.value
    if is_method(receiver, "scale") and receiver.args:
        return receiver.args[0], receiver.func.value
    return receiver, None


def _keep_filled(training: Training, edits: Edits, backwards: list[ast.Call]) -> None:
    """Losses are added up at the last of them: a tensor of the first is not filled anew in between."""
    script = training.script
    for node in ast.walk(training.inner_scope):
        statement = script.parents.get(node)
        name = last_of(node.func.value) if is_method(node, "fill_") else ""
        if name and isinstance(statement, ast.Expr) and backwards[0].lineno < statement.lineno < backwards[-1].lineno:
            edits.replace(statement, f"{name} = torch.full_like({name}, {script.text(node.args[0])})")  # type: ignore[attr-defined]  # it is a call


def _place(training: Training, backward: ast.Call, update: Update) -> ast.stmt:
    """Which statement becomes the step: the backward pass; or the update, if rates are set in between."""
    script = training.script
    first, last = statement_of(script, backward), statement_of(script, update.call)
    if not isinstance(first, ast.Expr):
        raise CannotConvert("backward() is a part of something", first.lineno, "give it a line of its own")
    block = getattr(script.parents[last], "body", [])
    between = block[block.index(first) + 1 : block.index(last)] if first in block and last in block else []
    rates = any("param_groups" in script.text(each) or "lr" in names_in(each) for each in between)
    return last if rates else first


# ------------------------------------------------------------------------------------------- accumulation


def _accumulates(training: Training) -> tuple[ast.If | None, str]:
    """Whether a step is made once in so many batches: the condition around it, and how many."""
    script, update = training.script, training.updates[0]
    if training.micro is not None:
        call = training.micro.iter
        if not (isinstance(call, ast.Call) and script.full_name(call.func) == "range" and len(call.args) == 1):
            why = "several losses are computed in a loop within the loop over batches"
            do = "one loss for each batch; accumulation as `if (i + 1) % k == 0` or `for _ in range(k)`"
            raise CannotConvert(why, training.micro.lineno, do)
        return None, training.lifted(call.args[0])
    around = list(script.above(training.backwards[0]))
    for each in script.within(update.call, training.batches):
        if not isinstance(each, ast.If) or each in around:
            continue
        for node in ast.walk(each.test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                return each, training.lifted(node.right)
        whole = [*each.body, *each.orelse]
        test = script.text(each.test)
        halves = "scaler" in test or "amp" in test.lower()
        if not halves and not any(_is_in(script, call, whole) for call in training.backwards):
            do = "a step for each batch; `if (i + 1) % k == 0` for gradients that are accumulated"
            raise CannotConvert(f"a step is made only `if {test}`", each.lineno, do)
    for call in training.backwards:
        for each in script.within(call, training.batches):
            if isinstance(each, ast.If) and not any(_excludes(script, call, other) for other in training.backwards):
                do = "a loop over training batches, and another for those of evaluation"
                raise CannotConvert(f"a step is made only `if {script.text(each.test)}`", each.lineno, do)
    return None, ""


def _undivided(training: Training, edits: Edits, loss: ast.expr, times: str) -> tuple[ast.expr, str]:
    """The loss of a micro-batch, and by what it is multiplied; a division by how many there are to a step goes."""
    script, name, last = training.script, training.script.text(loss), training.backwards[-1].lineno

    def divides(node: ast.AST | None) -> bool:
        right = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
        is_division = isinstance(getattr(node, "op", None), ast.Div)
        return right is not None and is_division and training.lifted(right) == times

    if not times:
        return loss, ""
    if isinstance(loss, ast.BinOp) and divides(loss):
        return loss.left, ""
    reads = [node for node in ast.walk(training.inner_scope) if isinstance(node, ast.Name) and node.id == name]
    shown = any(isinstance(node.ctx, ast.Load) and node.lineno > last for node in reads)  # it is printed as it was
    for target, value, node in stores_in(training.inner_scope) if not shown else ():
        whole = node if isinstance(node, ast.AugAssign) else value
        if script.text(target) == name and divides(whole):
            left = getattr(value, "left", None)
            if left is None or script.text(left) == name:
                edits.remove(statement_of(script, node))
            else:
                edits.leave(node.value, left)  # type: ignore[arg-type]  # it has one
            return loss, ""
    return loss, f" * {atom(times)}"


# ------------------------------------------------------------------------------------------- what goes with it


def _optional(training: Training, scaler: ast.expr, call: ast.Call) -> str:
    """`scaler if amp else None`, where it is used in one of two ways."""
    script, text = training.script, training.lifted(scaler)
    for each in script.within(call, training.batches):
        if isinstance(each, ast.If) and any(_excludes(script, call, other) for other in training.backwards):
            test = training.lifted(each.test)
            if test in (text, f"{text} is not None"):
                return text
            return f"{text} if {test} else None" if _is_in(script, call, each.body) else f"None if {test} else {text}"
    return text


def _clearing(training: Training) -> Iterator[ast.stmt]:
    script = training.script
    for node in training.lines():
        if is_method(node, "zero_grad") and isinstance(script.parents[node], ast.Expr):
            yield statement_of(script, node)
        if isinstance(node, ast.For) and all(
            isinstance(each, ast.Assign) and script.text(each.targets[0]).endswith(".grad") for each in node.body
        ):
            yield node


def _refuse_uncleared(training: Training, clears: list[ast.stmt], guard: ast.If | None) -> None:
    """Gradients that add up, or are cleared before their step, are no plain update."""
    script, first, last = training.script, training.backwards[0].lineno, training.updates[-1].call.lineno
    do = "optimizer.zero_grad() before backward(), or after the step, in every turn"
    if not clears:
        raise CannotConvert("gradients are never cleared, and add up", first, do)
    parts = [training.batches, *(hop.function for hop in training.within)]
    inside = {id(node) for part in parts for node in ast.walk(part)}
    if all(id(each) not in inside for each in clears) and guard is None:
        raise CannotConvert("gradients are cleared once for an epoch, and add up within it", clears[0].lineno, do)
    above = [each for call in (*training.backwards, training.updates[0].call) for each in script.above(call)]
    for each in clears:
        around = next((one for one in script.above(each) if isinstance(one, ast.If | ast.FunctionDef)), None)
        if isinstance(around, ast.If) and around not in above and "%" not in script.text(around.test):
            raise CannotConvert("gradients are cleared in some turns, and add up in others", each.lineno, do)
        if len(training.updates) == 1 and guard is None and training.micro is None and first < each.lineno < last:
            raise CannotConvert("gradients are cleared between backward() and the step", each.lineno, do)


def _refuse_edits(training: Training) -> None:
    """A function that is given the parameters between backward and step may change their gradients."""
    first, last = training.backwards[0].lineno, training.updates[-1].call.lineno
    for node in ast.walk(training.inner_scope):
        if not isinstance(node, ast.Call) or last_of(node.func) in (*CLIPS, "list"):
            continue
        if first < node.lineno < last and any(is_method(each, "parameters") for each in node.args):
            why = f"{last_of(node.func)}() is given the parameters between backward() and the step"
            do = 'clip_norm=, clip_value=, or reduction="counted" for a mean over tokens, of the session'
            raise CannotConvert(why, node.lineno, do)


def _leave_out_gradients(training: Training, edits: Edits) -> None:
    """A session has gradients within its step alone: lines behind it that log them are left out, others refused."""
    script, found = training.script, dict[ast.stmt, int]()
    for node in training.lines():
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            statement = statement_of(script, node)
            for each in script.within(node, training.batches):
                if isinstance(each, ast.If) and ".grad" in script.text(each.test):
                    statement = each
            if not any(edits.is_removed(each) for each in [statement, *script.above(statement)]):
                found[statement] = node.lineno
    for statement, line in found.items():
        logs = statement.body if isinstance(statement, ast.If) and not statement.orelse else [statement]
        after = statement.lineno > training.updates[-1].call.lineno
        if not after or script.scope_of(statement) is not training.inner_scope or not all(map(_is_logged, logs)):
            do = "s.grad_norm is the norm (with clip_norm=); parameter.register_hook() sees a worker's part"
            raise CannotConvert("`.grad` is used in the loop: a session has gradients only within its step", line, do)
        edits.replace(statement, NO_GRADIENT)


def _is_logged(statement: ast.stmt) -> bool:
    """A call, or `histograms[name] = ...`."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(each, ast.Subscript) for each in statement.targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


# ------------------------------------------------------------------------------------------- clipping and schedules


def _clipping(training: Training, edits: Edits, told: Told, session: str) -> list[ast.stmt]:
    """`clip_norm=` and `clip_value=`, and the lines that go; what one gave is `s.grad_norm` then."""
    script, options, gone = training.script, told.options, list[ast.stmt]()
    for node in training.lines():
        if not isinstance(node, ast.Call) or last_of(node.func) not in CLIPS:
            continue
        option, words = CLIPS[last_of(node.func)], {word.arg: word.value for word in node.keywords}
        limit = words.get("max_norm") or words.get("clip_value") or (node.args[1] if len(node.args) > 1 else None)
        if limit is None:
            continue
        text, statement = training.lifted(limit), statement_of(script, node)
        _refuse_clip(training, node, option, options)
        above = training.around
        for each in script.within(node, training.batches):
            if isinstance(each, ast.If) and each is not told.guard and each not in above:
                text = f"{text} if {training.lifted(each.test)} else None"
                break
        if options.setdefault(option, text) != text:
            raise CannotConvert("gradients are clipped in two ways", node.lineno, "one clip_norm= for the session")
        if isinstance(statement, ast.Expr) and statement.value is node:
            gone.append(statement)
        else:
            edits.replace(node, f"{session}.grad_norm")
    return gone


def _refuse_clip(training: Training, node: ast.Call, option: str, options: dict[str, str]) -> None:
    """A session unscales, clips the norm, clips the values of all gradients, and steps."""
    script, update, why, do = training.script, training.updates[-1], "", ""
    norm = next((script.text(word.value) for word in node.keywords if word.arg == "norm_type"), "2")
    if norm not in ("2", "2.0"):
        why, do = "gradients are clipped by another norm", "clip_norm=, which is by the 2-norm"
    if len({script.text(each.optimizer) for each in training.updates}) > 1:
        why = "one of several optimizers has its gradients clipped"
        do = "clip_norm= of the session is for all of them; take the line out, or clip all alike"
    if script.scope_of(node) is training.inner_scope and node.lineno > update.call.lineno:
        why, do = "gradients are clipped after the step", "the line before the step"
    if option == "clip_norm" and "clip_value" in options:
        why, do = "the norm is clipped after the values", "the norm first, or one of the two"
    if update.scaler is not None and not any(is_method(each, "unscale_") for each in training.lines()):
        why, do = "gradients are clipped that are scaled", "scaler.unscale_(optimizer) before it"
    if why:
        raise CannotConvert(why, node.lineno, do)


def _schedules(training: Training, told: Told) -> list[ast.stmt]:
    """Stepped with every update, or every epoch: the session's, and their lines go. The others are kept."""
    script, found, kinds = training.script, dict[str, list[ast.Call]](), dict[str, str]()
    for node in training.lines():
        if not is_method(node, "step", "step_update") or any(node is each.call for each in training.updates):
            continue
        if not is_optimizer(script, node.func.value) and _is_schedule(script, node.func.value):
            found.setdefault(training.lifted(node.func.value), []).append(node)
    first = training.updates[0].call.lineno
    for name, calls in found.items():
        every = {_every(training, call, told.guard) for call in calls}
        early = any(script.scope_of(call) is training.inner_scope and call.lineno < first for call in calls)
        apart = len({id(script.parents[statement_of(script, call)]) for call in calls}) == len(calls)
        if len(every) == 1 and apart and not early and (kind := every.pop()):
            kinds[name] = kind
    kind = next(iter(kinds.values()), "")
    ours = [name for name, each in kinds.items() if each == kind]
    for name in found:
        if name not in ours:
            last = name.rsplit(".", 1)[-1]
            told.keeps[last if last.isidentifier() else "scheduler"] = name
    if ours:
        told.options["scheduler"] = ours[0] if len(ours) == 1 else f"[{', '.join(ours)}]"
        if kind == "epoch":
            told.options["scheduler_every"] = '"epoch"'
    return [statement_of(script, call) for name in ours for call in found[name]]


def _is_schedule(script: Script, node: ast.expr) -> bool:
    text = (script.text(node) if isinstance(node, ast.Subscript) else last_of(node)).lower()
    return "sched" in script.made_by(node).lower() or "sched" in text or "warmup" in text


def _every(training: Training, call: ast.Call, guard: ast.If | None) -> str:
    """By the "step", by the "epoch", or "" for what the session cannot do."""
    statement = statement_of(training.script, call)
    block = training.script.parents[statement]
    if call.args or call.keywords or not isinstance(statement, ast.Expr):
        return ""
    if training.epochs is not None and (block is training.epochs or block in [hop.function for hop in training.hops]):
        return "epoch"
    if block is training.batches and training.micro is None and guard is not None:
        return ""
    return "step" if block in (guard, training.batches, training.inner_scope, *training.around) else ""
