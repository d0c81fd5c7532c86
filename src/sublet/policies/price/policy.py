"""The price of time: every job takes the shape in which its time and its rent together cost least.

On many clusters no job wants anything else, and no table of all shapes is made (`settled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from sublet.domain.plan import JobState, Plan, Policy, Snapshot
from sublet.domain.shape import Shape
from sublet.domain.weighed import Weighing
from sublet.planning.draft import plan_of_changes
from sublet.planning.jobs import NOTHING, Jobs
from sublet.planning.options import OptionsTable, WeighedOptions
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import HURRY, TRUSTED_H, values_of_time
from sublet.policies.price.choices import TRIFLE_H, Asked, all_options, ask
from sublet.policies.price.cluster_split import split_cluster
from sublet.policies.price.congestion import WAIT, share_pools
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.policies.price.settled import settled
from sublet.solve.arrays import Floats, Ints

BEYOND_USD = 10_000.0  # per hour: no budget speaks against speed, only limits do
SELDOM = 10  # times as long until jobs without phases are asked again

# J jobs, R rows, C shapes


@dataclass(frozen=True, slots=True)
class Price:
    """Sublet's own: one price of time that meets the budget, one surcharge per pool that is short."""

    review_s: float = 60.0  # how often running jobs are looked at when nothing is short
    patience_s: float = 86_400.0  # when not all can run, jobs that came longer ago than this come first

    trusted_h: float = TRUSTED_H  # a forecast weighs as much as having counted for so long
    hour_usd: float | None = None  # what an hour of a job is worth where no budget says so; None = as on demand
    knows: WorkBelief = WorkBelief.DECLARED  # of the work that jobs have left, on a cluster that is shared out by it

    def decide(self, snapshot: Snapshot) -> Plan:
        """Learn the price of time from what arrives and what is spent; then let each job choose."""
        terms = Terms.from_snapshot(snapshot)
        values = partial(values_of_time, terms, self.trusted_h, self.hour_usd)
        return priced_plan(
            Decision.read(terms, values, review_s=self.review_s, patience_s=self.patience_s, knows=self.knows)
        )


def in_a_hurry(policy: Policy) -> Policy:
    """The same policy where time counts for more than any rent; the others know no value of time to begin with."""
    return replace(policy, hour_usd=HURRY) if isinstance(policy, Price) else policy


class _Part(NamedTuple):
    """Jobs by their rows, in the order in which they are served; a column or WAIT of each; why one of them waits."""

    row_J: Ints
    column_J: Ints
    waits: str


@dataclass(frozen=True, slots=True)
class _Grants:
    """The columns of all jobs, and surcharges."""

    parts: Sequence[_Part]
    surcharge: Mapping[str, float]  # USD per GPU-hour, by row
    scarce_JC: Floats | None = None  # what that comes to for each shape of each job
    scarce_rows: Mapping[int, int] = field(default_factory=dict)  # where in that
    content: bool = False  # all have the fastest that there is, and will as long as nothing happens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The outcome for the jobs that were asked, notes for owners, and the options that were compared."""

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
    terms = decision.terms
    calm = None if decision.rented or len(terms.rows) > 1 else settled(decision, jobs)
    if calm is not None:
        part = _Part(np.arange(len(calm.column_N)), calm.column_N, "")
        weighed = _AllWeighed(states=jobs.states, made=lambda: all_options(decision, jobs), terms=terms)
        grants = _Grants([part], {}, content=len(jobs.states) == decision.count)
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
        found, by_deadline, content = split_cluster(decision, asked)
        waits = "waits: other jobs make better use of the GPUs, or have less work left"
        if by_deadline:
            waits += ", or an earlier deadline"
        parts = [_Part(np.arange(len(asked.jobs.states)), found.column_J, waits)]
        return _Grants(parts, _by_row(terms, found.price_R), content=content)
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
    if not decision.count:
        return None
    if everybody is None:
        phased = any(state.job.speed.ends for state in snapshot.active.values())
    else:
        ends_U = [bool(menu.ends) for menu, _ in everybody.kinds]
        phased = any(ends_U) and bool(np.array(ends_U)[everybody.kind_J[everybody.own_J != NOTHING]].any())
    every_s = decision.review_s if phased else SELDOM * decision.review_s
    return (math.floor(decision.terms.now_s / every_s) + 1) * every_s


def _reason(decision: Decision, asked: Asked, row: int, column: int) -> str:
    """Time and rent of the shape, and the next best one where costs decide; nothing where the job has it already."""
    state, table = asked.jobs.states[row], asked.table
    menu, value = table.menus[row], float(table.value_J[row])
    if menu.shapes[column] == state.shape:
        return ""
    told, hurries = _told(table, row, column), value > BEYOND_USD
    tried_C, doubt_C = table.trials.get(row), menu.doubt_C
    if tried_C is not None and doubt_C is not None and tried_C[column] > 0.0:
        gain = f"{tried_C[column] / value:.2f} h" if hurries else f"USD {tried_C[column]:.2f}"
        return f"tried to learn: {told}, may be off by {100.0 * float(doubt_C[column]):.0f} %. Expected gain: {gain}"
    if math.isinf(state.job.work):
        told += ", for the day ahead (it has no end)"
    if hurries:
        told += ", fastest within the limits"
    elif not decision.rented and table.hours_JC[row, column] > table.hours_JC[row, : len(menu.shapes)].min():
        told += ", best throughput per GPU on GPUs already paid for"
    other_C = table.cost_JC[row].copy()
    least, other_C[column] = other_C[column], np.inf
    other = int(other_C.argmin())
    if decision.rented and least <= other_C[other] < np.inf:
        told += f". Next best: {_told(table, row, other).replace(':', ',', 1)}"
    return told


def _told(table: OptionsTable, row: int, column: int) -> str:
    """A shape with its hours to the end and its rent until then."""
    menu, hours = table.menus[row], float(table.hours_JC[row, column])
    usd = float(table.rent_JC[row, column]) * hours
    if len(menu.rate_EC) > 1:  # later phases may be elsewhere: what is not time is rent
        usd = float(table.cost_JC[row, column]) - float(table.value_J[row]) * hours
    return f"{menu.shapes[column]}: {hours:.2f} h, USD {max(0.0, usd):.2f}"


def _share(decision: Decision, asked: Asked) -> _Grants:
    """All at once, within what can be held: the least work first, but before all the jobs that waited for too long."""
    terms, patience_s = decision.terms, decision.patience_s
    work_J = np.maximum(TRIFLE_H, asked.jobs.gpu_hours_J)
    age_J = terms.now_s - asked.jobs.submit_s_J
    wishes, found = share_pools(
        asked.table,
        work_J,
        np.where(age_J > patience_s, -age_J, work_J),
        asked.jobs.whole_J,
        terms,
        by_owner=decision.value.worth is not None,
    )
    row_J = np.asarray(wishes.row_J, dtype=np.intp)
    unable_J = np.setdiff1d(np.arange(len(asked.jobs.states)), row_J)
    nothing = _Part(unable_J, np.full(len(unable_J), WAIT), "waits: no GPUs that it can run on can be had now")
    some = _Part(row_J, found.column_J, "waits: too few GPUs for all jobs, and it has the most work left")
    surcharge = _by_row(terms, found.surcharge_R)
    if not surcharge:
        return _Grants([nothing, some], surcharge)
    places = {row: at for at, row in enumerate(row_J.tolist())}
    return _Grants([nothing, some], surcharge, wishes.scarce(found.surcharge_R), places)


def _by_row(terms: Terms, usd_R: Floats) -> dict[str, float]:
    return {row.name: float(usd) for row, usd in zip(terms.rows, usd_R, strict=True) if usd > 0}
