"""The cost of finishing one job from where it is: time at the value of time, and rent, for every shape it could take.

    cost(c) = (v + rent of c) x (pause to get to c + rest of this phase on c)  +  the best that can follow from c

A job pays no pause to stay on its shape, so another shape is cheapest only if it gains more than a restart costs. Where
speeds are believed and not known, it must also gain more than the error of the belief. Or the knowledge must be worth
the way: a job that goes to a shape learns how fast it is, and may return. So it pays the believed cost, less what
returning saves where the belief is wrong:

    cost of trying c = E[X]  -  (part of the work after the trial) x E[(X - back)+]
    X    = cost on c to the end, getting there included: normal, with the error of the speed that a trial takes away
    back = least cost that is known  +  the way there and back  +  what keeps it on c: speeds may still be wrong by that

A shape is tried if that is less than all that is known, staying included. No second shape is tried before the speed on
the first is known, and a trial makes its speed known: so there are at most as many trials as shapes. A trial costs at
most `back` less the least that is known, and the time until it is known. Near its end a job gains nothing that pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np

from sublet.domain.job import Change, Job
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.domain.weighed import Weighed
from sublet.perf.learned import MEASURED_DOUBT
from sublet.planning.jobs import NOTHING, Jobs, jobs_with_menus
from sublet.planning.menu import Menu
from sublet.planning.terms import Rents
from sublet.solve.arrays import Bools, Floats, Ints

PLAIN = 4  # facts of a shape whatever its rows
PERFECT = 0.999  # of the speed of as many single GPUs

# J jobs, U kinds of these, C shapes (padded: rate 0, infinite cost), F facts of a shape, G of a kind, K rows that a
# shape uses, R rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """The shapes that a job could take now; infinite where it cannot run."""

    menu: Menu
    value_of_time: float  # USD per hour of this job
    cost_C: Floats  # USD to the end, with its time as USD
    now_C: Floats  # hours until the end of this phase
    hours_C: Floats  # hours to the end
    in_last_phase: bool  # no other phase follows, so that hours do not depend on what time is worth
    gain_C: Floats | None = None  # USD that a shape is expected to save because it is tried; None = nothing is tried

    @property
    def best(self) -> int:
        """The column that costs least."""
        return int(self.cost_C.argmin())

    @property
    def any(self) -> bool:
        """Whether it can run at all."""
        return bool(np.isfinite(self.cost_C).any())

    def rent_to_the_end(self, rent_R: Rents) -> Floats:
        """USD; infinite where it cannot run."""
        if len(self.menu.rate_EC) == 1:
            rent_C: Floats = self.menu.pay(0.0, rent_R) * self.hours_C
        else:  # later phases may be elsewhere
            rent_C = self.cost_C - self.value_of_time * self.hours_C
        return np.where(np.isfinite(self.cost_C), rent_C, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionsTable:
    """The options of many jobs side by side, a row each. Rows may be overwritten until the table is read."""

    menus: Sequence[Menu]
    value_J: Floats  # USD per hour
    left_J: Floats  # work until the end of this phase
    gpu_rate_J: Floats  # work per GPU-hour where that is most, in this phase
    last_J: Bools  # no other phase follows
    need_J: Floats  # GPUs, of the least shape on the menu
    perfect_J: Bools  # in this phase all shapes are as fast as so many single GPUs
    doubted_J: Bools  # its speeds are believed, not known
    rate_JC: Floats  # work per hour
    gpus_JC: Floats
    rent_JC: Floats  # USD per hour of whole nodes
    row_KJC: Ints  # where they are; the first tells pools apart
    gpus_KJC: Floats  # and how many there
    cost_JC: Floats
    now_JC: Floats
    hours_JC: Floats
    trials: dict[int, Floats] = field(default_factory=dict)  # row -> what trying each shape saves, where one is tried

    def __len__(self) -> int:
        return len(self.menus)

    def of(self, row: int) -> Options:
        """Those of one job."""
        menu = self.menus[row]
        count = len(menu.shapes)
        return Options(
            menu=menu,
            value_of_time=float(self.value_J[row]),
            cost_C=self.cost_JC[row, :count],
            now_C=self.now_JC[row, :count],
            hours_C=self.hours_JC[row, :count],
            in_last_phase=bool(self.last_J[row]),
            gain_C=self.trials.get(row),
        )

    def put(self, row: int, options: Options) -> None:
        """Others for one job."""
        count = len(self.menus[row].shapes)
        self.value_J[row] = options.value_of_time
        self.cost_JC[row, :count] = options.cost_C
        self.now_JC[row, :count] = options.now_C
        self.hours_JC[row, :count] = options.hours_C
        self.trials.pop(row, None)
        if options.gain_C is not None:
            self.trials[row] = options.gain_C

    def take(self, rows: Sequence[int]) -> OptionsTable:
        """Of these jobs alone."""
        if len(rows) == len(self):
            return self
        at = np.array(rows, dtype=np.intp)
        facts: dict[str, Any] = {
            "menus": [self.menus[row] for row in rows],
            "row_KJC": self.row_KJC[:, at],
            "gpus_KJC": self.gpus_KJC[:, at],
            "trials": {now: self.trials[row] for now, row in enumerate(rows) if row in self.trials},
        }
        facts |= {each.name: getattr(self, each.name)[at] for each in fields(self) if each.name not in facts}
        return OptionsTable(**facts)


def options_of(
    menu: Menu,
    state: JobState,
    now_s: float,
    value_of_time: float,
    rent_R: Rents,
    *,
    boots: bool = False,
) -> Options:
    """Of one job as it stands now. `value_of_time` is that of this job: its weight is in it."""
    return options_of_all([menu], [state], now_s, [value_of_time], rent_R, boots=boots).of(0)


def options_of_all(
    menus: Sequence[Menu],
    states: Sequence[JobState],
    now_s: float,
    value_J: Sequence[float],
    rent_R: Rents,
    *,
    boots: bool = False,
) -> OptionsTable:
    """Of jobs with these menus; see `options_at`."""
    return options_at(jobs_with_menus(states, menus, now_s), np.array(value_J, dtype=np.float64), rent_R, boots=boots)


def options_at(jobs: Jobs, value_J: Floats, rent_R: Rents, *, boots: bool = False) -> OptionsTable:
    """Of jobs as they stand now. Cost: O(J C), and `_after` for those with phases ahead.

    With `boots`, to go to another pool costs the rent of a node there while it boots, too. Precondition: any job.
    """
    menus, states, left_J = jobs.menus, jobs.states, jobs.left_J
    kinds, kind_J = _stacked(jobs.kinds), jobs.kind_J
    gpu_rate_J, last_J, need_J, perfect_J, doubted_J = kinds.own_GU[:, kind_J]
    rate_JC, gpus_KJC, row_KJC = kinds.rate_UC[kind_J], kinds.gpus_KUC[:, kind_J], kinds.row_KUC[:, kind_J]
    waits_J, held_J = jobs.waits_J, jobs.held_J
    pay_JC, rent_JC = value_J[:, None], np.zeros(rate_JC.shape)  # nothing is rented: one for all shapes
    if any(rent_R):
        rent_JC = (np.asarray(rent_R)[row_KJC] * kinds.whole_KUC[:, kind_J]).sum(axis=0)
        pay_JC = pay_JC + rent_JC
    pause_JC = kinds.pause_WUC[waits_J.astype(np.intp), kind_J]
    for row in (jobs.pauses_J & ~waits_J).nonzero()[0].tolist():
        pause_JC[row, : len(menus[row].shapes)] = _pauses(menus[row], states[row].job, states[row].runs_in)
    (on_J,) = (held_J != NOTHING).nonzero()
    pause_JC[on_J, held_J[on_J]] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):  # no work left, and no speed: it cannot run there
        now_JC = pause_JC + left_J[:, None] / rate_JC
        now_JC[np.isnan(now_JC)] = np.inf
        hours_JC, cost_JC = now_JC.copy(), pay_JC * now_JC
    table = OptionsTable(
        menus=menus,
        value_J=value_J,
        left_J=left_J,
        gpu_rate_J=gpu_rate_J,
        last_J=last_J != 0.0,
        need_J=need_J,
        perfect_J=perfect_J != 0.0,
        doubted_J=doubted_J != 0.0,
        rate_JC=rate_JC,
        gpus_JC=gpus_KJC[0] if len(gpus_KJC) == 1 else kinds.gpus_UC[kind_J],
        rent_JC=rent_JC,
        row_KJC=row_KJC,
        gpus_KJC=gpus_KJC,
        cost_JC=cost_JC,
        now_JC=now_JC,
        hours_JC=hours_JC,
    )
    if boots:
        _add_boots(table, on_J, held_J[on_J], pause_JC, pay_JC, kinds.boot_UC[kind_J])
    doubted, way_UC = on_J[jobs.doubted_J[on_J]].tolist(), cost_JC[:0]
    if doubted:
        with np.errstate(divide="ignore", invalid="ignore"):
            way_UC = cost_JC[doubted] - pay_JC[doubted] * left_J[doubted, None] / rate_JC[doubted]
    for row in (~table.last_J).nonzero()[0].tolist():
        menu, phase = jobs.kinds[jobs.kind_J[row]]
        if menu.shapes:
            value = float(f"{value_J[row]:.3g}")  # near enough, and seldom new
            after = _after(menu, menu.goal(float(jobs.done_J[row]), states[row].job.work), value, rent_R)
            cost_JC[row, : len(menu.shapes)] += after.cost_EC[phase + 1]
            hours_JC[row, : len(menu.shapes)] += after.hours_EC[phase + 1]
    for row, way_C in zip(doubted, way_UC, strict=True):
        _add_doubt(table, row, int(held_J[row]), way_C, may_try=states[row].job.purse_left_usd is None)
    return table


@lru_cache(maxsize=4096)
def _pauses(menu: Menu, job: Job, runs_in: Shape | None) -> Floats:
    """Hours without training from what it runs in to each shape, of a job that tells them by their kind."""
    return np.array([job.pause_s(Change(was=runs_in, now=shape)) for shape in menu.shapes]) / SECONDS_PER_H


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kinds:
    """Facts of the shapes of each kind, and of the kind itself."""

    rate_UC: Floats
    gpus_UC: Floats
    pause_WUC: Floats  # hours: to restart, or for those that wait the first start
    boot_UC: Floats
    gpus_KUC: Floats
    whole_KUC: Floats
    row_KUC: Ints
    own_GU: Floats


@lru_cache(maxsize=4)  # from one decision to the next they are mostly the same
def _stacked(kinds: tuple[tuple[Menu, int], ...]) -> _Kinds:
    """Side by side, each once."""
    first, most = kinds[0][0], max(len(menu.shapes) for menu, _ in kinds)
    rate_UC, facts_FUC = np.zeros((len(kinds), most)), np.zeros((len(first.facts_FC), len(kinds), most))
    row_KUC = np.zeros((len(first.row_KC), len(kinds), most), dtype=np.intp)
    for at, (menu, phase) in enumerate(kinds):
        count = len(menu.shapes)
        rate_UC[at, :count] = menu.rate_EC[phase]
        facts_FUC[:, at, :count] = menu.facts_FC
        row_KUC[:, at, :count] = menu.row_KC
    gpus_UC, gpu_rate_U = facts_FUC[0], np.array([menu.gpu_rate_E[phase] for menu, phase in kinds])
    last_U = [phase == len(menu.rate_EC) - 1 for menu, phase in kinds]
    need_U = np.where(gpus_UC > 0, gpus_UC, np.inf).min(axis=1, initial=np.inf)
    with np.errstate(invalid="ignore"):
        perfect_U = (rate_UC / gpu_rate_U[:, None] >= PERFECT * gpus_UC).all(axis=1)
    doubted_U = [menu.doubt_C is not None for menu, _ in kinds]
    gpus_KUC, whole_KUC = facts_FUC[PLAIN:].reshape(2, len(row_KUC), *rate_UC.shape)
    return _Kinds(
        rate_UC=rate_UC,
        gpus_UC=gpus_UC,
        pause_WUC=facts_FUC[2:0:-1],
        boot_UC=facts_FUC[3],
        gpus_KUC=gpus_KUC,
        whole_KUC=whole_KUC,
        row_KUC=row_KUC,
        own_GU=np.array([gpu_rate_U, last_U, need_U, perfect_U, doubted_U]),
    )


def _add_boots(table: OptionsTable, rows: Ints, held: Ints, pause_JC: Floats, pay_JC: Floats, boot_JC: Floats) -> None:
    """A job that trains goes on where it is until a node of another pool has booted, and pays for both meanwhile."""
    if not table.row_KJC.any():
        return  # there is but one row
    runs = table.rate_JC[rows, held] > 0
    rows, held = rows[runs], held[runs]
    if not len(rows):
        return
    each = np.arange(len(rows))
    rate_JC, pay_JC = table.rate_JC[rows], np.broadcast_to(pay_JC, table.rate_JC.shape)[rows]
    row_KJC, used_KJC = table.row_KJC[:, rows], table.gpus_KJC[:, rows] > 0
    own_rate_J1, own_pay_J1 = rate_JC[each, held][:, None], pay_JC[each, held][:, None]
    left_J1 = table.left_J[rows, None]
    own_KJ1 = np.where(used_KJC[:, each, held], row_KJC[:, each, held], NOTHING)[:, :, None]
    new_KJC = used_KJC & (row_KJC[:, None] != own_KJ1[None]).all(axis=1)  # nothing of that row is held
    away_JC = np.where(new_KJC.any(axis=0), boot_JC[rows], 0.0)
    meanwhile_JC = np.minimum(away_JC, left_J1 / own_rate_J1)
    with np.errstate(divide="ignore", invalid="ignore"):
        then_JC = pause_JC[rows] + (left_J1 - own_rate_J1 * meanwhile_JC) / rate_JC
        then_JC[np.isnan(then_JC)] = np.inf
        value_J1 = table.value_J[rows, None]
        table.now_JC[rows] = table.hours_JC[rows] = meanwhile_JC + then_JC
        table.cost_JC[rows] = (own_pay_J1 + pay_JC - value_J1) * meanwhile_JC + pay_JC * then_JC


def _add_doubt(table: OptionsTable, row: int, held: int, way_C: Floats, *, may_try: bool) -> None:
    """Count the error of believed speeds against leaving, and the cost of a trial where one is worth it."""
    menu = table.menus[row]
    count, doubt_C = len(menu.shapes), menu.doubt_C
    if doubt_C is None:
        return
    cost_C, tried_C = table.cost_JC[row, :count], None
    if may_try:
        tried_C = trial_costs(cost_C, way_C[:count], table.hours_JC[row, :count], doubt_C, menu.belief_C, held)
    cost_C += _doubt(doubt_C, menu.belief_C, cost_C, held)
    if tried_C is not None:
        gain_C = np.where(tried_C < cost_C, cost_C[held] - tried_C, 0.0)
        cost_C[:] = np.minimum(cost_C, tried_C)
        table.trials[row] = gain_C


def _doubt(doubt_C: Floats, belief_C: Ints, cost_C: Floats, held: int) -> Floats:
    """The standard error of what each shape costs more or less than the one that is held, as the speeds are believed.

    If two shapes share a speed, an error is in both: it scales what lies between them. By what one of them is known
    less, being at another batch, it may be off by itself. Otherwise errors are their own.
    """
    error_C = doubt_C * cost_C
    with np.errstate(invalid="ignore"):
        less_C = np.sqrt(np.abs(doubt_C**2 - doubt_C[held] ** 2)) * np.where(
            doubt_C > doubt_C[held], cost_C, cost_C[held]
        )
        shared_C = np.hypot(doubt_C * np.abs(cost_C - cost_C[held]), less_C)
    found_C = np.where(belief_C == belief_C[held], shared_C, np.hypot(error_C, error_C[held]))
    found_C[held] = 0.0
    return np.where(np.isfinite(cost_C), found_C, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _After:
    """From the beginning of each phase to the end of the job, by the shape held then."""

    cost_EC: Floats
    hours_EC: Floats


@lru_cache(maxsize=512)
def _after(menu: Menu, work: float, value_of_time: float, rent_R: Rents) -> _After:
    """The least cost, and the time it takes. Cost: O(E C), with a loop over phases."""
    phase_EC = menu.hours(work)
    pay_C = menu.pay(value_of_time, rent_R)
    cost_EC, hours_EC = np.zeros((len(phase_EC) + 1, len(pay_C))), np.zeros((len(phase_EC) + 1, len(pay_C)))
    for phase in range(len(phase_EC) - 1, 0, -1):
        stay_C = pay_C * phase_EC[phase] + cost_EC[phase + 1]
        move_C = stay_C + pay_C * menu.restart_C
        best = int(move_C.argmin())
        moves_C = move_C[best] < stay_C
        then_C = phase_EC[phase] + hours_EC[phase + 1]
        cost_EC[phase] = np.where(moves_C, move_C[best], stay_C)
        hours_EC[phase] = np.where(moves_C, then_C[best] + menu.restart_C[best], then_C)
    return _After(cost_EC=cost_EC, hours_EC=hours_EC)


# ---------------------------------------------------------------------- what is worth a try


LEARNS_H = 1.0 / 60.0  # until a speed is known: reports come once a second, and the first of a width do not count

# C shapes


def trial_costs(
    cost_C: Floats, way_C: Floats, hours_C: Floats, doubt_C: Floats, belief_C: Ints, held: int
) -> Floats | None:
    """The cost of trying each shape that is worth it; infinite for the others. None if there is none.

    `cost_C` is to the end as speeds are believed, and `way_C` the part of it for getting there. `held` is known by now.
    """
    known = float(doubt_C[held])
    if known > MEASURED_DOUBT or not math.isfinite(cost_C[held]):  # it is on trial itself
        return None
    open_C = (doubt_C > known) & np.isfinite(cost_C)
    if not open_C.any():
        return None
    least = float(cost_C[doubt_C <= known].min())
    cost, way = cost_C[open_C], way_C[open_C]
    error = np.sqrt(doubt_C[open_C] ** 2 - known**2) * cost
    same = belief_C[open_C] == belief_C[held]  # as many GPUs of the same kind, at another batch: errors are in both
    back = least + 2.0 * way + known * np.where(same, np.abs(cost - least), np.hypot(least, cost))
    after = np.maximum(0.0, 1.0 - LEARNS_H / np.maximum(hours_C[open_C], LEARNS_H))
    found_C = np.full(len(cost_C), np.inf)
    found_C[open_C] = cost - after * _excess(cost - back, error)
    return np.where(found_C < least, found_C, np.inf) if (found_C < least).any() else None


def _excess(mean: Floats, error: Floats) -> Floats:
    """E[Y+] of a normal Y."""
    z = mean / error
    above = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in z.tolist()])
    return np.asarray(mean * above + error * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))


# ---------------------------------------------------------------------- options as rows for people


BEYOND = 10_000.0  # times the dearest rent: an hour is worth as good as infinitely much, and no dollars say how much


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeighedOptions:
    """Keeps arrays that there are anyhow; rows are made when they are asked for."""

    table: OptionsTable
    row: int
    rent_R: Rents
    most_R: Floats  # GPUs that could be held of each row
    scarce_C: Floats | None = None  # USD: the surcharge of pools that are short

    @property
    def options(self) -> Options:
        """Of the job."""
        return self.table.of(self.row)

    @property
    def hour_usd(self) -> float | None:
        """The worth of an hour of this job; None if more than any rent, or if nothing costs any."""
        pay_C = self._pay()
        finite_C = pay_C[np.isfinite(self.options.cost_C)]
        dearest = float(finite_C.max(initial=0.0))
        return self.options.value_of_time if self.options.value_of_time <= BEYOND * dearest else None

    def rows(self) -> Sequence[Weighed]:
        """Those in which it can run, the least first."""
        options = self.options
        pay_C = self._pay()
        menu, hours_C = options.menu, options.hours_C
        time_C = hours_C * options.value_of_time
        rent_C = pay_C * hours_C if len(menu.rate_EC) == 1 else options.cost_C - time_C  # later phases may be elsewhere
        scarce_C = np.zeros(len(hours_C)) if self.scarce_C is None else self.scarce_C
        usd_C, had_C = options.cost_C + scarce_C, menu.fits(self.most_R)
        order = [at for at in np.argsort(usd_C, kind="stable").tolist() if np.isfinite(usd_C[at])]
        return [
            Weighed(
                shape=menu.shapes[at],
                hours=float(hours_C[at]),
                usd_per_h=float(pay_C[at]),
                rent_usd=float(rent_C[at]),
                time_usd=float(time_C[at]),
                scarce_usd=float(scarce_C[at]),
                other_usd=float(options.cost_C[at] - rent_C[at] - time_C[at]),
                usd=float(usd_C[at]),
                obtainable=bool(had_C[at]),
            )
            for at in order
        ]

    def _pay(self) -> Floats:
        return self.options.menu.pay(0.0, self.rent_R)
