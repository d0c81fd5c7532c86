"""Sums over the group that are no steps: of those who have left their loop, and of those who evaluate.

They are made as the sum of a step is. Whoever trains on meanwhile, because its script does something else than the
others', takes them for one, and learns of it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sublet.train.link.following import Broken
from sublet.train.link.peers import BROKEN, PeerGroup, talking
from sublet.train.numerics.drift import Drift
from sublet.train.numerics.gradients import EVALUATED, LEFT, LOSS, Gradients
from sublet.train.state.state import Progress, broadcast

__all__ = ["figures_of_rank_0", "left_together", "state_of_rank_0", "summed_figure"]


def left_together(gradients: Gradients, group: PeerGroup) -> int:
    """The script has left its loop before the end: how many members have, at this very step; one of BROKEN."""
    gradients.arm()
    gradients.slots[LEFT].fill_(1.0)
    try:
        gradients.sum(group)
    except BROKEN:
        gradients.give_up(group)  # it may be made again in the next group
        raise
    left = int(gradients.control[LEFT])
    gradients.clear()
    return left


def summed_figure(
    gradients: Gradients, group: PeerGroup, drift: Drift, progress: Progress, figure: float
) -> float | None:
    """The sum of what all members have; None if the group breaks. RanksDiffer if some train on."""
    gradients.arm()
    gradients.slots[EVALUATED].fill_(1.0)
    gradients.slots[LOSS].fill_(figure)
    try:
        gradients.sum(group)
    except BROKEN:
        gradients.give_up(group)
        group.hang_up()  # the next sum breaks too, and that one is recovered from
        return None
    found = gradients.control.tolist()
    gradients.clear()
    drift.require_all_evaluate(int(found[EVALUATED]), group, progress)
    return float(found[LOSS])


def figures_of_rank_0(
    gradients: Gradients, group: PeerGroup, drift: Drift, progress: Progress, figures: Sequence[float]
) -> list[float] | None:
    """What rank 0 has, at all members; None if the group breaks. RanksDiffer if some train on."""
    if summed_figure(gradients, group, drift, progress, 0.0) is None:
        return None
    told = torch.tensor(figures if group.rank == 0 else [0.0] * len(figures), dtype=torch.float64)
    try:
        with talking():
            group.all_reduce(told)
    except Broken:
        group.hang_up()  # as above
        return None
    return [float(figure) for figure in told.tolist()]


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
