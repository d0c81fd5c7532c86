"""How a loss grows with the samples that it is of: not at all (a mean), with their number (a sum), or nobody knows.

A worker has a part of the batch. Means of parts are weighted by their sizes, and sums are added up; a loss that is
partly one and partly the other, or a sum with a penalty on weights, would come out otherwise at another width.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sublet.cli.work.script.bars import is_counted
from sublet.cli.work.script.effects import Effects
from sublet.cli.work.script.grades import WHY, Grade, worst
from sublet.cli.work.script.grading import Grader, Known
from sublet.cli.work.script.reading import names_in

__all__ = ["Loss", "loss_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Of a training loop."""

    grade: Grade
    sums: tuple[int, ...] = ()  # lines where samples are added up, or counted, in it
    penalty: bool = False  # of weights, beside a sum
    odd: tuple[int, str, str] | None = None  # no session can put it together from parts: the line, why, what to do


def loss_of(effects: Effects, inner: ast.For | ast.While, losses: list[ast.expr]) -> Loss:
    """What all that goes backward is, at its worst."""
    grader = Grader(effects, effects.script.scope_of(inner))
    grader.where, known = inner, Known()
    if isinstance(inner, ast.For):
        known = dict.fromkeys(names_in(inner.target), Grade.EACH)
        parts = [inner.target]
        if isinstance(inner.target, ast.Tuple) and is_counted(effects.script, inner):
            known |= dict.fromkeys(names_in(inner.target.elts[0]), Grade.NUMBER)  # enumerate
            parts = inner.target.elts[1:]
        grader.batches = {each.id for each in parts if len(parts) == 1 and isinstance(each, ast.Name)}
        inside = [each.elts for each in parts if isinstance(each, ast.Tuple)]
        grader.drawn = {each.id for each in (inside[0] if inside else parts) if isinstance(each, ast.Name)}
        grader.drawn -= grader.batches
    grades: set[Grade] = set()
    grader.run(inner.body, known, losses, grades)
    found = grades - {Grade.NONE, Grade.NUMBER} or {Grade.MEAN}
    grade = found.pop() if len(found) == 1 else worst([Grade.ODD, *found])
    return Loss(
        grade=grade,
        odd=(grader.lines.get(grade, inner.lineno), *WHY[grade]) if grade in WHY else None,
        sums=tuple(sorted(grader.sums)),
        penalty=grader.penalty,
    )
