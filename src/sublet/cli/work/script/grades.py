"""Grades of values by the samples of the batch in them, what operators make of two, and why some fit no session.

A worker has a part of the batch. What a session can put together again are means and sums over samples; the odd ones
come out otherwise at another width, without anybody being told.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import Enum

__all__ = ["BATCH", "COUNTS", "ODDS", "ROWS", "WHY", "Grade", "by_operator", "over", "slope_of", "worst"]


class Grade(Enum):
    """Of a value, by the samples of the batch in it."""

    NUMBER = "written down"
    NONE = "of no sample"
    MEAN = "a mean over samples"
    SUM = "a sum over samples"
    EACH = "one for each sample"
    TURNED = "one for each sample, which are not in the first place any more"
    SOME = "one for each of some samples"
    COUNT = "how many samples"
    MULTIPLE = "a multiple of how many samples"
    SHARE = "of no sample, divided by how many there are"
    ODD = "something else"
    CURVED = "a function of a mean"
    WEIGHED = "a weighted mean"
    PARTIAL = "a mean over some samples"
    CHOSEN = "of what is chosen among samples"
    PAIRED = "of samples beside each other"
    QUOTIENT = "a sum divided by another"
    SLOPE = "a gradient of a mean"
    SIZED = "something that goes by how many samples there are"
    PLACES = "the place of each sample in its batch"
    DIVIDED = "one for each sample, divided by how many there are"


ROWS = frozenset({Grade.EACH, Grade.TURNED, Grade.SOME})
ODDS = (  # the clearest reason first
    Grade.SLOPE, Grade.PAIRED, Grade.CHOSEN, Grade.SIZED, Grade.PLACES, Grade.DIVIDED, Grade.PARTIAL, Grade.WEIGHED,
    Grade.QUOTIENT, Grade.CURVED, Grade.ODD,
)  # fmt: skip
BATCH = frozenset({Grade.MEAN, Grade.SUM, *ROWS, *ODDS})
FREE = frozenset({Grade.NUMBER, Grade.NONE})
COUNTS = frozenset({Grade.COUNT, Grade.MULTIPLE})

ALONE = "keep the batch in one worker: a session that is written by hand, and --workers 1; or train.checkpointed"
COUNTED = 'a sum, and how many it is of: reduction="counted" and s.step(summed_loss, counted=n); or ' + ALONE
WHY = {
    Grade.CURVED: ("the loss is a function of a mean, such as its root: that of a worker's part is another", ALONE),
    Grade.WEIGHED: ("the loss is a weighted mean, and each worker would divide by the weights of its part", COUNTED),
    Grade.PARTIAL: ("the loss is a mean over some samples, or labels: how many a worker has differs", COUNTED),
    Grade.SOME: ("the loss is of some samples: how many a worker has differs", COUNTED),
    Grade.CHOSEN: ("the loss is of what is chosen among the samples of a batch: a worker has a part of them", ALONE),
    Grade.QUOTIENT: (
        "the loss is a sum over the batch that is divided by another: that of a worker's part is divided by its own",
        f"where no weights bear on what it is divided by (a mask, a number of tokens), {COUNTED}",
    ),
    Grade.SLOPE: (
        "the loss goes by a gradient of a mean over samples, which is the larger the fewer a worker has",
        'a gradient of a sum (reduction="sum" of the loss), which is that of each sample; or its sign; or ' + ALONE,
    ),
    Grade.PAIRED: ("the loss of a sample goes by the others of its batch: a worker has a part of them", ALONE),
    Grade.SIZED: (
        "the loss goes by how many samples the batch has: a worker has a part of them",
        "what follows from the samples, or from the step (s.steps); drop_last=True of the loader, if it is for the "
        "last batch; or " + ALONE,
    ),
    Grade.DIVIDED: (
        "what each sample adds to the loss is divided by how many there are, before it is summed: a worker has fewer",
        "divide the sum: `losses.sum() / len(x)`, or losses.mean(); with weights for samples `(w * losses).mean()`",
    ),
    Grade.PLACES: (
        "the loss of a sample goes by its place in the batch: in a worker's part it has another",
        "what follows from the sample, given by the dataset; or " + ALONE,
    ),
}


def by_operator(op: ast.operator, left: Grade, right: Grade) -> Grade:
    """Of `left op right`."""
    both = {left, right}
    if odd := _oddest(both):
        return odd
    if {Grade.EACH, Grade.TURNED} <= both or (isinstance(op, ast.MatMult) and Grade.TURNED in both and both <= ROWS):
        return Grade.PAIRED
    if isinstance(op, ast.Add | ast.Sub):
        return _added(op, both)
    if isinstance(op, ast.Div) and right in COUNTS:
        found = Grade.NONE if left in COUNTS else Grade.MEAN if left is Grade.SUM else Grade.SHARE
        return _divided(left) if found is Grade.SHARE and left in BATCH else found
    if Grade.SHARE in both:
        return _shared(op, both)
    if both & COUNTS:
        if isinstance(op, ast.Mult) and both - COUNTS == {Grade.MEAN}:
            return Grade.SUM
        scales = (isinstance(op, ast.Mult) and both & FREE) or (isinstance(op, ast.Div) and right in FREE)
        return Grade.ODD if both & BATCH else Grade.MULTIPLE if scales else Grade.SIZED
    if rows := both & ROWS:
        return Grade.PAIRED if both & {Grade.SUM, Grade.MEAN} else _row(rows)
    if isinstance(op, ast.Div) and left is right is Grade.SUM:
        return Grade.QUOTIENT
    scales = isinstance(op, ast.Mult | ast.MatMult) or (isinstance(op, ast.Div) and right in FREE)
    for grade, otherwise in ((Grade.SUM, Grade.ODD), (Grade.MEAN, Grade.CURVED)):
        if grade in both:
            return grade if scales and len(both) > 1 and both - {grade} <= FREE else otherwise
    return Grade.NONE if Grade.NONE in both else Grade.NUMBER


def _shared(op: ast.operator, both: set[Grade]) -> Grade:
    """Of what is divided by the samples already: a sum becomes a mean, all else is the larger the fewer there are."""
    if both == {Grade.SHARE, Grade.SUM} and isinstance(op, ast.Mult):
        return Grade.MEAN
    if both & COUNTS:
        return Grade.NONE
    return _divided(*both & BATCH) if both & BATCH else Grade.SHARE


def _divided(grade: Grade) -> Grade:
    """By how many samples there are, where it is no sum."""
    return Grade.DIVIDED if grade in ROWS else Grade.SIZED if grade is Grade.MEAN else Grade.ODD


def _added(op: ast.operator, both: set[Grade]) -> Grade:
    if both == {Grade.SUM, Grade.NONE}:
        return Grade.ODD  # it would count once for each worker
    if both & COUNTS and both & FREE:
        return Grade.SIZED
    left = both - FREE
    if len(left) < 2:  # noqa: PLR2004 - two sides
        return left.pop() if left else Grade.NONE if Grade.NONE in both else Grade.NUMBER
    if not left & ROWS or Grade.SUM in left:
        return Grade.ODD
    centred = isinstance(op, ast.Sub) and Grade.MEAN in left  # by the mean of a batch
    return Grade.PAIRED if centred else _row(left & ROWS)


def worst(grades: Iterable[Grade]) -> Grade:
    """Of what is made from all of them, as far as nothing else is known."""
    given = set(grades)
    kinds = given - FREE - COUNTS - {Grade.SHARE}
    if not kinds and (sizes := given & {Grade.SHARE, *COUNTS}):
        return next(grade for grade in (Grade.SHARE, Grade.COUNT, Grade.MULTIPLE) if grade in sizes)
    if not kinds:
        return Grade.NONE if Grade.NONE in given or not given else Grade.NUMBER
    if odd := _oddest(kinds):
        return odd
    if len(kinds) == 1:
        return kinds.pop()
    return Grade.ODD if Grade.SUM in kinds else _row(kinds & ROWS)


def over(grade: Grade) -> Grade:
    """Of a function that is no sum: of one it is something else."""
    return Grade.ODD if grade is Grade.SUM else Grade.NONE if grade in COUNTS else grade


def slope_of(grades: list[Grade]) -> Grade:
    """A gradient: of the first of them, by the second; a sum is how those of all samples are asked for at once."""
    of, by = [*grades, Grade.NONE, Grade.NONE][:2]
    if of in (Grade.MEAN, Grade.SUM) and by not in ROWS:
        return Grade.CURVED  # by weights
    if of is Grade.MEAN:
        return Grade.SLOPE
    return Grade.EACH if worst([of, by]) in BATCH else Grade.NONE


def _row(rows: set[Grade] | frozenset[Grade]) -> Grade:
    return next(grade for grade in (Grade.SOME, Grade.EACH, Grade.TURNED) if grade in rows)


def _oddest(grades: set[Grade]) -> Grade | None:
    return next((grade for grade in ODDS if grade in grades), None)
