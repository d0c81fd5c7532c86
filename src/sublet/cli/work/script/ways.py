"""Ways through a statement of which only one is taken, and what names are by samples where they meet again."""

from __future__ import annotations

import ast

from sublet.cli.work.script.grades import Grade, worst

__all__ = ["goes_on", "met", "ways_of"]

LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
NO_WAY: list[ast.stmt] = []  # nothing is done


def ways_of(statement: ast.stmt) -> list[list[list[ast.stmt]]]:
    """What runs in it, one after the other; of each, the blocks of which one runs."""
    match statement:
        case ast.If():
            return [[statement.body, statement.orelse]]
        case ast.Match():
            return [[*(case.body for case in statement.cases), NO_WAY]]
        case ast.Try():
            handled = [handler.body for handler in statement.handlers]
            return [[[*statement.body, *statement.orelse], *handled], [statement.finalbody]]
        case ast.For() | ast.While():
            return [[statement.body], [statement.orelse]]
        case ast.With():
            return [[statement.body]]
        case _:
            return []


def goes_on(way: list[ast.stmt]) -> bool:
    """Whether what comes after it runs."""
    return not way or not isinstance(way[-1], LEAVES)


def met(known: dict[str, Grade], ends: list[dict[str, Grade]]) -> dict[str, Grade]:
    """What names are after any of these ways: the worst of what they are after each that has them."""
    found: dict[str, Grade] = {}
    for name in {name for end in ends for name in end}:
        grades = {end[name] for end in ends if name in end}
        found[name] = grades.pop() if len(grades) == 1 else worst(grades)
    return {name: grade for name, grade in found.items() if known.get(name) is not grade}
