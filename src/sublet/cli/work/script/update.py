"""The update in a training loop: known in the orders that a session makes it in, and in no other.

    zero_grad, backward, (unscale_), (clip the norm), (clip the values), step, (scaler.update), (scheduler.step)

once for each optimizer, in every turn of the loop; gradients may be cleared at the end of the turn instead.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from sublet.cli.work.script.clipping import by_hand, clip_of, clips_at, edits_at
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.flow import Roles
from sublet.cli.work.script.now_and_then import KEEPS, now_and_then
from sublet.cli.work.script.reading import Script, is_method, names_in, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Update", "update_of"]

CLIPS = ("unscale_", "clip_norm", "clip_value")  # in the order of a session


@dataclass(slots=True)
class Update:
    """What the body of the loop has, by what becomes of it."""

    losses: list[tuple[ast.Expr, ast.expr]] = field(default_factory=list)  # the statement, what is computed
    stepped: list[str] = field(default_factory=list)  # optimizers, in order
    gone: list[ast.stmt] = field(default_factory=list)
    norms: list[ast.Call] = field(default_factory=list)  # clips whose result is kept
    more: dict[str, str] = field(default_factory=dict)  # of the session
    events: list[tuple[str, str, ast.stmt]] = field(default_factory=list)  # what, whose, where; in order

    @property
    def statements(self) -> set[ast.stmt]:
        """All that are part of it."""
        return {statement for _, _, statement in self.events}

    @property
    def first(self) -> int:
        """The line of the first backward."""
        return min(statement.lineno for what, _, statement in self.events if what == "backward")

    @property
    def last(self) -> int:
        """The line of the last step."""
        return max(statement.lineno for what, _, statement in self.events if what == "step")


def update_of(effects: Effects, loop: ast.For, inner: ast.For, roles: Roles, models: dict[str, str]) -> Update:
    """CannotConvert if a session would do something else. `models`: optimizer -> the model that it has."""
    script, found = effects.script, Update()
    scalers, schedulers = roles.scalers & names_in(inner), roles.schedulers
    changing = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for statement in inner.body:
        _see(script, found, statement, models, scalers, schedulers, changing)
    _refuse_hidden(effects, found, loop, models, scalers)
    _refuse_turns(found, inner, schedulers)
    if not found.losses or len(found.losses) != len(found.stepped) or len(set(found.stepped)) != len(found.stepped):
        raise CannotConvert(
            "the loop is not one backward and one step for each optimizer",
            inner.lineno,
            f"call s.step(loss) where it calls backward and step; micro_batch= accumulates gradients; {KEEPS}",
        )
    if len(found.stepped) > 1 and (scalers or found.more.keys() - {"scheduler"}):
        raise CannotConvert("several optimizers, and a scaler or clipping", inner.lineno, KEEPS)
    order = _Order(found)
    for optimizer in found.stepped:
        order.check(optimizer, scaled=bool(scalers))
    order.check_schedules()
    _refuse_between(effects, found, inner, roles)
    if scalers:
        found.more["scaler"] = next(iter(scalers))
    return found


def _see(
    script: Script,
    found: Update,
    statement: ast.stmt,
    models: dict[str, str],
    scalers: frozenset[str],
    schedulers: frozenset[str],
    changing: set[str],
) -> None:
    owners = {model: optimizer for optimizer, model in models.items()} | {name: name for name in models}
    if (clip := clip_of(script, statement, set(models.values()), changing)) is not None:
        found.events.append((clip.field, owners[clip.model], statement))
        found.more[clip.field] = clip.limit
        if clip.kept is None:
            found.gone.append(statement)
        else:
            found.norms.append(clip.kept)
        return
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        not isinstance(statement, ast.Expr)
        or not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
    ):
        return
    root, whole = root_of(call.func), isinstance(call.func.value, ast.Name)
    if is_method(call, "zero_grad") and root in owners and whole:
        if any(word.arg != "set_to_none" or script.text(word.value) != "True" for word in call.keywords) or call.args:
            raise CannotConvert("zero_grad() is given something", call.lineno, "zero_grad() alone, as a session does")
        _take(found, "zero", owners[root], statement)
    elif is_method(call, "backward"):
        found.losses.append((statement, _loss_of(call, scalers)))
        found.events.append(("backward", "", statement))
    elif is_method(call, "step") and root in scalers | models.keys() and whole:
        found.stepped.append(_whose(call, root, scalers))
        _take(found, "step", found.stepped[-1], statement)
        if found.losses and len(found.losses) != len(found.stepped):
            raise _uneven(found, call.lineno)
    elif root in scalers and is_method(call, "update", "unscale_") and whole:
        whose = root_of(call.args[0]) if call.args else ""
        _take(found, call.func.attr, whose, statement)
    elif is_method(call, "step") and root in schedulers and whole:
        if call.args or call.keywords:
            raise CannotConvert(
                f"{root}.step() is given something", call.lineno, "step it yourself, after the batches of an epoch"
            )
        _take(found, "schedule", root, statement)
        found.more["scheduler"] = f"{found.more['scheduler']}, {root}" if "scheduler" in found.more else root


def _take(found: Update, what: str, whose: str, statement: ast.stmt) -> None:
    found.events.append((what, whose, statement))
    found.gone.append(statement)


def _uneven(found: Update, line: int) -> CannotConvert:
    """Why a step has not one loss of its own."""
    kinds = [what for what, _, _ in found.events]
    if found.stepped[-1] in found.stepped[:-1]:
        twice = f"{found.stepped[-1]}.step() is called twice in a turn"
        return CannotConvert(twice, line, f"one loss and one step for every batch; {KEEPS}")
    if len(found.losses) < len(found.stepped):
        first, last = found.stepped[-2:]
        return CannotConvert(
            f"{first} and {last} make their steps by one loss: of several optimizers in a session each has its own",
            line,
            f"if they are of one kind, one optimizer with groups: [{{'params': ..., 'lr': ...}}]; {KEEPS}",
        )
    since = max((at for at, what in enumerate(kinds[:-1]) if what == "step"), default=0)
    backward = [at for at, what in enumerate(kinds) if what == "backward" and at >= since]
    if "zero" in kinds[backward[0] : backward[-1]]:
        return CannotConvert(
            "gradients of this loss are cleared before the step is made: it goes backward for something else",
            found.events[backward[0]][2].lineno,
            f"torch.autograd.grad(loss, inputs), which leaves those of the model alone; {KEEPS}",
        )
    return CannotConvert(
        "several losses go backward before one step", line, "add the losses up, and give the sum to s.step()"
    )


class _Order:
    """Of what was found, as a session would make it."""

    def __init__(self, found: Update) -> None:
        self._events = found.events
        self._kinds = [what for what, _, _ in found.events]

    def check(self, optimizer: str, *, scaled: bool) -> None:
        """All that concerns one of them."""
        step = next(at for at, (what, whose, _) in enumerate(self._events) if (what, whose) == ("step", optimizer))
        backward = max((at for at in range(step) if self._kinds[at] == "backward"), default=-1)
        if backward < 0 or "step" in self._kinds[backward:step]:
            raise self._refused(step, "a step is made before its gradients are there", "backward, and then step")
        self._check_zero(optimizer, backward, step)
        between = self._own(optimizer, range(backward, step))
        for at, (what, whose, _) in enumerate(self._events):
            if what in CLIPS and whose == optimizer and at not in between:
                why = "gradients are clipped, or unscaled, where no step follows, which changes nothing"
                raise self._refused(at, why, "clip them between backward and step, or take the line out")
        made = [self._kinds[at] for at in between if self._kinds[at] in CLIPS]
        if made != [what for what in CLIPS if what in made]:
            raise self._refused(
                between[0],
                "a session unscales gradients, clips their norm, and then their values, each once; this does not",
                f"that order; {KEEPS}",
            )
        if scaled and set(made) & {"clip_norm", "clip_value"} and "unscale_" not in made:
            raise self._refused(
                backward, "gradients are clipped that are scaled", "scaler.unscale_(optimizer) before it"
            )
        if scaled and self._kinds[step:].count("update") != 1:
            raise self._refused(step, "scaler.update() does not follow the step", "scaler.update() after scaler.step()")

    def _check_zero(self, optimizer: str, backward: int, step: int) -> None:
        if self._own(optimizer, range(backward, step), "zero"):
            why = "gradients are cleared between backward and step, which then does nothing"
            raise self._refused(backward, why, "zero_grad() before backward, or after step")
        count = len(self._events)
        for back in range(1, count + 1):
            at = (backward - back) % count
            if self._events[at][:2] == ("zero", optimizer):
                return
            if self._kinds[at] == "backward":
                break
        cleared = any(event[:2] == ("zero", optimizer) for event in self._events)
        why = (
            f"gradients of {optimizer} are cleared before another loss goes backward, which may add to them"
            if cleared
            else f"gradients of {optimizer} are not cleared in every turn: they add up, and a session clears them"
        )
        raise self._refused(backward, why, f"{optimizer}.zero_grad() right before this; {KEEPS}")

    def check_schedules(self) -> None:
        """They follow all steps, once each."""
        last = max(at for at, what in enumerate(self._kinds) if what == "step")
        seen = set()
        for at, (what, whose, _) in enumerate(self._events):
            if what == "schedule" and (at < last or whose in seen):
                raise self._refused(at, f"{whose}.step() is not once after the optimizer's step", "call it there, once")
            seen |= {whose} if what == "schedule" else set()

    def _own(self, optimizer: str, places: range, *kinds: str) -> list[int]:
        wanted = kinds or CLIPS
        return [at for at in places if self._kinds[at] in wanted and self._events[at][1] == optimizer]

    def _refused(self, at: int, why: str, do: str) -> CannotConvert:
        return CannotConvert(why, self._events[at][2].lineno, do)


def _refuse_between(effects: Effects, found: Update, inner: ast.For, roles: Roles) -> None:
    """The session makes its step where backward was: nothing between the two may be part of it, or look at it."""
    scope, waits = effects.script.scope_of(inner), False
    kinds = {statement: what for what, _, statement in found.events}
    for statement in inner.body:
        if (what := kinds.get(statement)) is not None:
            waits = what == "backward" or (waits and what != "step")
            continue
        if not waits or effects.only_tells(statement):
            continue
        done = effects.done_by(statement, scope)
        touched = effects.same_as({*done.reads, *done.writes}, scope) & roles.state
        if touched:
            raise CannotConvert(
                f"`{min(touched)}` is used between backward and step, and the session makes its step with backward",
                statement.lineno,
                f"before backward, or after step; {KEEPS}",
            )


def _refuse_hidden(
    effects: Effects, found: Update, loop: ast.stmt, models: dict[str, str], scalers: frozenset[str]
) -> None:
    """A step, a backward, or an edit of gradients, that is done now and then, or elsewhere."""
    script, known = effects.script, found.statements
    steppers = {*models, *scalers}
    pieces: list[ast.AST] = [*effects.reached(loop)]
    left: list[ast.AST] = [loop]
    while left:
        node = left.pop()
        if node in known:
            continue
        pieces.append(node) if not isinstance(node, ast.stmt) else None
        left += ast.iter_child_nodes(node)
    for piece in pieces:
        for node in ast.walk(piece) if isinstance(piece, ast.stmt) else [piece]:
            stepped = is_method(node, "step") and root_of(node.func) in steppers
            cleared = is_method(node, "zero_grad") and (isinstance(piece, ast.stmt) or root_of(node.func) in steppers)
            if isinstance(node, ast.Call) and (is_method(node, "backward") or stepped or cleared):
                raise now_and_then(script, loop, node, steppers)
            if clip := next(clips_at(script, node), None):
                raise by_hand(clip, "clipping that is not the same in every turn of the loop")
            if isinstance(node, ast.Attribute) and next(edits_at(script, node), None):
                raise CannotConvert(
                    f"`{script.text(node)}` is used in the loop, where a session has no gradients any more",
                    node.lineno,
                    "clip_norm= and clip_value= of the session, s.grad_norm, or parameter.register_hook()",
                )


def _refuse_turns(found: Update, inner: ast.For, schedulers: frozenset[str]) -> None:
    """Schedulers that are stepped in some turns, or by turns: a session steps those that it has after every step."""
    known = {id(statement.value) for _, _, statement in found.events if isinstance(statement, ast.Expr)}
    for node in ast.walk(inner):
        if is_method(node, "step") and root_of(node.func) in schedulers and id(node) not in known:
            raise CannotConvert(
                f"{root_of(node.func)}.step() is not in every turn of the loop",
                node.lineno,
                "one scheduler that is stepped after every step: SequentialLR, or LambdaLR; or after the batches",
            )


def _loss_of(call: ast.Call, scalers: frozenset[str]) -> ast.expr:
    """What `.backward()` is called on, without the scaler."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - it is a method
    if call.args or call.keywords:
        raise CannotConvert("backward() is given something", call.lineno, "s.step(loss), which calls it without")
    loss = call.func.value
    if is_method(loss, "scale") and root_of(loss.func) in scalers and len(loss.args) == 1:
        return loss.args[0]
    if scalers:
        raise CannotConvert(
            "the loss is not scaled, and there is a scaler", call.lineno, "scaler.scale(loss).backward()"
        )
    return loss


def _whose(call: ast.Call, root: str, scalers: frozenset[str]) -> str:
    if root in scalers:
        return root_of(call.args[0]) if len(call.args) == 1 else ""
    if scalers:
        raise CannotConvert(f"{root}.step() is made without the scaler", call.lineno, f"scaler.step({root})")
    if call.args or call.keywords:
        raise CannotConvert(f"{root}.step() is given a closure", call.lineno, KEEPS)
    return root
