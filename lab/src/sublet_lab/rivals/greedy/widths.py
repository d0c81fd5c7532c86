"""Greedy steps: all jobs start with the least workers in order of arrival, then the best step of all again and again.

A step goes from one worker count at which the job runs to the next larger one, so holes in a measured table are stepped
over. A job whose next step would not help stays as it is, even if a later one would: that is what makes this greedy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from sublet.domain.plan import JobState, Plan, Pool, Snapshot, arrival
from sublet.domain.shape import packed
from sublet.planning.draft import Draft, next_tick_s
from sublet.planning.widths import Runnable, describe_stranded, jobs_by_pool, runnable, runs_at_all, speed_of_one

Gain = Callable[[JobState, Pool, float, Sequence[Runnable], int], float]
"""(job, pool, work done, its widths, index) -> what the step from that width to the next gains, all of it."""

First = Callable[[JobState, Sequence[Runnable], float], int]
"""(job, its widths, free GPUs) -> the index of the width that it gets first; -1 if none fits."""


def speed_gained(state: JobState, pool: Pool, done: float, widths: Sequence[Runnable], at: int) -> float:
    """How much faster it gets, relative to its speed on one GPU."""
    return (widths[at + 1].rate - widths[at].rate) / speed_of_one(state, pool, done, widths)


def time_saved_s(state: JobState, pool: Pool, done: float, widths: Sequence[Runnable], at: int) -> float:
    """How much sooner it ends; 0 if it ends neither way."""
    job = state.job
    here_s, then_s = (
        job.speed.seconds(pool.gpu, packed(width.gpus, pool.gpus_per_node), done, job.work)
        for width in widths[at : at + 2]
    )
    return here_s - then_s if then_s < here_s else 0.0


def narrowest(_state: JobState, widths: Sequence[Runnable], free: float) -> int:
    """The fewest GPUs on which it runs."""
    return 0 if widths[0].gpus <= free else -1


def what_it_asked_for(state: JobState, widths: Sequence[Runnable], free: float) -> int:
    """The workers that it holds; a newcomer gets its requested number, or the most that is free below that."""
    want = state.job.gpus if state.shape is None else state.shape.gpus
    return max((at for at, width in enumerate(widths) if width.gpus <= min(want, free)), default=-1)


def greedy_plan(snapshot: Snapshot, first: First, gain: Gain, every_s: float, *, held_first: bool = False) -> Plan:
    """Start in order of arrival up to the first that does not fit, then step by step. O(GPUs log jobs).

    With `held_first`, jobs that hold GPUs come before all that wait, in any order of arrival.
    """
    draft, now_s = Draft(snapshot), snapshot.now_s
    if not snapshot.active and not len(snapshot.waiting):
        return draft.plan()
    warnings: dict[str, str] = {}
    active = iter(sorted(snapshot.active.values(), key=lambda state: state.seq))
    for name, group in jobs_by_pool(active, _that_run(draft, warnings), draft.most).items():
        pool = snapshot.pools[name]
        group.sort(key=lambda state: (held_first and state.shape is None, state.seq))
        widths = _widths(group, pool, draft.most[name], now_s, first, gain)
        for gpus, _, state in sorted(zip(widths, range(len(group)), group, strict=True)):
            if gpus:
                draft.give(state, name, gpus)
            else:
                draft.take(state, "more jobs than GPUs, and it came last")
    return draft.plan(ask_again_s=next_tick_s(now_s, every_s), warnings=warnings)


def _that_run(draft: Draft, warnings: dict[str, str]) -> Iterator[JobState]:
    """Waiting jobs in order of arrival, without those that could not run here even alone."""
    snapshot = draft.snapshot
    for state in snapshot.waiting.by(arrival):
        if state.job.min_gpus > max(draft.most.values()):
            continue  # supply fell, or was never enough: it does not keep the others from running
        if any(runs_at_all(state, pool, draft.most[name], state.done) for name, pool in snapshot.pools.items()):
            yield state
        else:
            warnings[state.job.id] = describe_stranded(state, list(snapshot.pools))


def _widths(group: Sequence[JobState], pool: Pool, most: float, now_s: float, first: First, gain: Gain) -> list[int]:
    """GPUs for each job of one pool, which came in this order."""
    given, free = [0] * len(group), most
    steps: list[tuple[float, int, int, float, list[Runnable]]] = []  # (-gain per GPU, job, at, work done, workers)

    def offer_next(number: int, at: int, done: float, widths: list[Runnable]) -> None:
        if at + 1 < len(widths):
            worth = gain(group[number], pool, done, widths, at) / (widths[at + 1].gpus - widths[at].gpus)
            if worth > 0.0:
                heapq.heappush(steps, (-worth, number, at, done, widths))

    for number, state in enumerate(group):
        done = state.done_at(now_s)
        widths = runnable(state, pool, most, done)
        if not widths:
            continue
        at = what_it_asked_for(state, widths, free) if done >= state.job.work else first(state, widths, free)
        if at < 0:
            break
        given[number], free = widths[at].gpus, free - widths[at].gpus
        offer_next(number, at, done, widths)
    while steps:
        _, number, at, done, widths = heapq.heappop(steps)
        more = widths[at + 1].gpus - widths[at].gpus
        if more <= free:  # a step that does not fit ends this job's growth
            given[number], free = widths[at + 1].gpus, free - more
            offer_next(number, at + 1, done, widths)
    return given
