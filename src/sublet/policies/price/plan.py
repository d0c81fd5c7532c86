"""From the price of time to a plan: who gets which shape now."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sublet.domain.plan import JobState, Plan
from sublet.planning.draft import Draft
from sublet.planning.menu import menu_of
from sublet.planning.options import Options
from sublet.planning.ranking import arrival
from sublet.planning.terms import Sites, Terms
from sublet.planning.value_of_time import ValueOfTime
from sublet.planning.weighing import WeighedOptions
from sublet.policies.price.choices import Choices, held_column, rent_to_the_end
from sublet.policies.price.cluster_split import Claim, split
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.exchange import share_pools
from sublet.solve.arrays import Floats

__all__ = ["LeastWork", "WorkBelief", "priced_plan"]

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
OVERTAKERS = 64  # of those that wait, how many beyond what fits to look at: bounds the work of one decision
SELDOM = 10  # times as long until jobs without phases are asked again
NEWCOMER_H = 0.1  # GPU-hours, beside what it has had
TRIFLE_H = 1e-9  # GPU-hours: work that is all but done


class WorkBelief(StrEnum):
    """What is believed of the work that a job has left, where GPUs of a cluster are shared out by it."""

    WORK = "work"  # what it declared
    PROGRESS = "progress"  # only what it has had so far: as much again, by a rule of thumb
    NOTHING = "nothing"  # all jobs alike


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Ranks by the GPU-hours that a job still needs at its most efficient, over its weight."""

    sites: Sites

    def __call__(self, state: JobState) -> float:
        """For a job that waits: its work stands still."""
        return self.after(state, state.done)

    def after(self, state: JobState, done: float) -> float:
        """For a job that has come as far as `done`."""
        return menu_of(state.job, self.sites).gpu_hours_left(done, state.job.work) / state.job.weight


def priced_plan(
    terms: Terms,
    value: ValueOfTime,
    *,
    review_s: float,
    patience_s: float = math.inf,
    knows: WorkBelief = WorkBelief.WORK,
) -> Plan:
    """Each job on the shape that costs least at this value of time; jobs that run are asked every `review_s`.

    Where a pool is limited everybody is asked, for what one gives up another may use. Jobs that came more than
    `patience_s` ago come first then, in order of arrival.
    """
    return _Pricing(terms, value, review_s, patience_s, knows).plan()


class _Pricing:
    """One decision in the making."""

    def __init__(self, terms: Terms, value: ValueOfTime, review_s: float, patience_s: float, knows: WorkBelief) -> None:
        self.terms, self.value, self.review_s, self.patience_s, self.knows = terms, value, review_s, patience_s, knows
        self.snapshot, self.now_s, self.limited = terms.snapshot, terms.now_s, terms.limited
        self.draft = Draft(self.snapshot, terms.most)
        self.choices = Choices(terms, value)
        self.rank = LeastWork(terms.sites)
        self.warnings: dict[str, str] = {}
        self.surcharge: dict[str, float] = {}
        self.scarce: dict[str, Floats] = {}  # what that comes to for each shape of a job

    def plan(self) -> Plan:
        asked = self._ask()
        if asked and self.limited:
            if not any(self.terms.rent_P) or (self.value.priceless and len(self.terms.sites) == 1):
                self._split(asked)
            else:
                self._share(asked)
        else:
            for state, options in asked:
                self._give(state, options, options.best)
        return self.draft.plan(
            ask_again_s=self._next_review_s(),
            value_of_time_usd_per_h=self.value.common_usd_per_h,
            congestion_usd_per_gpu_h=self.surcharge,
            warnings=self.warnings,
            weighed={state.job.id: self._weigh(state, options) for state, options in asked},
        )

    def _ask(self) -> list[tuple[JobState, Options]]:
        """Who could run at all, with its options."""
        asked = []
        for state in self._next_to_ask():
            options, warning = self.choices.of(state)
            if warning:
                self.warnings[state.job.id] = warning
            if options.any:
                asked.append((state, options))
        return asked

    def _weigh(self, state: JobState, options: Options) -> WeighedOptions:
        return WeighedOptions(
            options=options,
            rent_P=self.terms.rent_P,
            sharers_P=self.terms.sharers_P,
            most_P=self.terms.alone_P,
            scarce_C=self.scarce.get(state.job.id),
        )

    def _next_review_s(self) -> float | None:
        """Jobs with phases may want another shape soon; the others only as the price of time creeps."""
        if not self.snapshot.active and not len(self.snapshot.waiting):
            return None
        phased = any(state.job.speed.ends for state in self.snapshot.active.values())
        every_s = self.review_s if phased else SELDOM * self.review_s
        return (math.floor(self.now_s / every_s) + 1) * every_s

    # ------------------------------------------------------------------ who is asked

    def _next_to_ask(self) -> Iterator[JobState]:
        """Those with a shape, if it is time or GPUs are short; then those that wait, as many as could have one."""
        if self.limited or self.snapshot.woken:
            yield from self.snapshot.active.values()
        snapshot = self.snapshot
        waiting = self._in_line()
        if snapshot.left is not None:
            waiting = self._affordable(waiting, snapshot.left.usd)
        yield from _next_in_line(waiting, float(self.terms.alone_P.sum()))

    def _in_line(self) -> Iterator[JobState]:
        """Those that wait: first who came too long ago, in order of arrival, then the least work first."""
        waiting = self.snapshot.waiting
        due = set()
        for state in waiting.by(arrival) if self.patience_s < math.inf else ():
            if self.now_s - state.job.submit_s <= self.patience_s:
                break
            due.add(state.job.id)
            yield state
        yield from (
            state for state in waiting.by(self.rank) if state.job.id not in due and not self._just_stopped(state)
        )

    def _just_stopped(self, state: JobState) -> bool:
        """Whether it gave its GPUs up at this very instant: to start it again at once would go round in circles."""
        return self.limited and state.generation > 0 and state.held_since_s >= self.now_s

    def _affordable(self, waiting: Iterator[JobState], left_usd: float) -> Iterator[JobState]:
        """As many as the purse sees to their end at the least cost, and one more, which can go on with the next."""
        left_usd -= sum(map(self.choices.least_usd, self.snapshot.active.values()))
        for state in waiting:
            if left_usd < 0.0:
                break
            left_usd -= self.choices.least_usd(state)
            yield state

    # ------------------------------------------------------------------ who gets what

    def _share(self, asked: list[tuple[JobState, Options]]) -> None:
        """Everybody at once, within what can be held."""
        work_J = np.array([max(TRIFLE_H, self.rank.after(state, state.done_at(self.now_s))) for state, _ in asked])
        found = share_pools(
            [options for _, options in asked],
            work_J,
            self._ranks(asked, work_J),
            np.array([held_column(state, options) for state, options in asked]),
            self.terms,
            by_owner=self.value.worth is not None,
        )
        rows = found.wishes.row_J.tolist()
        able = set(rows)
        for at, (state, _) in enumerate(asked):
            if at not in able:
                self.draft.take(state, "nothing that it can run on can be had now")
        self._note_surcharge(found.surcharge_P)
        for row, (at, column) in enumerate(zip(rows, found.column_J.tolist(), strict=True)):
            state, options = asked[at]
            if column == WAIT:
                self.draft.take(state, "there are not enough GPUs for all, and it has the most work left")
            else:
                self._give(state, options, column)
            if self.surcharge:
                self.scarce[state.job.id] = found.scarce(row)[: len(options.cost_C)]

    def _note_surcharge(self, usd_P: Floats) -> None:
        self.surcharge = {s.pool: float(usd) for s, usd in zip(self.terms.sites, usd_P, strict=True) if usd > 0}

    def _split(self, asked: list[tuple[JobState, Options]]) -> None:
        """The same where nothing is saved, or is to be saved, by leaving a GPU idle."""
        claims = [self._claim(state, options) for state, options in asked]
        found = split(claims, self.terms.alone_P)
        for (state, options), column in zip(asked, found.column_J.tolist(), strict=True):
            if column == WAIT:
                self.draft.take(state, "others make more of the GPUs, or have less left to do")
            else:
                self._give(state, options, column)
        self._note_surcharge(found.price_P)

    def _claim(self, state: JobState, options: Options) -> Claim:
        done = state.done_at(self.now_s)
        held = WAIT if state.shape is None else options.menu.column.get(state.shape, WAIT)
        return Claim(
            options=options,
            done=done,
            work=state.job.work,
            left_h=max(TRIFLE_H, self._left_h(state, done)),
            sure=self.knows is WorkBelief.WORK,
            due_s=max(0.0, self.now_s - state.job.submit_s - self.patience_s),
            held=held,
            pinned=state.shape is not None and (state.held_since_s >= self.now_s or state.as_of_s > self.now_s),
        )

    def _left_h(self, state: JobState, done: float) -> float:
        """GPU-hours that a job still needs, over its weight: as declared, or else as much again as it has had."""
        if self.knows is WorkBelief.WORK:
            return self.rank.after(state, done)
        if self.knows is WorkBelief.PROGRESS:
            return (state.attained_gpu_s(self.now_s) / 3600 + NEWCOMER_H) / state.job.weight
        return 1.0 / state.job.weight

    def _ranks(self, asked: list[tuple[JobState, Options]], work_J: Floats) -> Floats:
        """Who comes first when not all can run: the least work; but before all, those that have waited for too long."""
        age_J = self.now_s - np.array([state.job.submit_s for state, _ in asked])
        return np.where(age_J > self.patience_s, -age_J, work_J)

    def _give(self, state: JobState, options: Options, column: int) -> None:
        shape = options.menu.shapes[column]
        if shape == state.shape:
            return
        hours = float(options.hours_C[column])
        money = float(rent_to_the_end(options, self.terms)[column])
        usd_per_h = options.value_of_time
        best = "the quickest within the limits" if usd_per_h > BEYOND_USD else "time and rent together are least"
        self.draft.give(state, shape.pool, shape.gpus, f"{hours:.2f} h for about USD {max(0.0, money):.2f}: {best}")


def _next_in_line(waiting: Iterator[JobState], room: float) -> Iterator[JobState]:
    overtakers = 0
    for state in waiting:
        if room <= 0:
            overtakers += 1
            if overtakers > OVERTAKERS:
                break
        room -= state.job.min_gpus
        yield state
