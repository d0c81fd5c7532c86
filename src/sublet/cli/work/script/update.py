"""The update of a loop becomes `s.step(loss)`: what was said around it, the session is told as options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.beside import clipping, schedules
from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.loops import Training, Update
from sublet.cli.work.script.reading import Script, is_method, last_of, names_in, statement_of

__all__ = ["Told", "tell_update"]


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
        if len(backwards) > 1:
            _refuse_in_place(training, edits, backwards)
        name = turns.get(training.lifted(update.optimizer), "")
        last = _place(training, backwards[-1], update)
        whose = f', "{name}"' if name else ""
        (loss, times), statement = losses[-1], statement_of(script, backwards[-1])
        if len(losses) == 1 and last is statement:
            apart = bool(times) and not isinstance(loss, ast.Name | ast.Call | ast.Attribute)
            before, after = ("(", ")") if apart else ("", "")
            edits.leave(last, loss, f"{session}.step({before}", f"{after}{times}{whose})")
        else:
            given = " + ".join(f"{script.text(each)}{factor}" for each, factor in losses)
            edits.replace(last, f"{session}.step({given}{whose})")
        told.steps.append(last)
        told.loss = script.text(loss) if len(losses) == 1 and not times else ""
        gone += [statement_of(script, call) for call in backwards]
        gone.append(statement_of(script, update.call))
        if update.scaler is not None:
            told.options["scaler"] = _optional(training, update.scaler, update.call)
    clears = list(_clearing(training))
    _refuse_uncleared(training, clears, told.guard)
    gone += _scaler_calls(training) + clears
    options, lines = clipping(training, edits, told.guard, session)
    told.options |= options
    gone += lines
    options, told.keeps, lines = schedules(training, told.guard)
    told.options |= options
    gone += lines
    for each in dict.fromkeys(gone):
        if each not in told.steps:
            edits.remove(each)
    _refuse_edits(training)
    edits.close_empty()
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


def _loss_of(call: ast.Call) -> tuple[ast.expr, ast.expr | None]:
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


def _refuse_in_place(training: Training, edits: Edits, backwards: list[ast.Call]) -> None:
    """Losses are added up at the last of them: what the first was made of must still be there."""
    script = training.script
    for node in ast.walk(training.inner_scope):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")):
            continue
        name = script.text(node.func.value)
        if not backwards[0].lineno < node.lineno < backwards[-1].lineno or node.func.attr in (
            "requires_grad_",
            "zero_",
        ):
            continue
        statement = statement_of(script, node)
        if node.func.attr == "fill_" and isinstance(statement, ast.Expr) and name.isidentifier():
            edits.replace(statement, f"{name} = torch.full_like({name}, {script.text(node.args[0])})")
        else:
            raise CannotConvert(
                f"`{name}` is changed in place between two backward() of one step", node.lineno, "a new tensor there"
            )


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


def _undivided(training: Training, edits: Edits, loss: ast.expr, times: str) -> tuple[ast.expr, str]:
    """The loss of a micro-batch, and by what it is multiplied; a division by how many there are to a step goes."""
    script = training.script
    if not times:
        return loss, ""
    if isinstance(loss, ast.BinOp) and _divides(training, loss, times):
        return loss.left, ""
    name = script.text(loss)
    for node in ast.walk(training.inner_scope) if not _is_asked_later(training, loss) else []:
        target = (
            node.target
            if isinstance(node, ast.AugAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if target is None or script.text(target) != name or not isinstance(node, ast.AugAssign | ast.Assign):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and training.lifted(node.value) == times:
            edits.remove(node)
            return loss, ""
        value = node.value
        if isinstance(node, ast.Assign) and isinstance(value, ast.BinOp) and _divides(training, value, times):
            if script.text(value.left) == name:
                edits.remove(node)
            else:
                edits.leave(value, value.left)
            return loss, ""
    return loss, f" * {_atom(times)}"


def _is_asked_later(training: Training, loss: ast.expr) -> bool:
    """What is printed of it stays what it was."""
    return any(
        isinstance(node, ast.Name)
        and node.id == training.script.text(loss)
        and isinstance(node.ctx, ast.Load)
        and node.lineno > training.backwards[-1].lineno
        for node in ast.walk(training.inner_scope)
    )


def _atom(text: str) -> str:
    return (
        text if isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Attribute | ast.Constant) else f"({text})"
    )


def _divides(training: Training, node: ast.BinOp, times: str) -> bool:
    return isinstance(node.op, ast.Div) and training.lifted(node.right) == times


# ------------------------------------------------------------------------------------------- what goes with it


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


def _refuse_uncleared(training: Training, clears: list[ast.stmt], guard: ast.If | None) -> None:
    """Gradients that add up, or are cleared before their step, are no plain update."""
    script, first, last = training.script, training.backwards[0].lineno, training.updates[-1].call.lineno
    do = "optimizer.zero_grad() before backward(), or after the step, in every turn"
    if not clears:
        raise CannotConvert("gradients are never cleared, and add up", first, do)
    inside = {
        id(node) for part in (training.batches, *(hop.function for hop in training.within)) for node in ast.walk(part)
    }
    if all(id(each) not in inside for each in clears) and guard is None:
        raise CannotConvert("gradients are cleared once for an epoch, and add up within it", clears[0].lineno, do)
    above = {id(each) for call in (*training.backwards, training.updates[0].call) for each in script.above(call)}
    for each in clears:
        around = next((one for one in script.above(each) if isinstance(one, ast.If | ast.FunctionDef)), None)
        if (
            isinstance(around, ast.If)
            and around is not guard
            and id(around) not in above
            and "%" not in script.text(around.test)
        ):
            raise CannotConvert("gradients are cleared in some turns, and add up in others", each.lineno, do)
        if len(training.updates) == 1 and guard is None and training.micro is None and first < each.lineno < last:
            raise CannotConvert("gradients are cleared between backward() and the step", each.lineno, do)


def _scaler_calls(training: Training) -> list[ast.stmt]:
    script = training.script
    scalers = {script.text(update.scaler) for update in training.updates if update.scaler is not None}
    return [
        statement_of(script, node)
        for node in training.lines()
        if is_method(node, "unscale_", "update") and script.text(node.func.value) in scalers
    ]


def _clearing(training: Training) -> Iterator[ast.stmt]:
    script = training.script
    for node in training.lines():
        if is_method(node, "zero_grad") and isinstance(script.parents[node], ast.Expr):
            yield statement_of(script, node)
        if isinstance(node, ast.For) and all(
            isinstance(each, ast.Assign) and script.text(each.targets[0]).endswith(".grad") for each in node.body
        ):
            yield node


def _refuse_edits(training: Training) -> None:
    """A function that is given the parameters between backward and step may change their gradients."""
    last = training.updates[-1].call.lineno
    for node in ast.walk(training.inner_scope):
        if not isinstance(node, ast.Call) or not training.backwards[0].lineno < node.lineno < last:
            continue
        given = any(is_method(each, "parameters") for each in node.args)
        if given and last_of(node.func) not in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "list"):
            raise CannotConvert(
                f"{last_of(node.func)}() is given the parameters between backward() and the step",
                node.lineno,
                'clip_norm=, clip_value=, or reduction="counted" for a mean over tokens, of the session',
            )


def _refuse_gradients(training: Training, edits: Edits) -> None:
    """Between two steps a session has none."""
    script = training.script
    for node in training.lines():
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            statement: ast.AST = statement_of(script, node)
            chain = [statement, *script.above(statement)]
            if not any(edits.is_removed(each) for each in chain):
                raise CannotConvert(
                    "`.grad` is used in the loop: a session has gradients only within its step",
                    node.lineno,
                    "s.grad_norm is the norm (with clip_norm=); parameter.register_hook() sees a worker's part",
                )
