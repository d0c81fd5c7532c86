"""The published budget-optimal system, with all its habits: rounded sizes, open loop, first come first filled."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.job import Job
from sublet.domain.plan import JobState, Plan, Snapshot, arrival
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.draft import Draft
from sublet.planning.menu import menu_of
from sublet.planning.terms import Sites, Terms
from sublet.planning.value_of_time import SILENT_H, constant_price
from sublet.policies.boa.widths import boa_widths, exact_width, least_widths

__all__ = ["Boa", "counted_demand", "widths_at_average"]


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
