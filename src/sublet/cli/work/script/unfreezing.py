"""Parameters that ask for a gradient from some turn on; an input that does, as for adversarial samples, is none.

What was trained when the session began may be frozen, and thawed again: that is part of its state.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sublet.cli.work.script.effects import Effects, passed
from sublet.cli.work.script.flow import Roles
from sublet.cli.work.script.freezing import Told, told_directly
from sublet.cli.work.script.kinds import Function, Kind, within
from sublet.cli.work.script.reading import Scope, names_in
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_unfreezing"]


def refuse_unfreezing(effects: Effects, around: ast.For, inner: ast.For, roles: Roles) -> None:
    """A session sums the gradients of the parameters that ask for one when it begins."""
    scope = effects.script.scope_of(around)
    told = [each for node in ast.walk(around) for each in _told(effects, node)]
    told = [each for each in told if not _is_input(effects, each.whom, inner, roles, scope)]
    asks = [each for each in told if _may_be(each.asks, True)]
    freezes = [each for each in told if _may_be(each.asks, False)]
    if asks and (not freezes or any(_may_be(each.asks, False) for each in _before(effects, around))):
        raise CannotConvert(
            "parameters are unfrozen amid training, and a session has those that were trained when it began",
            min(each.line for each in asks),
            "let them ask for gradients from the beginning, and take what they give by .detach() as long as they are "
            "not to be trained: what has no part in a step is not moved; or a group of the optimizer with lr=0 for "
            "them, whose rate is raised later; or a job for each stage",
        )


def _before(effects: Effects, around: ast.For) -> Iterator[Told]:
    """Whatever is told so elsewhere: at the top of a file or a function, or where a module is made."""
    inside = {*ast.walk(around)}
    inits = [each for made in effects.classes.values() for each in made.body if getattr(each, "name", "") == "__init__"]
    pieces = [
        effects.script.scope_of(around),
        effects.script.tree,
        *(each for each in inits if isinstance(each, Function)),
    ]
    for statement in (each for piece in pieces for each in piece.body if not isinstance(each, Function | ast.ClassDef)):
        for node in within(statement):
            if node not in inside:
                yield from _told(effects, node)


def _told(effects: Effects, node: ast.AST) -> Iterator[Told]:
    """By this node, or by a function of the script that it calls."""
    if (told := told_directly(node)) is not None:
        yield told
    if not isinstance(node, ast.Call):
        return
    for function in effects.reached(node):
        given = passed(function, node) if getattr(node.func, "id", "") == function.name else {}
        given = _defaults(function) | given
        for each in filter(None, map(told_directly, ast.walk(function))):
            asks = given.get(each.asks.id, each.asks) if isinstance(each.asks, ast.Name) else each.asks
            named = effects.same_as(effects.held(each.whom), function) & given.keys()
            whom = [given[name] for name in sorted(named)] or [each.whom]
            yield Told(whom[0], asks, node.lineno)


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    args = function.args
    last = args.args[len(args.args) - len(args.defaults) :]
    pairs = [*zip(last, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return {each.arg: value for each, value in pairs if value is not None}


def _may_be(value: ast.expr, what: bool) -> bool:
    return not isinstance(value, ast.Constant) or value.value is what


def _is_input(effects: Effects, asks: ast.expr, inner: ast.For, roles: Roles, scope: Scope) -> bool:
    """Whether it is of the batch, or a tensor that is made from numbers: no part of any module."""
    names = effects.same_as(effects.held(asks), scope)
    if names & roles.state or any(effects.of(name, scope) is Kind.MODULE for name in names):
        return False
    drawn = names_in(inner.target)
    return all(name in drawn or _is_made(effects, name, inner, scope) for name in names)


def _is_made(effects: Effects, name: str, inner: ast.For, scope: Scope) -> bool:
    """In each turn; or before the loop, by a function of torch."""
    if effects.given_in(inner, name):
        return True
    given = effects.given(name, scope)
    parameter = any("Parameter" in effects.script.text(value) for value in given)
    return bool(given) and effects.of(name, scope) is Kind.PLAIN and not parameter
