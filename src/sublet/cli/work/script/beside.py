"""Clipping and schedules of a loop, as options of its session."""

from __future__ import annotations

import ast

from sublet.cli.work.script.edits import CannotConvert, Edits
from sublet.cli.work.script.loops import Training, is_optimizer
from sublet.cli.work.script.reading import Script, is_method, last_of, statement_of

__all__ = ["clipping", "schedules"]

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm", "clip_grad_value_": "clip_value"}


def clipping(
    training: Training, edits: Edits, guard: ast.If | None, session: str
) -> tuple[dict[str, str], list[ast.stmt]]:
    """`clip_norm=` and `clip_value=`, and the lines that go; what one gave is `s.grad_norm` then."""
    script, options, gone = training.script, dict[str, str](), list[ast.stmt]()
    for node in training.lines():
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
        _refuse_order(training, node, option, options)
        condition = _own_condition(training, node, guard)
        if condition is not None:
            text = f"{text} if {training.lifted(condition)} else None"
        if options.setdefault(option, text) != text:
            raise CannotConvert("gradients are clipped in two ways", node.lineno, "one clip_norm= for the session")
        if isinstance(statement, ast.Expr) and statement.value is node:
            gone.append(statement)
        else:
            edits.replace(node, f"{session}.grad_norm")
    return options, gone


def _refuse_order(training: Training, node: ast.Call, option: str, options: dict[str, str]) -> None:
    """A session unscales, clips the norm, clips the values, and steps."""
    script, update = training.script, training.updates[-1]
    if script.scope_of(node) is training.inner_scope and node.lineno > update.call.lineno:
        raise CannotConvert("gradients are clipped after the step", node.lineno, "the line before the step")
    if option == "clip_norm" and "clip_value" in options:
        raise CannotConvert("the norm is clipped after the values", node.lineno, "the norm first, or one of the two")
    if update.scaler is not None and not any(is_method(each, "unscale_") for each in training.lines()):
        raise CannotConvert(
            "gradients are clipped that are scaled", node.lineno, "scaler.unscale_(optimizer) before it"
        )


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


def schedules(training: Training, guard: ast.If | None) -> tuple[dict[str, str], dict[str, str], list[ast.stmt]]:
    """Stepped with every update, or every epoch: the session's, and their lines go. The others are kept."""
    script, gone = training.script, list[ast.stmt]()
    options, keeps = dict[str, str](), dict[str, str]()
    found: dict[str, list[ast.Call]] = {}
    for node in training.lines():
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
        every = {_every(training, call, guard) for call in calls}
        if any(
            training.script.scope_of(call) is training.inner_scope and call.lineno < training.updates[0].call.lineno
            for call in calls
        ):
            every = {""}
        apart = len({id(training.script.parents[statement_of(training.script, call)]) for call in calls})
        if len(every) == 1 and apart == len(calls) and (kind := every.pop()):
            ours[name] = kind
    for name, calls in found.items():
        if name in ours and ours[name] == next(iter(ours.values())):
            gone += [statement_of(script, call) for call in calls]
        else:
            keeps[_word(name)] = name
            ours.pop(name, None)
    if ours:
        names = list(ours)
        options["scheduler"] = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        if next(iter(ours.values())) == "epoch":
            options["scheduler_every"] = '"epoch"'
    return options, keeps, gone


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
