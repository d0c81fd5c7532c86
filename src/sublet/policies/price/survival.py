"""How much is left of jobs of which nothing is known but how long they have run, by those that are done and that run.

Those that were done first were short. A job that runs on tells that jobs may be as long, though not how long. So the
share of jobs that need more than so much is estimated as Kaplan and Meier (1958) do, from what the done have needed and
what those that run have had so far. What is left is uncertain, and what weighs a job is a falling power of it. That
power is averaged, not what is left, for one of a hundred that needs days should not make all others seem long.

>>> done_h, runs_h = np.array([1.0, 2.0, 4.0]), np.array([0.0, 3.0])
>>> # a quarter needs 1, a quarter 2, half 4, and one more as much again: 5 / (1 / 1 + 1 / 2 + 2 / 4 + 1 / 0.1)
>>> left_of_all_h(runs_h, done_h, newcomer_h=0.1, power=1.0).round(2)
array([0.42, 1.29])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sublet.solve.arrays import Floats

__all__ = ["Survival", "left_of_all_h", "survival"]

IMAGINED = 1.0  # jobs beside those that are known: as much again is left of them
BEYOND = 2.0  # times the longest so far is what those need that outlive it
TRIFLE_H = 1e-3  # what is about to end lasts this long


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
    """(J,): GPU-hours `h` such that `h ** -power` is the mean of that over what may be left. Cost: O(J n)."""
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
    mean_J = (share_JA * np.maximum(left_JA, TRIFLE_H) ** -power).sum(axis=1) / share_JA.sum(axis=1)
    return np.asarray(mean_J ** (-1.0 / power))
