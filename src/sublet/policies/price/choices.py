"""The shapes that jobs may choose, and notes for owners: they run, in time, within budgets, without gambles.

A deadline raises the value of the job's time until it is met. A total budget rules out what it cannot pay to the end,
as long as there are shapes that it can. Where there are none, only the cheapest is left, which takes it furthest. A
market that is sold out now may be back, so it counts: a job with two cents left waits for spot rather than be moved on
demand, where they last a minute.

A request that was refused may be refused again: no node that is there, or on its way, is given up for it. A cloud that
does not tell how many nodes it has is asked by renting one. A job that trains can let others ask: it trains on until
the node is there. It cannot if the node that boots for it would be given back meanwhile, or if there is no money to
hold both. Then it stays with its GPUs; a job that has nothing asks for anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import spot_speed
from sublet.planning.jobs import SETTLED, Jobs
from sublet.planning.menu import Menu
from sublet.planning.options import Options, OptionsTable, options_at, options_of
from sublet.planning.terms import Refusals, Sites, Terms
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.decision import Decision
from sublet.solve.arrays import Bools, Floats, Ints

STEP, STEPS = 4.0, 40  # of the value of a job's time: beyond their product money no longer counts
FINER = 6  # halvings of the last step
NUDGE = 1e-9  # relative: beyond the value of time at which two shapes cost the same
SAFETY = 0.95  # of the time that is left: speeds are estimates, and GPUs come late
TRIFLE_H = 1e-9  # GPU-hours: work that is all but done


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """Jobs that could run, and what they could choose, a row each."""

    jobs: Jobs
    table: OptionsTable


class Late(NamedTuple):
    """A deadline that no shape keeps, and the fastest of them."""

    fastest: Shape
    hours: float
    cost: float  # USD, with its time as USD
    value_of_time: float
    left_h: float

    def __str__(self) -> str:
        usd = self.cost - self.hours * self.value_of_time
        return (
            f"its deadline in {self.left_h:,.2f} h cannot be met: the fastest way, {self.fastest}, takes "
            f"{self.hours:,.2f} h with its start; a deadline {self.hours:,.2f} h from now could be, for about "
            f"USD {usd:,.2f}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Told(Mapping[str, str]):
    """By job; equal to any other mapping of the same words."""

    notes: Mapping[str, str | Late]

    def __getitem__(self, job_id: str) -> str:
        return str(self.notes[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self.notes)

    def __len__(self) -> int:
        return len(self.notes)

    def __repr__(self) -> str:
        return repr(dict(self))


def ask(decision: Decision, jobs: Jobs) -> tuple[Asked | None, Mapping[str, str]]:
    """The jobs of a decision that could run at all, None if none can; and notes for owners, by job."""
    table = all_options(decision, jobs)
    notes = _narrow(decision, table, jobs)
    told = Told({jobs.states[row].job.id: notes[row] for row in sorted(notes)})
    able_J = np.asarray((table.cost_JC < np.inf).any(axis=1))
    if able_J.all():
        return Asked(jobs=jobs, table=table), told
    rows = able_J.nonzero()[0].tolist()
    return (Asked(jobs=jobs.take(rows), table=table.take(rows)) if rows else None), told


def all_options(decision: Decision, jobs: Jobs) -> OptionsTable:
    """All that there is for these, whether they may choose it or not."""
    return options_at(jobs, decision.value_J.copy(), decision.terms.rent_R, boots=decision.value.worth is not None)


def _narrow(decision: Decision, table: OptionsTable, jobs: Jobs) -> dict[int, str | Late]:
    """Rule out what jobs may not choose, and note what their owners should know of the rest, by row."""
    states, terms = jobs.states, decision.terms
    notes = _hurry(decision, table, jobs)
    for row in (table.need_J == np.inf).nonzero()[0].tolist():  # it has no shape at all
        if warning := _describe_endless(states[row].job, terms.sites):
            notes[row] = warning
    for row in jobs.purse_J.nonzero()[0].tolist():
        job, options = states[row].job, table.of(row)
        if job.purse_left_usd is not None and options.any:
            options = within_purse(options, job.purse_left_usd, terms, int(jobs.whole_J[row]))
            table.put(row, options)
            if not np.isfinite(options.cost_C[options.menu.fits(terms.alone_R)]).any():
                notes[row] = f"USD {job.purse_left_usd:.2f} of its own budget pay for nothing that can be had now"
    _within_total(decision, table, jobs)
    if (refusals := terms.refusals) is not None:
        for row, state in enumerate(states):
            if state.shape is not None and jobs.menus[row].shapes:
                own = terms.rows_used(state.shape)
                table.put(row, _without_gambles(table.of(row), state, own, refusals))
    return notes


def _within_total(decision: Decision, table: OptionsTable, jobs: Jobs) -> None:
    """Rule out what costs more than is left of all money, the least for all others taken off. Cost: O(J C)."""
    terms, unspent = decision.terms, decision.terms.snapshot.unspent
    if unspent is None or terms.snapshot.budget.until_s is not None or not decision.rented:
        return
    possible_JC: Bools = table.cost_JC < np.inf
    time_JC = table.value_J[:, None] * np.where(possible_JC, table.hours_JC, 0.0)
    rent_JC = np.where(possible_JC, table.cost_JC - time_JC, np.inf)
    least_J = rent_JC.min(axis=1, initial=np.inf)
    left_J = np.maximum(0.0, unspent.usd - np.maximum(0.0, decision.value.price.least_usd - least_J))
    dear_JC: Bools = possible_JC & (rent_JC > left_J[:, None])
    for row in np.flatnonzero(dear_JC.any(axis=1)).tolist():
        table.put(row, within_purse(table.of(row), float(left_J[row]), terms, int(jobs.whole_J[row])))


def _hurry(decision: Decision, table: OptionsTable, jobs: Jobs) -> dict[int, str | Late]:
    """Hurry jobs that would come too late, if that helps; note where nothing helps. Cost: O(J C) for all these."""
    left_h_J = (jobs.deadline_s_J - decision.terms.now_s) / SECONDS_PER_H
    notes: dict[int, str | Late] = {}
    if not (left_h_J < np.inf).any() or not table.cost_JC.shape[1]:
        return notes
    best_J = table.cost_JC.argmin(axis=1)
    late_J = ~(table.hours_JC[np.arange(len(table)), best_J] <= SAFETY * left_h_J)  # else it is in time anyway
    (late,) = late_J.nonzero()
    if not len(late):
        return notes
    hopeless, others = too_late(table, late, left_h_J[late])
    notes.update(hopeless)
    rented = decision.rented  # else a job in a hurry chooses no other shape than it does anyway: the fastest
    for row in others:
        state, menu = jobs.states[row], table.menus[row]
        if menu.shapes and (rented or not table.last_J[row]):
            options, warning = in_time(_options_by_value(decision, state, menu), table.of(row), float(left_h_J[row]))
            table.put(row, options)
            if warning:
                notes[row] = warning
    return notes


def _options_by_value(decision: Decision, state: JobState, menu: Menu) -> Callable[[float], Options]:
    terms = decision.terms

    def options_at(value_of_time: float) -> Options:
        return options_of(menu, state, terms.now_s, value_of_time, terms.rent_R, boots=decision.value.worth is not None)

    return options_at


def _describe_endless(job: Job, sites: Sites) -> str:
    """The note for the owner of a job that runs nowhere, if that is so because no work would be kept; else ""."""
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


def in_time(options_at: Callable[[float], Options], plain: Options, left_h: float) -> tuple[Options, str]:
    """The options at the least value of time at which the job ends in time; a warning if none will do.

    It is that of `plain`, or more. `options_at` gives the options at a value of time. Cost: O(C^2), or of a job with
    phases ahead those of a dozen or two values.
    """
    if not plain.any or plain.hours_C[plain.best] <= SAFETY * left_h:
        return plain, ""
    return (_by_lines if plain.in_last_phase else _by_trial)(options_at, plain, left_h)


def too_late(table: OptionsTable, late: Ints, left_h: Floats) -> tuple[dict[int, Late], list[int]]:
    """Of these rows, with so many hours left: those that end too late anyway, and those that more money may help.

    As `in_time`, of those with no phase ahead and so for good: how long a shape takes does not depend on what time is
    worth. A job that any shape serves is in neither. Cost: O(C) each.
    """
    cost_LC = table.cost_JC[late]
    hours_LC = np.where(cost_LC < np.inf, table.hours_JC[late], np.inf)
    least_L = hours_LC.min(axis=1)
    last_L = table.last_J[late]
    hopeless_L = last_L & (least_L > left_h) & (least_L < np.inf)
    soon_L1 = np.maximum(SAFETY * left_h, least_L)[:, None]
    served_L = last_L & ((hours_LC <= soon_L1) | (hours_LC == np.inf)).all(axis=1)
    others = late[~(hopeless_L | served_L)].tolist()
    if not hopeless_L.any():
        return {}, others
    cost_LC = np.where(hours_LC == least_L[:, None], cost_LC, np.inf)[hopeless_L]  # of the fastest alone
    rows, at, least, value, left = (
        each.tolist()
        for each in (
            late[hopeless_L],
            cost_LC.argmin(axis=1),
            least_L[hopeless_L],
            table.value_J[late[hopeless_L]],
            left_h[hopeless_L],
        )
    )
    fastest = [table.menus[row].shapes[column] for row, column in zip(rows, at, strict=True)]
    hopeless = dict(zip(rows, map(Late, fastest, least, cost_LC.min(axis=1).tolist(), value, left), strict=True))
    return hopeless, others


def _by_lines(options_at: Callable[[float], Options], plain: Options, left_h: float) -> tuple[Options, str]:
    """Where no phase is ahead the cost of a shape is a straight line over the value of time: see where they cross."""
    runs_C = np.isfinite(plain.cost_C)
    hours_C, cost_C = plain.hours_C[runs_C], plain.cost_C[runs_C]
    least_h = float(hours_C.min())
    if least_h > left_h:
        fastest = int(np.where(runs_C & (plain.hours_C == least_h), plain.cost_C, np.inf).argmin())
        return plain, _describe_late(plain, fastest, left_h)
    soon_C = hours_C <= max(SAFETY * left_h, least_h)  # if need be with nothing to spare
    if soon_C.all():
        return plain, ""
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
    hours, cost = float(options.hours_C[at]), float(options.cost_C[at])
    return str(Late(options.menu.shapes[at], hours, cost, options.value_of_time, left_h))


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
