"""Parameters that ask for a gradient from some turn on; an input that does, as for adversarial samples, is none."""

from __future__ import annotations

import ast

from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.flow import Roles
from sublet.cli.work.script.kinds import Kind
from sublet.cli.work.script.reading import Scope, is_method, names_in
from sublet.cli.work.script.splice import CannotConvert

__all__ = ["refuse_unfreezing"]


def refuse_unfreezing(effects: Effects, around: ast.For, inner: ast.For, roles: Roles) -> None:
    """A session sums the gradients of the parameters that ask for one when it begins."""
    scope = effects.script.scope_of(around)
    for node in ast.walk(around):
        if (asks := _asks(node)) is not None and not _is_input(effects, asks, inner, roles, scope):
            raise CannotConvert(
                "parameters are unfrozen amid training, and a session has those that were trained when it began",
                asks.lineno,
                "a group of the optimizer with lr=0 for them, whose rate is raised later; or a job for each stage",
            )


def _asks(node: ast.AST) -> ast.expr | None:
    """What is told to ask for a gradient."""
    if is_method(node, "requires_grad_"):
        given = [*node.args, *(word.value for word in node.keywords)] or [ast.Constant(value=True)]
        return node.func.value if _is_true(given[0]) else None
    if isinstance(node, ast.Assign) and _is_true(node.value):
        told = [each for each in node.targets if isinstance(each, ast.Attribute) and each.attr == "requires_grad"]
        return told[0].value if told else None
    return None


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


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
