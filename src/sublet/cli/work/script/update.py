"""The update of a loop becomes `s.step(loss)`; its scaler and its clipping become options of the session."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublet.cli.work.script.edits import Edits, begin_of, end_of
from sublet.cli.work.script.extent import atom
from sublet.cli.work.script.loops import Training, excludes, is_in, kind_of, splits
from sublet.cli.work.script.reading import CannotConvert, is_method, last_of, statement_of

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm", "clip_grad_value_": "clip_value"}
CLIPPED = "unscale_(), clip_grad_norm_() by the 2-norm, clip_grad_value_() and the step, in this order, each once"
NO_GRADIENT = "pass  # no gradients are left after s.step()"


@dataclass(slots=True, kw_only=True)
class Told:
    """The update as a session makes it."""

    options: dict[str, str] = field(default_factory=dict)
    times: str = ""  # batches to a step, where gradients are accumulated
    guard: ast.If | None = None  # around the update, where it is made once in so many batches
    keeps: dict[str, str] = field(default_factory=dict)  # schedulers: the script steps them as before
    loss: str = ""  # the name that `s.step` is given, if it is one


def tell_update(training: Training, edits: Edits, session: str) -> Told:
    """All edits of the update."""
    script, told = training.script, Told()
    told.guard, told.times = _accumulates(training)
    scalers = [(update.scaler, update.call) for update in training.updates]
    for call in training.backwards:
        loss, scaler = _loss_of(call)
        scalers.append((scaler, call))
        statement, whole = statement_of(script, call), loss
        if isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div) and training.lifted(loss.right) == told.times:
            whole = loss.left
        times = f" * {atom(told.times)}" if told.times and whole is loss else ""
        apart = bool(times) and not isinstance(loss, ast.Name | ast.Call | ast.Attribute)
        if not isinstance(statement, ast.Expr):
            raise CannotConvert("backward() is not a statement of its own", call.lineno, "give it a line of its own")
        edits.put(begin_of(statement), begin_of(whole), f"{session}.step({'(' * apart}")
        edits.put(end_of(whole), end_of(statement), f"{')' * apart}{times})")
        told.loss = "" if times else script.text(whole)
    names = {script.text(scaler): _optional(training, scaler, call) for scaler, call in scalers if scaler is not None}
    if names:
        told.options["scaler"] = [*names.values()][-1]
    gone = [statement_of(script, call) for call in training.steps]
    for node in training.lines():
        if is_method(node, "unscale_", "update") and script.text(node.func.value) in names:
            gone.append(statement_of(script, node))
        elif is_method(node, "step", "step_update") and kind_of(script, node.func.value) == "schedule":
            name = training.lifted(node.func.value)
            told.keeps[name.rsplit(".", 1)[-1] if name.replace(".", "").isidentifier() else "scheduler"] = name
    gone += [*_clipping(training, edits, told, session), *_clearing(training, told.guard)]
    _refuse_between(training)
    edits.remove(*dict.fromkeys(gone))
    edits.close_empty()
    _leave_out_gradients(training, edits)
    return told


def _loss_of(call: ast.Call) -> tuple[ast.expr, ast.expr | None]:
    """The plain loss, and the scaler that it is scaled by."""
    asked = {word.arg for word in call.keywords if getattr(word.value, "value", True)} - {"retain_graph"}
    if call.args or asked or not isinstance(call.func, ast.Attribute):
        do = "backward() of a loss that is one number"
        raise CannotConvert("backward() has other arguments than retain_graph", call.lineno, do)
    receiver = call.func.value
    if is_method(receiver, "scale") and receiver.args:
        return receiver.args[0], receiver.func.value
    return receiver, None


def _optional(training: Training, scaler: ast.expr, call: ast.Call) -> str:
    """`scaler if amp else None`, where it is used in one of two ways."""
    script, text = training.script, training.lifted(scaler)
    for each in script.within(call, training.batches):
        if isinstance(each, ast.If) and splits(script, each, [*training.backwards, *training.steps]):
            test = training.lifted(each.test)
            if test in (text, f"{text} is not None"):
                return text
            return f"{text} if {test} else None" if is_in(script, call, each.body) else f"None if {test} else {text}"
    return text


def _accumulates(training: Training) -> tuple[ast.If | None, str]:
    """Where a step is made once in so many batches: the condition around it, and how many."""
    script, calls = training.script, [*training.steps, *training.backwards]
    if training.micro is not None:
        over = training.micro.iter
        if isinstance(over, ast.Call) and script.full_name(over.func) == "range" and len(over.args) == 1:
            return None, training.lifted(over.args[0])
        do = "one loss for each batch; accumulation as `if (i + 1) % k == 0` or `for _ in range(k)`"
        raise CannotConvert("several losses are computed in a loop for each batch", training.micro.lineno, do)
    for each in [each for call in calls for each in script.within(call, training.batches)]:
        if isinstance(each, ast.If) and not splits(script, each, calls):
            steps = [node.right for node in ast.walk(each.test) if isinstance(getattr(node, "op", None), ast.Mod)]  # type: ignore[attr-defined]  # a node with `op` of this kind has `right`
            if steps and not is_in(script, training.backwards[0], [each]):
                return each, training.lifted(steps[0])
            do = "a step for each batch of a training loop, another loop for evaluation; or `if (i + 1) % k == 0`"
            raise CannotConvert(f"the optimizer steps only `if {script.text(each.test)}`", each.lineno, do)
    return None, ""


def _clearing(training: Training, guard: ast.If | None) -> list[ast.stmt]:
    """`zero_grad()` in every turn; CannotConvert where gradients add up."""
    script, lines = training.script, training.lines()
    clears = [statement_of(script, node) for node in lines if is_method(node, "zero_grad")]
    loops = [node for node in lines if isinstance(node, ast.For)]
    clears += [loop for loop in loops if all(script.text(each).endswith(".grad = None") for each in loop.body)]
    why, do = "", "optimizer.zero_grad() in every step, before backward() or after the step"
    parts = [training.batches, *(hop.function for hop in training.within)]
    if not clears or (guard is None and not any(is_in(script, each, parts) for each in clears)):
        why = "no zero_grad() is in the loop over batches, so gradients add up"
    above = [each for call in (*training.backwards, training.steps[0]) for each in script.above(call)]
    for each in clears:
        around = next((one for one in script.above(each) if isinstance(one, ast.If | ast.FunctionDef)), None)
        if isinstance(around, ast.If) and around not in above and "%" not in script.text(around.test):
            why = "gradients are cleared in some steps, and add up in others"
    if why:
        raise CannotConvert(why, (clears or training.backwards)[0].lineno, do)
    return clears


def _refuse_between(training: Training) -> None:
    """CannotConvert for lines between backward() and the step that may change gradients or rates."""
    script, optimizer = training.script, training.script.text(training.updates[0].optimizer)
    for step in training.steps:
        befores = [call.lineno for call in training.backwards if not excludes(script, call, step)]
        between = range(min(befores, default=step.lineno) + 1, step.lineno)
        for node in [each for each in ast.walk(training.inner_scope) if getattr(each, "lineno", 0) in between]:
            name = last_of(node.func if isinstance(node, ast.Call) else node)
            given = [script.text(each) for each in node.args] if isinstance(node, ast.Call) else []
            takes = optimizer in given or any(each.endswith("parameters()") for each in given)
            changes = name in ("zero_grad", "param_groups") or (takes and name not in (*CLIPS, "unscale_"))
            if changes and not excludes(script, node, step):
                line = statement_of(script, node)
                what = f"`{script.text(line).splitlines()[0]}` is between backward() and the step"
                do = "a rate or zero_grad() before backward(); clip_norm= or clip_value= of the session for gradients"
                raise CannotConvert(what, line.lineno, do)


def _leave_out_gradients(training: Training, edits: Edits) -> None:
    """A session has gradients within its step alone: lines behind it that log them are left out, others refused."""
    script, lines = training.script, dict[ast.stmt, int]()
    for node in training.lines():
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            asks = [each for each in script.within(node, training.batches) if isinstance(each, ast.If)]
            asks = [each for each in asks if ".grad" in script.text(each.test)]
            lines[asks[0] if asks else statement_of(script, node)] = node.lineno
    for line, number in lines.items():
        nodes = list(ast.walk(line))
        does = any(isinstance(each, ast.Raise | ast.Break | ast.Continue | ast.Return) for each in nodes)
        gives = any(isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) for each in nodes)
        late = line.lineno > training.steps[-1].lineno and script.scope_of(line) is training.inner_scope
        if any(edits.is_removed(each) for each in [line, *script.above(line)]):
            continue
        if does or gives or not late:
            do = "s.grad_norm is the norm (with clip_norm=); parameter.register_hook() sees a worker's part"
            raise CannotConvert("`.grad` is used in the loop: a session has gradients only within its step", number, do)
        edits.replace(line, NO_GRADIENT)


def _clipping(training: Training, edits: Edits, told: Told, session: str) -> Iterator[ast.stmt]:
    """`clip_norm=` and `clip_value=`, and the lines that go; the norm that such a line returns is `s.grad_norm`."""
    script, options, around = training.script, told.options, list(training.script.above(training.steps[0]))
    for node in training.lines():
        if not isinstance(node, ast.Call) or last_of(node.func) not in CLIPS:
            continue
        option, words = CLIPS[last_of(node.func)], {word.arg: word.value for word in node.keywords}
        limit = words.get("max_norm") or words.get("clip_value") or (node.args[1] if len(node.args) > 1 else None)
        if limit is None:
            continue
        asks = [each for each in script.within(node, training.batches) if isinstance(each, ast.If)]
        tests = [each.test for each in asks if each is not told.guard and each not in around]
        text = f"{training.lifted(limit)} if {training.lifted(tests[0])} else None" if tests else training.lifted(limit)
        late = script.scope_of(node) is training.inner_scope and node.lineno > training.steps[-1].lineno
        scaled = any(update.scaler is not None for update in training.updates)
        wrong = {
            "by another norm": "norm_type" in words and script.text(words["norm_type"]) not in ("2", "2.0"),
            "after the step": late,
            "by their norm after their values": option == "clip_norm" and "clip_value" in options,
            "while they are scaled": scaled and not any(is_method(each, "unscale_") for each in training.lines()),
            "in two ways": options.setdefault(option, text) != text,
        }
        for why in [why for why, found in wrong.items() if found]:
            raise CannotConvert(f"gradients are clipped {why}", node.lineno, CLIPPED)
        statement = statement_of(script, node)
        if isinstance(statement, ast.Expr) and statement.value is node:
            yield statement
        else:
            edits.replace(node, f"{session}.grad_norm")
