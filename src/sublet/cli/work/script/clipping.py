"""Gradients that a loop edits by hand: clips become `clip_norm=` and `clip_value=` of the session, where they can."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from sublet.cli.work.script.kinds import bindings_in
from sublet.cli.work.script.reading import Script, is_method, root_of
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["Clip", "by_hand", "clip_of", "clips_at", "clips_in", "edits_at", "edits_in"]

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm", "clip_grad_value_": "clip_value"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A statement of the loop that clips, as the session says it."""

    field: str  # clip_norm or clip_value
    model: str
    limit: str
    kept: ast.Call | None = None  # the script keeps what it says, how long the gradient was


def clips_in(script: Script, node: ast.AST) -> Iterator[ast.Call]:
    """Every call that clips, at any depth."""
    for each in ast.walk(node):
        yield from clips_at(script, each)


def clips_at(script: Script, node: ast.AST) -> Iterator[ast.Call]:
    """This call, if it clips."""
    if isinstance(node, ast.Call) and script.full_name(node.func).rpartition(".")[2] in CLIPS:
        yield node


def edits_in(script: Script, node: ast.AST) -> Iterator[ast.Attribute]:
    """`.grad` of anything; a module of that name is none."""
    for each in ast.walk(node):
        yield from edits_at(script, each)


def edits_at(script: Script, node: ast.AST) -> Iterator[ast.Attribute]:
    """This attribute, if it is one."""
    if isinstance(node, ast.Attribute) and node.attr == "grad" and script.full_name(node) != "torch.autograd.grad":
        yield node


def clip_of(script: Script, statement: ast.stmt, models: set[str], changing: set[str]) -> Clip | None:
    """What a statement of the loop clips; None if nothing. CannotConvert if a session cannot say it.

    It may be kept as a number, or be done under a condition that none of the names `changing` in the loop is part of.
    """
    calls = list(clips_in(script, statement))
    if not calls:
        return None
    call, condition, norm, inner = calls[0], "", "", statement
    if isinstance(inner, ast.If) and len(inner.body) == 1 and not inner.orelse:
        condition, inner = f" if {script.text(inner.test)} else None", inner.body[0]
    if isinstance(inner, ast.Assign) and len(inner.targets) == 1 and isinstance(inner.targets[0], ast.Name):
        norm = inner.targets[0].id
    plain = isinstance(inner, ast.Expr | ast.Assign) and inner.value is call and (norm or isinstance(inner, ast.Expr))
    told = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - {norm}
    fixed = {} if condition else _constants(script, statement)
    asks = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and node is not call]
    if len(asks) > 1 or not plain or told & changing - {*fixed} or (condition and norm):  # of parameters() alone
        raise by_hand(call, "clipping that is not the same in every turn of the loop")
    field = CLIPS[script.full_name(call.func).rpartition(".")[2]]
    if norm and field != "clip_norm":
        raise by_hand(call, "a clip whose result is kept")
    model, limit = _limit(script, call, models)
    limit = fixed.get(limit, limit)
    return Clip(field=field, model=model, limit=limit + condition, kept=call if norm else None)


def _constants(script: Script, statement: ast.stmt) -> dict[str, str]:
    """Names that are one number, whatever the turn, as an argument is that no call gives: each with it."""
    given: dict[str, list[ast.expr]] = {}
    for name, value in bindings_in(script.scope_of(statement)):
        given.setdefault(name, []).append(value)
    return {
        name: script.text(values[0])
        for name, values in given.items()
        if len(values) == 1 and isinstance(values[0], ast.Constant)
    }


def _limit(script: Script, call: ast.Call, models: set[str]) -> tuple[str, str]:
    """Whose gradients, and by what."""
    words = {word.arg: word.value for word in call.keywords}
    clipped = call.args[0] if call.args else words.get("parameters")
    limit = call.args[1] if len(call.args) == 2 else words.get("max_norm", words.get("clip_value"))  # noqa: PLR2004 - parameters and limit
    if limit is None or clipped is None or len(call.args) + len(words) != 2:  # noqa: PLR2004 - parameters and limit
        raise by_hand(call, "clipping in another way than by a limit")
    whole = is_method(clipped, "parameters") and isinstance(clipped.func.value, ast.Name) and not clipped.args
    if not whole or root_of(clipped) not in models:
        raise by_hand(call, f"`{script.text(clipped)}` is clipped, and a session clips all parameters of its model")
    return root_of(clipped), script.text(limit)


def by_hand(call: ast.Call, why: str) -> CannotConvert:
    """With what to write."""
    return CannotConvert(why, call.lineno, "train.session(..., clip_norm=1.0), or clip_value=; s.grad_norm is its norm")
