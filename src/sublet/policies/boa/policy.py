"""The published budget-optimal system, with all its habits: rounded sizes, open loop, first come first filled."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.job import Job
from sublet.domain.plan import JobState, Plan, Snapshot, arrival
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.draft import Draft
from sublet.planning.menu import Menu, menu_of
from sublet.planning.terms import Sites, Terms
from sublet.planning.value_of_time import SILENT_H, TimePrice, constant_price
from sublet.solve.arrays import Floats, Ints
from sublet.solve.curves import Curves
from sublet.solve.price import Frontier, frontier


@dataclass(frozen=True, slots=True)
class Boa:
    """Budget-optimal rental as published: GPUs by application and epoch from the forecast, never looked at again."""

    round_s: float = 60.0  # how often it looks for jobs that have come to another epoch
    seed: int = 0  # of the random gluing of epochs
    exact: bool = False  # widths that spend the whole budget, as in theory, instead of rounded ones

    def decide(self, snapshot: Snapshot) -> Plan:
        """Jobs that have their GPUs keep them; the others are filled in order of arrival, in part if need be."""
        terms = Terms.from_snapshot(snapshot)
        draft, sites = Draft(snapshot, terms.most), terms.sites
        most = max(draft.most.values())  # no more jobs than that can have a GPU
        waiting = islice(snapshot.waiting.by(arrival), int(most) if math.isfinite(most) else None)
        everyone = sorted([*snapshot.active.values(), *waiting], key=lambda state: state.seq)

        def drawbacks(at: int) -> tuple[bool, int, float]:
            most = draft.most[sites[at].pool]
            stuck = sum(not (menu_of(state.job, sites[at : at + 1]).gpus_C <= most).any() for state in everyone)
            return most <= 0, stuck, terms.least(terms.rent_R, at)

        site_at = min(range(len(sites)), key=drawbacks)  # it knows one kind of GPU
        site = sites[site_at : site_at + 1]
        rent = terms.least(terms.listed_R, site_at)
        table = widths_at_average(snapshot, everyone, site, rent, self.seed)
        pool, price = site[0].pool, constant_price(terms, site) if self.exact else None

        def wanted(state: JobState) -> int:
            if not menu_of(state.job, site).shapes:
                return 0
            if price is not None:
                return exact_width(state, menu_of(state.job, site), price, rent, snapshot.now_s)
            widths = table.get(kind_of(state.job))
            if widths is None:  # nothing is known of such jobs
                return state.job.gpus
            return widths[menu_of(state.job, site).phase(state.done_at(snapshot.now_s))]

        free = draft.most[pool]
        others = []
        for state in everyone:
            gpus = wanted(state)
            if state.shape is not None and (state.shape.pool, state.shape.gpus) == (pool, gpus) and gpus <= free:
                free -= gpus
                draft.keep(state)
            else:
                others.append((state, gpus))
        for state, gpus in others:
            part = int(min(gpus, free))
            if part >= state.job.min_gpus:
                free -= part
                draft.give(state, pool, part)
            else:
                draft.take(state, "those before it have taken all GPUs")
        return draft.plan((math.floor(snapshot.now_s / self.round_s) + 1) * self.round_s if everyone else None)


def widths_at_average(
    snapshot: Snapshot, present: Sequence[JobState], site: Sites, rent: float, seed: int
) -> Mapping[Hashable, Sequence[int]]:
    """GPUs by epoch for every kind of job that is forecast or, without a forecast, has come; none without an aim."""
    aim, told = snapshot.budget.average, snapshot.expected
    if aim is None or rent <= 0:
        return {}
    if told is not None and told.hours > 0:
        return boa_widths(told, site, rent, aim.usd_per_h, seed) or {}
    came = counted_demand(snapshot, present)
    return boa_widths(came, site, rent, aim.usd_per_h, seed) or least_widths(came, site)


def counted_demand(snapshot: Snapshot, present: Iterable[JobState]) -> Demand:
    """So many jobs of each kind since the beginning; the same object for as long as little has changed."""
    hours = SILENT_H + (snapshot.now_s - snapshot.began_s) / SECONDS_PER_H
    here = Counter(_Kind(state.job) for state in present if math.isfinite(state.job.work))
    return _counted(snapshot.arrived, float(f"{hours:.1e}"), tuple(here.items()))


class _Kind:
    """The kind of a job, to look it up by, with one of them."""

    __slots__ = ("job", "key")

    def __init__(self, job: Job) -> None:
        self.job, self.key = job, kind_of(job)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.key == other.key


@lru_cache(maxsize=16)
def _counted(arrived: Demand, hours: float, here: tuple[tuple[_Kind, int], ...]) -> Demand:
    came, present = defaultdict[Hashable, float](float), Counter[Hashable]()
    for arrivals in arrived.kinds.values():
        came[_class_of(arrivals.like)] += arrivals.jobs
    for kind, count in here:
        present[_class_of(kind.job)] += count
    learned = {_class_of(kind.job) for kind, _ in here if kind.key not in arrived.kinds}
    kinds = {key: each for key, each in arrived.kinds.items() if _class_of(each.like) not in learned}
    for kind, count in here:
        if (own := _class_of(kind.job)) in learned:
            jobs = max(came[own], present[own]) * count / present[own]
            kinds[kind.key] = Arrivals(like=kind.job, jobs=jobs, work=kind.job.work)
    return Demand(kinds=kinds, hours=hours)


def _class_of(job: Job) -> Hashable:
    """Facts of a job that stay as they are while its speed is learned."""
    return (job.model, job.weight, job.max_gpus, job.min_on_demand)


DRAWS = 30  # of block lengths
SHRINK = 0.99
MOST_SHRINKING = 500  # to 0.7 % of the budget: nothing that could fit is missed
LONGEST_BLOCK = 10  # epochs / this, at most
HALF = 0.5

# I applications; E epochs, B blocks of one; C widths; X blocks of all applications in one row; V hull vertices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _App:
    """One application: how long an epoch takes on each number of GPUs, and how many jobs arrive per hour."""

    menu: Menu
    hours_EC: Floats
    per_h: float

    def spend_and_time(self, column_E: Ints, rent: float) -> tuple[float, float]:
        """USD and hours of one job: each change of its GPUs is a rescale at the new number, and so is the start."""
        epoch_E = np.arange(len(column_E))
        hours_E = self.hours_EC[epoch_E, column_E].copy()
        changes_E = np.concatenate(([True], column_E[1:] != column_E[:-1]))
        hours_E += np.where(changes_E, self.menu.restart_C[column_E], 0.0)
        return float(rent * (hours_E @ self.menu.gpus_C[column_E])), float(hours_E.sum())


@lru_cache(maxsize=16)
def boa_widths(
    expected: Demand, sites: Sites, rent: float, usd_per_h: float, seed: int
) -> Mapping[Hashable, Sequence[int]] | None:
    """GPUs by epoch for every kind of job in the forecast, on the one pool in `sites`; None if no draw gave a plan."""
    rng = np.random.default_rng(seed)
    apps = {}
    for kind, arrivals in expected.kinds.items():
        menu = menu_of(arrivals.like, sites)
        hours_EC = menu.hours(arrivals.work)
        if arrivals.jobs and np.isfinite(hours_EC).any(axis=1).all():
            apps[kind] = _App(menu=menu, hours_EC=hours_EC, per_h=arrivals.jobs / expected.hours)
    best: tuple[float, list[Ints]] | None = None
    if not apps:
        return None
    for _ in range(DRAWS if any(len(app.hours_EC) > 1 for app in apps.values()) else 1):
        lengths = [int(rng.integers(1, math.ceil(len(app.hours_EC) / LONGEST_BLOCK) + 1)) for app in apps.values()]
        found = _glued(list(apps.values()), lengths, rent, usd_per_h)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return {
        kind: [int(gpus) for gpus in app.menu.gpus_C[column_E]]
        for (kind, app), column_E in zip(apps.items(), best[1], strict=True)
    }


def least_widths(expected: Demand, sites: Sites) -> Mapping[Hashable, Sequence[int]]:
    """The least that each kind runs on, in every epoch: what is left where no plan is within the budget."""
    menus = {kind: menu_of(arrivals.like, sites) for kind, arrivals in expected.kinds.items()}
    return {kind: [int(menu.gpus_C.min())] * len(menu.rate_EC) for kind, menu in menus.items() if menu.shapes}


def exact_width(state: JobState, menu: Menu, price: TimePrice, rent: float, now_s: float) -> int:
    """The width of the phase that the job is in, at this price of time and without regard to rescales."""
    rate_C = menu.rate_EC[menu.phase(state.done_at(now_s))]
    with np.errstate(divide="ignore"):
        cost_C = (price.of(state) + rent * menu.gpus_C) / rate_C
    return int(menu.gpus_C[cost_C.argmin()])


def _glued(
    apps: Sequence[_App], lengths: Sequence[int], rent: float, usd_per_h: float
) -> tuple[float, list[Ints]] | None:
    """The mean time and the GPUs by epoch, with epochs glued into blocks of these lengths; None if nothing fits."""
    block_of = [np.arange(len(app.hours_EC)) // length for app, length in zip(apps, lengths, strict=True)]
    blocks = [
        np.add.reduceat(app.hours_EC, np.flatnonzero(np.diff(block_E, prepend=-1)), axis=0)
        for app, block_E in zip(apps, block_of, strict=True)
    ]
    most = max(app.hours_EC.shape[1] for app in apps)
    hours_XC = np.concatenate([_padded(block_BC, most) for block_BC in blocks])
    gpus_XC = np.concatenate(
        [np.tile(_padded(app.menu.gpus_C[None], most, 1.0), (len(b), 1)) for app, b in zip(apps, blocks, strict=True)]
    )
    if not np.isfinite(hours_XC).any(axis=1).all():
        return None  # no width gets through all epochs of a block
    rate_X = np.repeat([app.per_h for app in apps], [len(block_BC) for block_BC in blocks])
    line = frontier(Curves.from_tables(hours_XC, rent * gpus_XC * hours_XC), rate_X)
    first_I = np.cumsum([0, *(len(block_BC) for block_BC in blocks)])
    money = usd_per_h
    for _ in range(MOST_SHRINKING):
        if money < line.least:
            return None
        column_X = _rounded(line, money, hours_XC)
        plans = [column_X[first_I[i] + block_of[i]] for i in range(len(apps))]
        figures = [app.spend_and_time(column_E, rent) for app, column_E in zip(apps, plans, strict=True)]
        if sum(app.per_h * usd for app, (usd, _) in zip(apps, figures, strict=True)) <= usd_per_h:
            return sum(app.per_h * hours for app, (_, hours) in zip(apps, figures, strict=True)), plans
        money *= SHRINK
    return None


def _rounded(line: Frontier, money: float, hours_XC: Floats) -> Ints:
    """The fractional optimum for this money, each number of GPUs rounded to the nearer of the two vertices around it.

    Between two vertices speed is linear in the GPUs, so the place of the mixed speed is that of the number of GPUs.
    """
    found = line.at(money)
    row_X = np.arange(len(hours_XC))
    poor_X, rich_X = found.poorer, found.richer
    slow_X, fast_X = hours_XC[row_X, poor_X], hours_XC[row_X, rich_X]
    with np.errstate(divide="ignore", invalid="ignore"):  # a phase beyond the end of the job takes no time
        speed_X = 1 / ((1 - found.share) * slow_X + found.share * fast_X)
        place_X = (speed_X - 1 / slow_X) / (1 / fast_X - 1 / slow_X)
    return np.where(place_X >= HALF, rich_X, poor_X)


def _padded(table: Floats, columns: int, value: float = np.inf) -> Floats:
    return np.pad(table, ((0, 0), (0, columns - table.shape[1])), constant_values=value)
