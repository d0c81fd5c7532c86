"""How much work is left of a job that does not say: one rule, for policies that are told no sizes and for live scripts.

Of jobs of its group that are done, it is one of those that did more: so much more than it has done, in the mean, is
expected. One that has done more than all of them is thought to be near its end. While none of them is done, one that
runs on tells that its siblings are long, too; and what all jobs have needed, of any group, is what they have in common.

>>> from sublet.domain.demand import Needed
>>> past = Ended((Needed("m", 8.0, 8.0), Needed("n", 1.0, 2.0)))
>>> [round(left_by_all_h(had_h, past, newcomer_h=0.1), 3) for had_h in (0.0, 4.0, 9.0)]
[2.55, 4.067, 9.1]
>>> had = Had(done=3.0, gpu_h=4.0)
>>> [left_by_group_h(had, works, otherwise_h=1.0, most_had_h=10.0) for works in ((1.0, 5.0, 9.0), (2.0,), ())]
[4.0, 0.75, 16.0]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sublet.domain.demand import Ended
from sublet.domain.plan import JobState
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.learned import Learned

AS_MUCH_AGAIN = 2.0  # jobs that are imagined beside those that are done: each needs as much again as it has had
OUTLIVED = 0.25  # of what it has done is left of a job that has done more than any of its group
UNKNOWN_H = 1.0  # hours of one worker: live, a job of which nothing is known is taken to need so long
_ONE = Learned(guess=1.0)  # assumed of a worker count before measurements; a script that tells nothing has it


class Had(NamedTuple):
    """By a job, so far."""

    done: float = 0.0  # in the unit of its group
    gpu_h: float = 0.0  # that it held, pauses included


def left_by_all_h(had_h: float, ended: Ended, *, newcomer_h: float) -> float:
    """GPU-hours: the mean of what was left, after as much, of all that needed more. Cost: O(log n) for n that are done.

    `newcomer_h` is what one is thought to need of which nothing is known: it stands beside what a job has had.
    """
    longer = len(ended.gpu_hours) - bisect_right(ended.gpu_hours, had_h)
    rest_h = ended.gpu_hours_from(longer) - longer * had_h
    return (AS_MUCH_AGAIN * (had_h + newcomer_h) + rest_h) / (AS_MUCH_AGAIN + longer)


def left_by_group_h(
    had: Had, works: Sequence[float], *, gpu_rate: float = 1.0, otherwise_h: float, most_had_h: float
) -> float:
    """GPU-hours. `works` are those of its group that are done, the least first; `gpu_rate` is work per GPU-hour.

    While there are none: `otherwise_h`, and no less than is left of one that is twice as long as any of them that runs
    has had GPU-hours (`most_had_h`, this one included).
    """
    if not works:
        return max(otherwise_h, 2.0 * most_had_h - had.gpu_h)
    longer = works[bisect_right(works, had.done * (1.0 + 1e-9)) :]
    left = sum(longer) / len(longer) - had.done if longer else OUTLIVED * had.done
    return left / gpu_rate


def gpu_rate_of(workers: int) -> float:
    """The rate of a script that tells nothing, at its smallest: hours of one worker that it does in a GPU-hour."""
    return _ONE.rate("", (workers,), 0.0) / workers


def had_by(state: JobState, now_s: float) -> Had:
    """The work so far of a script that tells nothing: hours of one worker, by the speed that is assumed."""
    stints: Iterable[tuple[float, float, int]] = (*state.stints, (state.held_since_s, now_s, state.gpus))
    done_s = sum(max(0.0, to_s - from_s) * _ONE.rate("", (gpus,), 0.0) for from_s, to_s, gpus in stints)
    return Had(done=done_s / SECONDS_PER_H, gpu_h=max(0.0, state.attained_gpu_s(now_s)) / SECONDS_PER_H)
