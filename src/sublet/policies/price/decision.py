"""The facts of one decision, read once: the market, the worth of an hour, and the jobs that are asked.

Jobs with a shape are asked if it is time, or if GPUs are short: what one gives up another may use. Then those that
wait, as many as could have one: first with a deadline ahead, where GPUs are paid for; then those that came too long
ago, in order of arrival; then the least work first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from sublet.domain.plan import JobState, arrival
from sublet.planning.jobs import Jobs, read_jobs
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Sites, Terms
from sublet.planning.value_of_time import ValueOfTime
from sublet.solve.arrays import Floats

OVERTAKERS = 64  # of those that wait, how many beyond what fits to look at: bounds the work of one decision
MONEY_ALONE = 1e-9  # a value of time at which only rent counts, USD per hour


class WorkBelief(StrEnum):
    """Knowledge of sizes, where GPUs of a cluster are shared out by the work that jobs have left."""

    DECLARED = "declared"
    LEARNED = "learned"
    PAST = "past"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """All that a plan is made from: functions that weigh shapes are handed this value."""

    terms: Terms
    value: ValueOfTime
    jobs: Jobs | None  # that are asked, a column for each fact; None = no job is
    value_J: Floats  # USD per hour of each of these, its weight included
    review_s: float  # how often jobs that run are asked when nothing is short
    patience_s: float  # jobs that came longer ago than this come first
    knows: WorkBelief  # of the work that jobs have left
    rented: bool  # money is saved by holding less of something
    count: int  # of all jobs, asked or not

    @classmethod
    def read(
        cls,
        terms: Terms,
        values: Callable[[Jobs | None], tuple[ValueOfTime, Floats]],
        *,
        review_s: float,
        patience_s: float = math.inf,
        knows: WorkBelief = WorkBelief.DECLARED,
    ) -> Decision:
        """Read the jobs, and ask once for all what an hour of each is worth.

        Cost: O(J) for those that are asked, and a menu for each state that is new.
        """
        by_time, by_deadline, by_rank = terms.snapshot.waiting.orders(
            arrival, _deadline, _rank(terms.sites) if knows is WorkBelief.DECLARED else arrival
        )
        states = _next_to_ask(terms, by_time, by_deadline, by_rank, patience_s)
        jobs = read_jobs(states, terms.sites, terms.now_s) if states else None
        value, value_J = values(jobs)
        return cls(
            terms=terms,
            value=value,
            jobs=jobs,
            value_J=value_J,
            review_s=review_s,
            patience_s=patience_s,
            knows=knows,
            rented=any(terms.rent_R),
            count=len(terms.snapshot.active) + len(by_time),
        )


@dataclass(frozen=True, slots=True, eq=False)
class LeastWork:
    """Ranks by the GPU-hours that a job still needs at its most efficient, over its weight."""

    sites: Sites

    def __call__(self, state: JobState) -> float:
        """For a job that waits: its work stands still."""
        return menu_of(state.job, self.sites).gpu_hours_left(state.done, state.job.work) / state.job.weight


_least_work = lru_cache(maxsize=64)(LeastWork)  # one for the same sites, so that the order of those that wait is kept


def _deadline(state: JobState) -> float:
    """Ranks by it; those without one come last."""
    return math.inf if state.job.deadline_s is None else state.job.deadline_s


def _next_to_ask(
    terms: Terms,
    by_time: Sequence[JobState],
    by_deadline: Sequence[JobState],
    by_rank: Sequence[JobState],
    patience_s: float,
) -> list[JobState]:
    """The jobs to ask. `by_rank`: by work, or by arrival where sizes are not looked at."""
    snapshot = terms.snapshot
    states = list(snapshot.active.values()) if terms.limited or snapshot.woken else []
    if not by_time:
        return states
    waiting = _in_line(terms, by_time, by_rank, patience_s)
    if snapshot.left is not None:
        waiting = _as_money_lasts(terms, waiting, snapshot.left.usd)
    room = float(terms.alone_R.sum())
    dated = {} if any(terms.rent_R) else {s.job.id: s for s in _as_room_lasts(_dated(terms, by_deadline), room)}
    if dated:
        waiting = (state for state in waiting if state.job.id not in dated)
    return [*states, *dated.values(), *_as_room_lasts(waiting, room)]


def _dated(terms: Terms, by_deadline: Iterable[JobState]) -> Iterator[JobState]:
    """Those that wait for GPUs that are paid for and have a deadline ahead, the earliest first."""
    for state in by_deadline:
        due_s = _deadline(state)
        if due_s == math.inf:
            break
        if due_s > terms.now_s and not _just_stopped(terms, state):
            yield state


def _in_line(
    terms: Terms, by_time: Iterable[JobState], by_rank: Iterable[JobState], patience_s: float
) -> Iterator[JobState]:
    """Those that wait: first jobs that came too long ago, in order of arrival, then the others by rank."""
    due = set()
    for state in by_time:
        if terms.now_s - state.job.submit_s <= patience_s:
            break
        due.add(state.job.id)
        yield state
    for state in by_rank:
        if state.job.id not in due and not _just_stopped(terms, state):
            yield state


def _just_stopped(terms: Terms, state: JobState) -> bool:
    """Whether it gave its GPUs up at this very instant: to start it again at once would go round in circles."""
    return terms.limited and state.generation > 0 and state.held_since_s >= terms.now_s


def _as_money_lasts(terms: Terms, waiting: Iterator[JobState], left_usd: float) -> Iterator[JobState]:
    """As many as the money sees to their end at the least cost, and one more, which can go on with the next."""
    left_usd -= sum(_least_usd(terms, state) for state in terms.snapshot.active.values())
    for state in waiting:
        if left_usd < 0.0:
            break
        left_usd -= _least_usd(terms, state)
        yield state


def _least_usd(terms: Terms, state: JobState) -> float:
    """The cost to the end if nothing but rent counts; infinite if it cannot run."""
    menu = menu_of(state.job, terms.sites)
    cost_C = options_of(menu, state, terms.now_s, MONEY_ALONE, terms.rent_R).cost_C
    return float(cost_C.min(initial=np.inf))


def _as_room_lasts(waiting: Iterator[JobState], room: float) -> Iterator[JobState]:
    overtakers = 0
    for state in waiting:
        if room <= 0:
            overtakers += 1
            if overtakers > OVERTAKERS:
                break
        room -= state.job.min_gpus
        yield state


_last_rank = [_least_work(())]  # from one decision to the next sites are mostly the same object


def _rank(sites: Sites) -> LeastWork:
    if _last_rank[0].sites is not sites:
        _last_rank[0] = _least_work(sites)
    return _last_rank[0]
