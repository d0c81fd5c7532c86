"""From one decision to a plan: the shape of each job now.

On many clusters no job wants anything else, and no table of all shapes is made (`settled`). Most plans for a production
cluster are of this kind: a job has ended, or a narrow one has come, all others train in the fastest shape that there is
for them, and there is room. A job that trains in it would pause to do no more work elsewhere; one with a single shape
takes it. So this is the split that is worth most (`cluster_split`), seen without looking for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sublet.domain.plan import JobState, Plan
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.domain.weighed import Weighing
from sublet.planning.draft import plan_of_changes
from sublet.planning.jobs import NOTHING, Jobs
from sublet.planning.menu import Menu
from sublet.planning.options import OptionsTable, options_at
from sublet.planning.terms import Terms
from sublet.planning.weighing import WeighedOptions
from sublet.policies.price.beliefs import believed_left_h
from sublet.policies.price.choices import TRIFLE_H, Asked, Late, Told, all_options, ask
from sublet.policies.price.cluster_split import Claims, efficient, efficient_shapes, hurries, split, turns
from sublet.policies.price.congestion import WAIT, share_pools
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.solve.arrays import Bools, Floats, Ints

__all__ = ["priced_plan"]

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
SIZED = frozenset({WorkBelief.DECLARED, WorkBelief.LEARNED})  # what is believed is near what is
SELDOM = 10  # times as long until jobs without phases are asked again
UNCLEAR = (NOTHING, False, 1.0, 0.0)

# H in a hurry or not, J jobs, N of them newcomers, R rows, U kinds of jobs: a menu and a phase, C shapes


class _Part(NamedTuple):
    """Jobs by their rows, in the order in which they are served; a column or WAIT of each; why one of them waits."""

    row_J: Ints
    column_J: Ints
    waits: str


@dataclass(frozen=True, slots=True)
class _Grants:
    """The shapes of all, and surcharges."""

    parts: Sequence[_Part]
    surcharge: Mapping[str, float]  # USD per GPU-hour, by row
    scarce_JC: Floats | None = None  # what that comes to for each shape of each job
    scarce_rows: Mapping[int, int] = field(default_factory=dict)  # where in that
    content: bool = False  # all have the fastest that there is, and will as long as nothing happens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The shapes of those that were asked, what their owners should know, and what was compared for them."""

    grants: _Grants = field(default_factory=lambda: _Grants([], {}))
    asked: Asked | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    weighed: Mapping[str, Weighing] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class _AllWeighed(Mapping[str, Weighing]):
    """Those of all jobs that were asked: one is made when it is looked at, for most never are."""

    states: Sequence[JobState]
    made: Callable[[], OptionsTable]  # asked once, when any is looked at
    terms: Terms
    scarce_JC: Floats | None = None  # surcharges, where any pool is short
    scarce_rows: Mapping[int, int] = field(default_factory=dict)  # row of a job -> that of its surcharges

    @cached_property
    def table(self) -> OptionsTable:
        """A row of each state."""
        return self.made()

    def __getitem__(self, job_id: str) -> WeighedOptions:
        terms, row = self.terms, self._row_of[job_id]
        scarce_C = None
        if self.scarce_JC is not None and row in self.scarce_rows:
            count = len(self.table.menus[row].shapes)  # the rest is padding
            scarce_C = self.scarce_JC[self.scarce_rows[row], :count]
        return WeighedOptions(table=self.table, row=row, rent_R=terms.rent_R, most_R=terms.alone_R, scarce_C=scarce_C)

    def __iter__(self) -> Iterator[str]:
        return iter(self._row_of)

    def __len__(self) -> int:
        return len(self.states)

    @cached_property
    def _row_of(self) -> Mapping[str, int]:
        return {state.job.id: row for row, state in enumerate(self.states)}


def priced_plan(decision: Decision) -> Plan:
    """Each job on the shape that costs least at its value of time; jobs that run are asked every `review_s`.

    Where a pool is limited everybody is asked, for what one gives up another may use. Jobs that came more than
    `patience_s` ago come first then, in order of arrival.
    """
    terms, value, jobs = decision.terms, decision.value, decision.jobs
    answer = _Answer() if jobs is None else _answer(decision, jobs)
    everybody = jobs if terms.limited else None  # then all that have a shape are among them
    without_cores = everybody is not None and not everybody.core_J.any()
    return plan_of_changes(
        terms,
        _changes(decision, answer),
        active=() if without_cores else terms.snapshot.active.values(),
        ask_again_s=None if answer.grants.content else _next_review_s(decision, everybody),
        value_of_time_usd_per_h=value.price.usd_per_h if value.worth is None else None,  # else each job has its own
        congestion_usd_per_gpu_h=answer.grants.surcharge,
        warnings=answer.told,
        weighed=answer.weighed,
    )


def _answer(decision: Decision, jobs: Jobs) -> _Answer:
    terms, calm = decision.terms, settled(decision, jobs)
    if calm is not None:
        part = _Part(np.arange(len(calm.column_N)), calm.column_N, "")
        weighed = _AllWeighed(states=jobs.states, made=lambda: all_options(decision, jobs), terms=terms)
        grants = _Grants([part], {}, content=decision.is_everybody(jobs))
        return _Answer(grants=grants, asked=calm.newcomers, told=calm.told, weighed=weighed)
    asked, told = ask(decision, jobs)
    if asked is None:
        return _Answer(told=told)
    grants, table = _grant(decision, asked), asked.table
    weighed = _AllWeighed(
        states=asked.jobs.states,
        made=lambda: table,
        terms=terms,
        scarce_JC=grants.scarce_JC,
        scarce_rows=grants.scarce_rows,
    )
    return _Answer(grants=grants, asked=asked, told=told, weighed=weighed)


def _grant(decision: Decision, asked: Asked) -> _Grants:
    terms, value = decision.terms, decision.value
    priceless = value.worth is None and value.price.priceless  # no money is to be saved by taking longer
    if not terms.limited:
        return _Grants([_Part(np.arange(len(asked.jobs.states)), asked.table.cost_JC.argmin(axis=1), "")], {})
    if not decision.rented or (priceless and len(terms.rows) == 1):
        return _split_cluster(decision, asked)
    return _share(decision, asked)


def _changes(decision: Decision, answer: _Answer) -> list[tuple[JobState, Shape | None, str]]:
    """Of those alone that get another shape than they have; or whose core on demand the draft has to look at."""
    asked, found = answer.asked, list[tuple[JobState, Shape | None, str]]()
    if asked is None:
        return found
    jobs = asked.jobs
    for row_J, column_J, waits in answer.grants.parts:
        new_J = (column_J != jobs.own_J[row_J]) | jobs.core_J[row_J]
        for row, column in zip(row_J[new_J].tolist(), column_J[new_J].tolist(), strict=True):
            state = jobs.states[row]
            if column == WAIT:
                found.append((state, None, waits))
            else:
                found.append((state, asked.table.menus[row].shapes[column], _reason(decision, asked, row, column)))
    return found


def _next_review_s(decision: Decision, everybody: Jobs | None) -> float | None:
    """Jobs with phases may want another shape soon; the others only as the price of time creeps."""
    snapshot = decision.terms.snapshot
    if not snapshot.active and not len(snapshot.waiting):
        return None
    if everybody is None:
        phased = any(state.job.speed.ends for state in snapshot.active.values())
    else:
        ends_U = [bool(menu.ends) for menu, _ in everybody.kinds]
        phased = any(ends_U) and bool(np.array(ends_U)[everybody.kind_J[everybody.own_J != NOTHING]].any())
    every_s = decision.review_s if phased else SELDOM * decision.review_s
    return (math.floor(decision.terms.now_s / every_s) + 1) * every_s


def _reason(decision: Decision, asked: Asked, row: int, column: int) -> str:
    """Time and cost of the shape; nothing where the job has it already."""
    state, table = asked.jobs.states[row], asked.table
    menu = table.menus[row]
    if menu.shapes[column] == state.shape:
        return ""
    hours, value = float(table.hours_JC[row, column]), float(table.value_J[row])
    usd = float(table.rent_JC[row, column]) * hours
    if len(menu.rate_EC) > 1:  # later phases may be elsewhere: what is not time is rent
        usd = float(table.cost_JC[row, column]) - value * hours
    in_a_hurry = value > BEYOND_USD
    best = "the quickest within the limits" if in_a_hurry else "time and rent together are least"
    if not decision.rented and hours > table.hours_JC[row, : len(menu.shapes)].min():
        best = "what it makes good use of, beside others, of GPUs that are paid for"
    if math.isinf(state.job.work):
        best += ", of the day ahead: it has no end"
    takes = f"{hours:.2f} h for about USD {max(0.0, usd):.2f}"
    tried_C, doubt_C = table.trials.get(row), menu.doubt_C
    if tried_C is not None and doubt_C is not None and tried_C[column] > 0.0:
        gain = float(tried_C[column])
        saves = f"a gain worth USD {gain:.2f}" if not in_a_hurry else f"a gain of {gain / value:.2f} h"
        off = f"may be off by {100.0 * float(doubt_C[column]):.0f} %"
        return (
            f"tried to learn: {takes} as believed, which {off}; {saves} is expected, with the way back if it is slower"
        )
    return f"{takes}: {best}"


# ---------------------------------------------------------------------- who gets what of pools that are limited


def _share(decision: Decision, asked: Asked) -> _Grants:
    """All at once, within what can be held: the least work first, but before all the jobs that waited for too long."""
    terms, patience_s = decision.terms, decision.patience_s
    work_J = np.maximum(TRIFLE_H, asked.jobs.gpu_hours_J)
    age_J = terms.now_s - asked.jobs.submit_s_J
    found = share_pools(
        asked.table,
        work_J,
        np.where(age_J > patience_s, -age_J, work_J),
        asked.jobs.whole_J,
        terms,
        by_owner=decision.value.worth is not None,
    )
    row_J = np.asarray(found.wishes.row_J, dtype=np.intp)
    unable_J = np.setdiff1d(np.arange(len(asked.jobs.states)), row_J)
    nothing = _Part(unable_J, np.full(len(unable_J), WAIT), "nothing that it can run on can be had now")
    some = _Part(row_J, found.column_J, "there are not enough GPUs for all, and it has the most work left")
    surcharge = _by_row(terms, found.surcharge_R)
    if not surcharge:
        return _Grants([nothing, some], surcharge)
    places = {row: at for at, row in enumerate(row_J.tolist())}
    return _Grants([nothing, some], surcharge, found.wishes.scarce(found.surcharge_R), places)


def _split_cluster(decision: Decision, asked: Asked) -> _Grants:
    """The same where nothing is saved, or is to be saved, by leaving a GPU idle."""
    terms, efficient_JC = decision.terms, efficient(asked.jobs, decision.value)
    claims = _claims(decision, asked, efficient_JC)
    found = split(claims, terms.alone_R)
    waits = "others make more of the GPUs, or have less left to do"
    if (claims.turn_J < np.inf).any():
        waits += ", or a deadline before it"
    parts = [_Part(np.arange(len(asked.jobs.states)), found.column_J, waits)]
    content = _are_content(decision, asked, efficient_JC, found.column_J)
    return _Grants(parts, _by_row(terms, found.price_R), content=content)


def _are_content(decision: Decision, asked: Asked, efficient_JC: Bools, column_J: Ints) -> bool:
    """Whether all have what is worth most to them at any time to come: the fastest shape, where nothing is in doubt.

    What they have costs no pause, and no other does more work; so their answer stays the same until an
    event brings or takes something.
    """
    jobs, table = asked.jobs, asked.table
    if not decision.is_everybody(jobs) or (column_J == WAIT).any():
        return False
    if not table.last_J.all() or (jobs.purse_J | jobs.core_J).any() or decision.terms.refusals is not None:
        return False
    if table.doubted_J.any():  # a speed that is measured meanwhile is no event
        return False
    most_J = np.where((table.cost_JC < np.inf) & efficient_JC, table.rate_JC, 0.0).max(axis=1)
    return bool((table.rate_JC[np.arange(len(column_J)), column_J] >= most_J).all())


def _by_row(terms: Terms, usd_R: Floats) -> dict[str, float]:
    return {row.name: float(usd) for row, usd in zip(terms.rows, usd_R, strict=True) if usd > 0}


def _claims(decision: Decision, asked: Asked, efficient_JC: Bools) -> Claims:
    jobs, terms, knows = asked.jobs, decision.terms, decision.knows
    age_J = terms.now_s - jobs.submit_s_J
    return Claims(
        table=asked.table,
        left_h_J=believed_left_h(asked, terms.snapshot.ended, knows),
        efficient_JC=efficient_JC,
        sized=knows in SIZED,
        weight_J=jobs.weight_J,
        age_h_J=age_J / SECONDS_PER_H,
        kept_h_J=jobs.kept_s_J / SECONDS_PER_H,
        due_s_J=np.maximum(0.0, age_J - decision.patience_s),
        held_J=np.maximum(jobs.own_J, WAIT),  # also where it is not on the menu
        runs_J=jobs.held_J,
        pinned_J=jobs.pinned_J,
        turn_J=turns(jobs, asked.table, terms.now_s),
    )


# ---------------------------------------------------------------------- nobody wants anything else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Settled:
    """The newcomers, None if there are none, with the only shape of each; and what owners should know."""

    newcomers: Asked | None
    column_N: Ints
    told: Told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fastest:
    """Of each kind the shape that does most work in an hour; of several, the first.

    For those that may have only what is worth its GPUs, and for those in a hurry, which may have all.
    """

    column_HU: Ints  # NOTHING where that is not clear
    alone_HU: Bools  # it has no other
    rate_HU: Floats
    gpus_HU: Floats


def settled(decision: Decision, jobs: Jobs) -> _Settled | None:
    """None where somebody might want something else. Cost: O(J)."""
    terms, value_J = decision.terms, decision.value_J
    if len(terms.rows) != 1 or decision.rented or not terms.limited or terms.refusals is not None:
        return None
    if jobs.purse_J.any() or jobs.core_J.any():
        return None
    fastest, kind_J = _fastest(jobs.kinds), jobs.kind_J
    at_J = (hurries(jobs, decision.value).astype(np.intp), kind_J)
    column_J = fastest.column_HU[at_J]
    stays_J = jobs.held_J == column_J
    comes_J = fastest.alone_HU[at_J] & (jobs.own_J == NOTHING)  # who has another shape may keep that
    sure_J = (stays_J | comes_J) & (column_J != NOTHING)
    if not sure_J.all() or fastest.gpus_HU[at_J].sum() > terms.alone_R[0]:
        return None
    hours_J = jobs.left_J / fastest.rate_HU[at_J]
    newcomers, new_N = None, (~stays_J).nonzero()[0]
    if len(new_N):
        among = jobs.take(new_N.tolist())
        newcomers = Asked(jobs=among, table=options_at(among, value_J[new_N], terms.rent_R))
        hours_J[new_N] = newcomers.table.hours_JC[np.arange(len(new_N)), column_J[new_N]]
    return _Settled(
        newcomers=newcomers, column_N=column_J[new_N], told=_too_late(jobs, hours_J, column_J, value_J, terms.now_s)
    )


def _too_late(jobs: Jobs, hours_J: Floats, column_J: Ints, value_J: Floats, now_s: float) -> Told:
    """Jobs whose deadline the fastest shape does not keep, as `choices.too_late` has it."""
    left_h_J = (jobs.deadline_s_J - now_s) / SECONDS_PER_H
    (late_L,) = (hours_J > left_h_J).nonzero()
    if not len(late_L):
        return Told({})
    rows, columns = late_L.tolist(), column_J[late_L].tolist()
    fastest = [jobs.menus[row].shapes[column] for row, column in zip(rows, columns, strict=True)]
    hours, cost, value, left = (of[late_L].tolist() for of in (hours_J, value_J * hours_J, value_J, left_h_J))
    notes = map(Late, fastest, hours, cost, value, left)
    return Told({jobs.states[row].job.id: note for row, note in zip(rows, notes, strict=True)})


@lru_cache(maxsize=4)  # from one decision to the next they are mostly the same
def _fastest(kinds: tuple[tuple[Menu, int], ...]) -> _Fastest:
    column_HU, alone_HU, rate_HU, gpus_HU = np.array(
        [[_fastest_of(menu, phase, hurried=hurried) for menu, phase in kinds] for hurried in (False, True)]
    ).transpose(2, 0, 1)
    return _Fastest(
        column_HU=column_HU.astype(np.intp), alone_HU=alone_HU.astype(np.bool_), rate_HU=rate_HU, gpus_HU=gpus_HU
    )


@lru_cache(maxsize=4096)
def _fastest_of(menu: Menu, phase: int, *, hurried: bool) -> tuple[int, bool, float, float]:
    """Its column, whether it is the only one, its rate and GPUs; unclear where phases are ahead or speeds in doubt."""
    if phase < len(menu.rate_EC) - 1 or menu.doubt_C is not None or not menu.rate_EC[phase].any():
        return UNCLEAR
    rate_C = menu.rate_EC[phase] if hurried else np.where(efficient_shapes(menu, phase), menu.rate_EC[phase], 0.0)
    column = int(rate_C.argmax())
    return column, np.count_nonzero(rate_C) == 1, float(rate_C[column]), float(menu.gpus_C[column])
