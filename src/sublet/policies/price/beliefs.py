"""How much work a job is believed to have left, by what the policy may know of sizes.

    declared   what its owner said
    learned    what jobs of its group needed that are done, and how far those are that run; else all that are done
    past       what all jobs needed that are done, and how far all are that run
    nothing    all jobs alike

Only `declared` reads the size of a job that is not done yet. The rule of `learned` is that of scripts that run live
and do not say how large they are (`perf.sizes`). For `past`, the share of jobs that need more than so much is estimated
as Kaplan and Meier (1958) do, from what the done needed and what the running have had so far. A falling power of the
rest weighs a job, so that power is averaged: one job of a hundred that needs days should not make all others seem long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sublet.domain.demand import Ended, group_of
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.sizes import Had, left_by_all_h, left_by_group_h
from sublet.policies.price.choices import TRIFLE_H, Asked
from sublet.policies.price.decision import WorkBelief
from sublet.solve.arrays import Floats

SHORT_FIRST = 0.35  # power of the work left, in what GPUs cost a job: 0 is blind to it, 1 all but starves long jobs
NEWCOMER_H = 0.1  # GPU-hours, beside what a job has had; only the order of jobs follows from it
IMAGINED = 1.0  # jobs beside those that are known: as much again is left of them
BEYOND = 2.0  # times the longest so far is what those need that outlive it
ENDING_H = 1e-3  # what is about to end lasts this long


def believed_left_h(asked: Asked, ended: Ended, knows: WorkBelief) -> Floats:
    """GPU-hours left of each job at its most efficient, over its weight.

    Cost: O(J log n) for n that are done; O(J n) with `past`.
    """
    weight_J = asked.jobs.weight_J
    if knows is WorkBelief.NOTHING:
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


class Survival(NamedTuple):
    """Which share of jobs needs each of these GPU-hours, and which more than the longest that is known."""

    need_A: Floats
    share_A: Floats
    beyond: float
    longest_h: float


def survival(done_h: Floats, runs_h: Floats) -> Survival:
    """By Kaplan and Meier: jobs that run need more than they have had. Cost: O(n log n)."""
    need_A = np.concatenate((done_h, runs_h))
    is_done_A = np.repeat([1.0, 0.0], [len(done_h), len(runs_h)])
    order_A = np.lexsort((-is_done_A, need_A))
    need_A, is_done_A = need_A[order_A], is_done_A[order_A]
    ends_A = is_done_A / np.arange(len(need_A), 0, -1)  # of those that got as far, this share ends here
    after_A = np.cumprod(1.0 - ends_A)
    share_A = np.concatenate(([1.0], after_A[:-1])) * ends_A
    done = is_done_A > 0.0
    return Survival(
        need_A=need_A[done],
        share_A=share_A[done],
        beyond=float(after_A[-1]) if len(after_A) else 1.0,
        longest_h=float(need_A[-1]) if len(need_A) else 0.0,
    )


def left_of_all_h(had_h_J: Floats, done_h: Floats, *, newcomer_h: float, power: float) -> Floats:
    """(J,): GPU-hours `h` such that `h ** -power` is the mean of that over what may be left. Cost: O(J n).

    >>> done_h, runs_h = np.array([1.0, 2.0, 4.0]), np.array([0.0, 3.0])
    >>> # a quarter needs 1, a quarter 2, half 4, and one more as much again: 5 / (1 / 1 + 1 / 2 + 2 / 4 + 1 / 0.1)
    >>> left_of_all_h(runs_h, done_h, newcomer_h=0.1, power=1.0).round(2)
    array([0.42, 1.29])
    """
    known = survival(done_h, had_h_J)
    count = len(done_h) + np.count_nonzero(had_h_J > 0.0)
    far_J1 = np.maximum(known.longest_h, had_h_J)[:, None]
    need_JA = np.concatenate(
        (
            np.broadcast_to(known.need_A, (len(had_h_J), len(known.need_A))),
            BEYOND * far_J1 + newcomer_h,
            2.0 * had_h_J[:, None] + newcomer_h,
        ),
        axis=1,
    )
    share_A = np.concatenate((count * known.share_A, [count * known.beyond, IMAGINED]))
    left_JA = need_JA - had_h_J[:, None]
    share_JA = np.where(left_JA > 0.0, share_A, 0.0)
    mean_J = (share_JA * np.maximum(left_JA, ENDING_H) ** -power).sum(axis=1) / share_JA.sum(axis=1)
    return np.asarray(mean_J ** (-1.0 / power))
