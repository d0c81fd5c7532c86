"""An epoch that a script leaves before its samples are through: `break` in `for batch in s`, and on to the next one.

It is right if all workers leave it at the same step, and so each says that it has: whoever trains on takes that for the
sum of its step, and learns of it there. Whoever is lost on the way is missed in the next step.
"""

from __future__ import annotations

from sublet.errors import InvalidValue
from sublet.train.link.beside import left_together
from sublet.train.link.peers import BROKEN, PeerGroup
from sublet.train.sessions.steps import Steps

__all__ = ["leave_epoch"]


def leave_epoch(steps: Steps, group: PeerGroup) -> None:
    """The script is through with what it does after the batches that it took.

    InvalidValue if it took none, or left amid a step; RanksDiffer if others train on.
    """
    progress = steps.progress
    if allowed := _refused(steps):
        left = f"left after {progress.offset} of {progress.samples} samples"
        raise InvalidValue(f"epoch {progress.epoch}", left, allowed)
    progress.end_epoch()
    if group.world == 1:
        return
    try:
        left_by = left_together(steps.gradients, group)
    except BROKEN:
        group.hang_up()  # the next sum breaks too, and that one is recovered from
        return
    steps.drift.require_all_left(left_by, group, progress)


def _refused(steps: Steps) -> str:
    """What is to be done instead; "" if it may be left."""
    if not steps.progress.begun:
        return "trained by `for batch in s`: nothing was taken from the session in it"
    if steps.under_way:
        return "left where s.updated is true: `if s.updated and ...: break`"
    if steps.stream is not None or steps.adaptive is not None:
        return "trained to its end by `for batch in s`: of a stream, or with a batch that grows, steps=N ends training"
    return ""
