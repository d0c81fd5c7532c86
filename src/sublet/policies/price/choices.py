"""Who is asked, and what each may choose from: shapes in which it runs, in time, within its purse, without gambles.

A deadline raises the value of the job's time until it is met. A purse strikes out what it cannot pay to the end, as
long as there are shapes that it can; where there are none, only the cheapest is left, which takes it furthest. A market
that is sold out now may be back, so that it counts: who has two cents left waits for spot rather than be moved on
demand, where they last a minute.

What was refused may be refused again: nothing that is there, or on its way, is given up to ask for it once more. A
cloud that does not tell how many nodes it has is asked by renting one. A job that trains can let others ask: it trains
on until the node is there. It cannot if the node that boots for it would be given back meanwhile, or if there is no
money to hold both. Then it stays with what it has; who has nothing asks for anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Phase
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import spot_speed
from sublet.planning.menu import Menu, menu_of
from sublet.planning.options import SETTLED, Options, OptionsTable, options_of, options_of_all
from sublet.planning.ranking import arrival
from sublet.planning.terms import Refusals, Sites, Terms
from sublet.planning.value_of_time import ValueOfTime
from sublet.policies.price.congestion import WAIT

__all__ = ["TRIFLE_H", "Asked", "Choices", "LeastWork", "in_time", "within_purse"]

STEP, STEPS = 4.0, 40  # of the value of a job's time: beyond their product money no longer counts
FINER = 6  # halvings of the last step
NUDGE = 1e-9  # relative: beyond the value of time at which two shapes cost the same
SAFETY = 0.95  # of the time that is left: speeds are estimates, and GPUs come late
OVERTAKERS = 64  # of those that wait, how many beyond what fits to look at: bounds the work of one decision
TRIFLE_H = 1e-9  # GPU-hours: work that is all but done
MONEY_ALONE = 1e-9  # a value of time at which only rent counts, USD per hour


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Ranks by the GPU-hours that a job still needs at its most efficient, over its weight."""

    sites: Sites

    def __call__(self, state: JobState) -> float:
        """For a job that waits: its work stands still."""
        return menu_of(state.job, self.sites).gpu_hours_left(state.done, state.job.work) / state.job.weight


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A job that could run, and what it could choose."""

    state: JobState
    table: OptionsTable
    row: int
    left_h: float  # GPU-hours that it needs at its most efficient, over its weight
    held: int  # the column of what it runs on; WAIT if that is nothing, or nothing whole

    @property
    def options(self) -> Options:
        """What it could choose."""
        return self.table.of(self.row)


@dataclass(frozen=True, slots=True)
class Choices:
    """Of every job, on the terms of one decision."""

    terms: Terms
    value: ValueOfTime
    sized: bool = True  # who waits is ranked by its work; else by its arrival alone, and sizes are not looked at

    def ask(self, patience_s: float) -> tuple[list[Asked], dict[str, str]]:
        """Who could run at all, and what owners should know, by job.

        Those with a shape, if it is time or GPUs are short; then those that wait, as many as could have one.
        """
        states = list(self._next_to_ask(patience_s))
        if not states:
            return [], {}
        terms = self.terms
        menus = [menu_of(state.job, terms.sites, state.shape) for state in states]
        values = [self.value.of(state, menu) for state, menu in zip(states, menus, strict=True)]
        table = options_of_all(menus, states, terms.now_s, values, terms.rent_R, boots=self._boots)
        warnings = {}
        best_J = table.cost_JC.argmin(axis=1).tolist() if table.cost_JC.shape[1] else [0] * len(states)
        for row, state in enumerate(states):
            if warning := self._narrow(table, row, state, best_J[row]):
                warnings[state.job.id] = warning
        rows = np.flatnonzero(np.isfinite(table.cost_JC).any(axis=1)).tolist()
        table = table.take(rows)
        asked = []
        for at, row in enumerate(rows):
            state, menu = states[row], menus[row]
            left_h = menu.gpu_hours_left(state.done_at(terms.now_s), state.job.work) / state.job.weight
            asked.append(Asked(state, table, at, left_h, _held_column(state, menu)))
        return asked, warnings

    @property
    def _boots(self) -> bool:
        return self.value.worth is not None

    def _narrow(self, table: OptionsTable, row: int, state: JobState, best: int) -> str:
        """Strike out what it may not choose, and tell what its owner should know of the rest."""
        job, menu, terms, warning = state.job, table.menus[row], self.terms, ""
        if not menu.shapes:
            return _describe_endless(job, terms.sites)
        if job.deadline_s is not None:
            left_h = (job.deadline_s - terms.now_s) / SECONDS_PER_H
            if not table.hours_JC[row, best] <= SAFETY * left_h:  # else it is in time anyway
                options, warning = in_time(self._options_at(state, menu), table.of(row), left_h)
                table.put(row, options)
        if job.purse_left_usd is not None and (options := table.of(row)).any:
            options = within_purse(options, job.purse_left_usd, terms, _held_column(state, menu))
            table.put(row, options)
            if not np.isfinite(options.cost_C[menu.fits(terms.alone_R)]).any():
                warning = f"USD {job.purse_left_usd:.2f} of its own budget pay for nothing that can be had now"
        if terms.refusals is not None and state.shape is not None:
            own = terms.rows_used(state.shape)
            table.put(row, _without_gambles(table.of(row), state, own, terms.refusals))
        return warning

    def _options_at(self, state: JobState, menu: Menu) -> Callable[[float], Options]:
        terms = self.terms

        def options_at(value_of_time: float) -> Options:
            return options_of(menu, state, terms.now_s, value_of_time, terms.rent_R, boots=self._boots)

        return options_at

    def _next_to_ask(self, patience_s: float) -> Iterator[JobState]:
        terms, snapshot = self.terms, self.terms.snapshot
        if terms.limited or snapshot.woken:
            yield from snapshot.active.values()
        waiting = self._in_line(patience_s)
        if snapshot.left is not None:
            waiting = self._affordable(waiting, snapshot.left.usd)
        yield from _next_in_line(waiting, float(terms.alone_R.sum()))

    def _in_line(self, patience_s: float) -> Iterator[JobState]:
        """Those that wait: first who came too long ago, in order of arrival, then the least work first."""
        waiting, now_s = self.terms.snapshot.waiting, self.terms.now_s
        due = set()
        for state in waiting.by(arrival) if patience_s < math.inf else ():
            if now_s - state.job.submit_s <= patience_s:
                break
            due.add(state.job.id)
            yield state
        rank = LeastWork(self.terms.sites) if self.sized else arrival
        yield from (state for state in waiting.by(rank) if state.job.id not in due and not self._just_stopped(state))

    def _just_stopped(self, state: JobState) -> bool:
        """Whether it gave its GPUs up at this very instant: to start it again at once would go round in circles."""
        return self.terms.limited and state.generation > 0 and state.held_since_s >= self.terms.now_s

    def _affordable(self, waiting: Iterator[JobState], left_usd: float) -> Iterator[JobState]:
        """As many as the purse sees to their end at the least cost, and one more, which can go on with the next."""
        left_usd -= sum(map(self._least_usd, self.terms.snapshot.active.values()))
        for state in waiting:
            if left_usd < 0.0:
                break
            left_usd -= self._least_usd(state)
            yield state

    def _least_usd(self, state: JobState) -> float:
        """What it costs to the end if nothing but rent counts; infinite if it cannot run."""
        terms, menu = self.terms, menu_of(state.job, self.terms.sites)
        cost_C = options_of(menu, state, terms.now_s, MONEY_ALONE, terms.rent_R).cost_C
        return float(cost_C.min(initial=np.inf))


def _describe_endless(job: Job, sites: Sites) -> str:
    """What to tell the owner of a job that runs nowhere, if that is so because no work would be kept; else nothing."""
    pools = []
    for site in sites:
        least_nodes = math.ceil(job.min_gpus / site.gpus_per_node)
        if (
            job.may_run_in(site.pool)
            and site.steady is None
            and not spot_speed(site.reclaims, job, [least_nodes]).any()
        ):
            pools.append(site.pool)
    if not pools:
        return ""
    why = "without a checkpoint" if math.isinf(job.checkpoint_every_s) else "before any work is saved"
    return (
        f"nodes of {', '.join(pools)} are taken {why}: it is not thought to end there, and has nowhere else; it waits"
    )


def _held_column(state: JobState, menu: Menu) -> int:
    """Where it is; WAIT if it has nothing, or nothing whole."""
    if state.shape is None or state.phase is Phase.BROKEN:
        return WAIT
    here = state.runs_in if state.phase is Phase.RUNNING else None  # not what it was promised and may never get
    return menu.column.get(here or state.shape, WAIT)


def in_time(options_at: Callable[[float], Options], plain: Options, left_h: float) -> tuple[Options, str]:
    """The options at the least value of time at which the job ends in time; a warning if none will do.

    It is that of `plain`, or more. `options_at` gives the options at a value of time. Cost: O(C^2), or of a job with
    phases ahead those of a dozen or two values.
    """
    if not plain.any or plain.hours_C[plain.best] <= SAFETY * left_h:
        return plain, ""
    return (_by_lines if plain.in_last_phase else _by_trial)(options_at, plain, left_h)


def _by_lines(options_at: Callable[[float], Options], plain: Options, left_h: float) -> tuple[Options, str]:
    """Where no phase is ahead the cost of a shape is a straight line over the value of time: see where they cross."""
    runs_C = np.isfinite(plain.cost_C)
    hours_C, cost_C = plain.hours_C[runs_C], plain.cost_C[runs_C]
    least_h = float(hours_C.min())
    if least_h > left_h:
        fastest = int(np.where(runs_C & (plain.hours_C == least_h), plain.cost_C, np.inf).argmin())
        return plain, _describe_late(plain, fastest, left_h)
    soon_C = hours_C <= max(SAFETY * left_h, least_h)  # if need be with nothing to spare
    money_C = cost_C - plain.value_of_time * hours_C
    turn_CC = np.subtract.outer(money_C[soon_C], money_C[~soon_C]) / -np.subtract.outer(
        hours_C[soon_C], hours_C[~soon_C]
    )
    least = float(
        turn_CC.max(axis=1, initial=0.0).min()
    )  # from here on one that is soon enough costs less than all that are not
    return options_at(max(plain.value_of_time, least * (1.0 + NUDGE))), ""


def _by_trial(options_at: Callable[[float], Options], plain: Options, left_h: float) -> tuple[Options, str]:
    value_of_time = plain.value_of_time
    fastest = plain
    for step in range(1, STEPS + 1):
        hurried = options_at(value_of_time * STEP**step)
        if hurried.hours_C[hurried.best] <= SAFETY * left_h:
            low, high = step - 1.0, float(step)
            for _ in range(FINER):
                middle = (low + high) / 2
                tried = options_at(value_of_time * STEP**middle)
                if tried.hours_C[tried.best] <= SAFETY * left_h:
                    hurried, high = tried, middle
                else:
                    low = middle
            return hurried, ""
        if hurried.hours_C[hurried.best] < fastest.hours_C[fastest.best]:
            fastest = hurried
    if fastest.hours_C[fastest.best] <= left_h:
        return fastest, ""  # with nothing to spare
    return plain, _describe_late(fastest, fastest.best, left_h)


def _describe_late(options: Options, at: int, left_h: float) -> str:
    hours = float(options.hours_C[at])
    usd = float(options.cost_C[at]) - hours * options.value_of_time
    return (
        f"its deadline in {left_h:,.2f} h cannot be met: the fastest way, {options.menu.shapes[at]}, takes "
        f"{hours:,.2f} h with its start; a deadline {hours:,.2f} h from now could be, for about USD {usd:,.2f}"
    )


def within_purse(options: Options, left_usd: float, terms: Terms, held: int) -> Options:
    """The options without those that cost more rent than is left; what it runs on (`held`) it may keep. Cost: O(C)."""
    rent_C = options.rent_to_the_end(terms.rent_R)
    hoped_C = np.where(options.menu.fits(np.where(terms.ever_R, np.inf, 0.0)), rent_C, np.inf)
    dear_C = rent_C > max(left_usd, float(hoped_C.min(initial=np.inf)))
    if held != WAIT:
        dear_C[held] = False
    return replace(options, cost_C=np.where(dear_C, np.inf, options.cost_C)) if dear_C.any() else options


def _without_gambles(options: Options, state: JobState, own: Sequence[int], refusals: Refusals) -> Options:
    """The options without those for which a job would have to give up what it has, if there are others. Cost: O(C).

    `own` are the rows that its shape uses.
    """
    if not own:
        return options
    menu = options.menu
    waits = bool(refusals.coming_R[own].any()) and not (state.phase in SETTLED and state.runs_in == state.shape)
    if not waits and not state.gpus:
        return options
    room_R = refusals.free_R if waits else np.maximum(refusals.free_R, refusals.beside_R)
    no_gamble_R = ~refusals.refused_R
    no_gamble_R[own] = True
    gamble_C = ~menu.fits(np.where(no_gamble_R, np.inf, room_R))
    cost_C = np.where(gamble_C, np.inf, options.cost_C)
    return replace(options, cost_C=cost_C) if np.isfinite(cost_C).any() else options


def _next_in_line(waiting: Iterator[JobState], room: float) -> Iterator[JobState]:
    overtakers = 0
    for state in waiting:
        if room <= 0:
            overtakers += 1
            if overtakers > OVERTAKERS:
                break
        room -= state.job.min_gpus
        yield state
