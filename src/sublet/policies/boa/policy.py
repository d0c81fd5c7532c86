"""The published budget-optimal system, with all its habits: rounded counts, open loop, first come first filled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from sublet.domain.demand import kind_of
from sublet.domain.plan import JobState, Plan, Snapshot
from sublet.planning.draft import Draft
from sublet.planning.menu import menu_of
from sublet.planning.ranking import arrival
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import constant_price
from sublet.policies.boa.counted import widths_at_average
from sublet.policies.boa.widths import exact_width

__all__ = ["Boa"]


@dataclass(frozen=True, slots=True)
class Boa:
    """Budget-optimal rental as published: worker counts by application and epoch from the forecast, fixed for good."""

    round_s: float = 60.0  # how often it looks for jobs that have come to another epoch
    seed: int = 0  # of the random gluing of epochs
    exact: bool = False  # widths that spend the whole budget, as in theory, instead of rounded ones

    def decide(self, snapshot: Snapshot) -> Plan:
        """Jobs that have their workers keep them; the others are filled in order of arrival, in part if need be."""
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
