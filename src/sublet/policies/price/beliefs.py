"""How much work a job is believed to have left, by what the policy may know of sizes.

    declared   what its owner said
    learned    what jobs of its group have needed that are done, and how far those are that run; else all that are done
    past       what all jobs have needed that are done, and how far all are that run (`survival`)
    nothing    all jobs alike

Only `declared` reads the size of a job that is not done yet. The rule of `learned` is that of scripts which run live
and do not say how large they are (`perf.sizes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sublet.domain.demand import Ended, group_of
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.sizes import Had, left_by_all_h, left_by_group_h
from sublet.policies.price.choices import TRIFLE_H, Asked
from sublet.policies.price.cluster_split import SHORT_FIRST
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.survival import left_of_all_h
from sublet.solve.arrays import Floats

__all__ = ["believed_left_h"]

NEWCOMER_H = 0.1  # GPU-hours, beside what a job has had; only the order of jobs follows from it


def believed_left_h(asked: Asked, ended: Ended, knows: WorkBelief) -> Floats:
    """GPU-hours left of each job at its most efficient, over its weight.

    Cost: O(J log n) for n that are done; O(J n) with `past`.
    """
    weight_J = asked.jobs.weight_J
    if knows is WorkBelief.DECLARED:
        left_h_J = asked.jobs.gpu_hours_J
    elif knows is WorkBelief.NOTHING:
        left_h_J = 1.0 / weight_J
    else:
        had_h_J = asked.jobs.attained_gpu_s_J / SECONDS_PER_H
        if knows is WorkBelief.LEARNED:
            left_h_J = _of_the_group(asked, ended, had_h_J.tolist()) / weight_J
        else:
            done_h = np.array(ended.gpu_hours)
            left_h_J = left_of_all_h(had_h_J, done_h, newcomer_h=NEWCOMER_H, power=SHORT_FIRST) / weight_J
    return np.asarray(np.maximum(TRIFLE_H, left_h_J))


def _of_the_group(asked: Asked, ended: Ended, had_h_J: Sequence[float]) -> Floats:
    """By those of the group that are done. While none is, a job that runs on tells that the others are long, too."""
    most_had_h: dict[str, float] = {}
    group_J = [group_of(state.job) for state in asked.jobs.states]
    for group, had_h in zip(group_J, had_h_J, strict=True):
        most_had_h[group] = max(had_h, most_had_h.get(group, 0.0))
    left_h_J = []
    facts = zip(group_J, asked.jobs.done_J.tolist(), asked.table.gpu_rate_J.tolist(), strict=True)
    for (group, done, gpu_rate), had_h in zip(facts, had_h_J, strict=True):
        left_h = otherwise_h = left_by_all_h(had_h, ended, newcomer_h=NEWCOMER_H)
        if group and gpu_rate:
            left_h = left_by_group_h(
                Had(done, had_h),
                ended.work_by_group.get(group, ()),
                gpu_rate=gpu_rate,
                otherwise_h=otherwise_h,
                most_had_h=most_had_h[group],
            )
        left_h_J.append(left_h)
    return np.array(left_h_J)
