"""Sums over the group that are no steps: of those who have left their loop, and of those who evaluate.

They are made as the sum of a step is. Whoever trains on meanwhile, because its script does something else than the
others', takes them for one, and learns of it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.train.link.following import Broken
from sublet.train.link.peers import BROKEN, PeerGroup, talking
from sublet.train.numerics.drift import Drift
from sublet.train.numerics.gradients import EVALUATED, LEFT, LOSS, Gradients
from sublet.train.state.state import Progress, broadcast

__all__ = ["left_together", "state_of_rank_0", "summed_figure"]


def left_together(gradients: Gradients, group: PeerGroup, drift: Drift, progress: Progress) -> None:
    """The script has left its loop before the end, at this very step; one of BROKEN. RanksDiffer if some train on."""
    left = _summed(gradients, group, LEFT)[LEFT]
    drift.require_together(group, progress, left=left)


def summed_figure(
    gradients: Gradients, group: PeerGroup, drift: Drift, progress: Progress, figure: float
) -> float | None:
    """The sum of what all members have; None if the group breaks. RanksDiffer if some train on."""
    try:
        found = _summed(gradients, group, EVALUATED, figure)
    except BROKEN:
        group.hang_up()  # the next sum breaks too, and that one is recovered from
        return None
    drift.require_together(group, progress, left=0.0, evaluate=found[EVALUATED])
    return found[LOSS]


def state_of_rank_0(
    gradients: Gradients, group: PeerGroup, drift: Drift, progress: Progress, state: Mapping[str, Any]
) -> Any:
    """What rank 0 has, whatever it is, at all members; None if the group breaks. RanksDiffer if some train on."""
    if summed_figure(gradients, group, drift, progress, 0.0) is None:
        return None
    try:
        with talking():
            return broadcast(group, 0, state)
    except Broken:
        group.hang_up()  # as above
        return None


def _summed(gradients: Gradients, group: PeerGroup, says: int, figure: float = 0.0) -> list[float]:
    """The control numbers of a sum in which each says this, beside its figure; one of BROKEN."""
    gradients.arm()
    gradients.slots[says].fill_(1.0)
    gradients.slots[LOSS].fill_(figure)
    try:
        gradients.sum(group)
    except BROKEN:
        gradients.give_up(group)  # it may be made again in the next group
        raise
    found: list[float] = gradients.control.tolist()
    gradients.clear()
    return found
