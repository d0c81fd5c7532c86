"""A part of the update that is not a statement of the loop over batches itself: why a session cannot have it so."""

from __future__ import annotations

import ast

from sublet.cli.work.script.kinds import Function
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["KEEPS", "now_and_then"]

KEEPS = "or keep the loop as it is: train.checkpointed"


def now_and_then(script: Script, loop: ast.stmt, call: ast.Call, steppers: set[str]) -> CannotConvert:
    """`call` is a backward, a step or a zero_grad; `steppers` are optimizers and scalers."""
    around = script.scope_of(call)
    if isinstance(around, Function) and around is not script.scope_of(loop):
        return CannotConvert(
            f"`{script.text(call)}` is in {around.name}(), which the loop calls",
            call.lineno,
            f"backward, step and zero_grad in the loop itself, where s.step(loss) takes their place; {KEEPS}",
        )
    conditions = [each for each in script.above(call) if isinstance(each, ast.If) and loop in script.above(each)]
    inside = [node for each in conditions[-1:] for node in ast.walk(each)]
    stepped = [node for node in inside if is_method(node, "step") and root_of(node.func) in steppers]
    backward = [node for node in inside if is_method(node, "backward")]
    others = [node for node in ast.walk(loop) if is_method(node, "step") and root_of(node.func) in steppers]
    if backward and stepped and {*others} <= {*inside}:
        return _by(script, conditions[-1], stepped[0])
    if backward and stepped:
        return CannotConvert(
            f"`{script.text(stepped[0])}` is in some turns only, with a loss of its own: of several optimizers in a "
            "session each makes a step for every batch",
            stepped[0].lineno,
            f"a loss for each of them in every turn; {KEEPS}",
        )
    if backward:
        return CannotConvert(
            f"`{script.text(backward[0])}` is in some turns only",
            backward[0].lineno,
            f"one loss in every turn, of which this is a part: s.step(loss + other if ... else loss); {KEEPS}",
        )
    return CannotConvert(
        f"`{script.text(call)}` is not in every turn of the loop",
        call.lineno,
        "s.step(loss) for every batch, in place of backward, step and zero_grad; gradients that are added "
        "up over n batches of B are DataLoader(batch_size=n * B) and train.session(..., micro_batch=B), "
        f"with the loss not divided by n; {KEEPS}",
    )


def _by(script: Script, condition: ast.If, step: ast.Call) -> CannotConvert:
    """All of the update goes by a condition."""
    test = script.text(condition.test)
    if any(is_method(node, "backward") for each in condition.orelse for node in ast.walk(each)):
        return CannotConvert(
            f"the update is made in two ways, by `{test}`",
            condition.lineno,
            "one for both: scaler = torch.amp.GradScaler(enabled=...), which leaves all as it is where it is not "
            f"enabled, and scaler.scale(loss).backward(), scaler.step(), scaler.update(); {KEEPS}",
        )
    return CannotConvert(
        f"`{script.text(step)}` is made by `{test}`, which may be otherwise in another worker: in a session all make "
        "a step for every batch",
        condition.lineno,
        "zero_grad, backward and step for every batch; with a torch.amp.GradScaler a step whose gradients are not "
        f"finite is left out, in all workers alike; {KEEPS}",
    )
