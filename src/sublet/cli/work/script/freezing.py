"""Lines that tell parameters, or a tensor, whether to ask for a gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from sublet.cli.work.script.reading import is_method, names_in

__all__ = ["Told", "freezes_by", "told_directly"]

PARTS = ("parameters", "named_parameters", "modules", "children", "named_modules", "named_children")


class Told(NamedTuple):
    """Something is told whether to ask for a gradient."""

    whom: ast.expr
    asks: ast.expr
    line: int


def told_directly(node: ast.AST) -> Told | None:
    """`layer.requires_grad_(False)`, `p.requires_grad = True`."""
    if is_method(node, "requires_grad_"):
        given = [*node.args, *(word.value for word in node.keywords)] or [ast.Constant(value=True)]
        return Told(node.func.value, given[0], node.lineno)
    if isinstance(node, ast.Assign):
        told = [each for each in node.targets if isinstance(each, ast.Attribute) and each.attr == "requires_grad"]
        return Told(told[0].value, node.value, node.lineno) if told else None
    return None


def freezes_by(statement: ast.stmt) -> set[str] | None:
    """Names that a statement goes by which freezes, or thaws, and does nothing else; None if it does more."""
    found: set[str] = set()
    for each in _parts(statement):
        if each is None:
            return None
        found |= names_in(each)
    return found


def _parts(statement: ast.stmt) -> Iterator[ast.expr | None]:
    """Conditions and values; None for what is something else."""
    told = told_directly(statement.value if isinstance(statement, ast.Expr) else statement)
    if told is not None:
        yield told.asks
    elif isinstance(statement, ast.If):
        yield statement.test
        for each in (*statement.body, *statement.orelse):
            yield from _parts(each)
    elif isinstance(statement, ast.For) and is_method(statement.iter, *PARTS) and not statement.orelse:
        for each in statement.body:
            yield from _parts(each)
    else:
        yield None
