"""The cluster adviser: which machines to rent for one job, and what more money, time or trust would change.

Every offer of a price list is weighed on 1 to 64 nodes, on demand, spot and mixed, with each way to keep checkpoints:

    hours = provisioning + restart + samples / rate x slowdown by reclaims        (`speed`, `perf.preemption`)
    USD   = rent of the nodes that are there x hours: whole nodes, the least that is billed, traffic between zones
    risk  = how much longer one run in twenty takes: more reclaims than usual, and a speed that was only predicted

The answer is the frontier of all three, never one point. Beside it stands the cluster that was asked for (the fastest
within a budget or a rent, the cheapest by a deadline), the limit that binds, and the gain of a little more of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublet.advise.evaluate import Ask, ClusterChoice, Weighed
from sublet.advise.frontier import Step, binding, frontier, pick, steps_up
from sublet.domain.offer import Gpu, Offer

__all__ = ["WORDS", "Advice", "Ask", "ClusterChoice", "advise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The frontier, cheapest first; what was asked for; and what stands in its way."""

    frontier: tuple[ClusterChoice, ...]
    best: ClusterChoice
    cheapest: ClusterChoice
    fastest: ClusterChoice
    binding: tuple[str, ...]
    steps: tuple[tuple[Step, ClusterChoice], ...]
    changes: tuple[str, ...]
    beside: tuple[ClusterChoice, ...]  # the same nodes with checkpoints kept elsewhere
    offers: int
    clusters: int


def advise(ask: Ask, offers: Sequence[Offer], gpus: Mapping[str, Gpu]) -> Advice:
    """Weigh all clusters. `Infeasible` names the limit in the way. Cost: O(offers), and O(R N) for those worth it."""
    weighed = Weighed.of(ask, offers, gpus)
    clusters, limits = weighed.clusters, ask.limits
    best = pick(clusters, limits, ask.goal, alike=ask.alike)
    steps = tuple((step, weighed.choice(step.cluster)) for step in steps_up(clusters, limits, ask.goal))
    front = {*frontier(clusters, limits, resolution=ask.resolution).tolist(), best}
    return Advice(
        frontier=tuple(weighed.choice(at) for at in sorted(front, key=lambda at: (clusters.usd_C[at], at))),
        best=weighed.choice(best),
        cheapest=weighed.choice(pick(clusters, limits, "cheapest")),
        fastest=weighed.choice(pick(clusters, limits, "fastest")),
        binding=tuple(binding(clusters, limits, ask.goal)),
        steps=steps,
        changes=tuple(_changes(ask, weighed, best, steps)),
        beside=tuple(weighed.beside(best)),
        offers=len(offers),
        clusters=int(np.isfinite(clusters.hours_C).sum()),
    )


# ---------------------------------------------------------------------- what would change the answer

WORDS = {"budget_usd": "budget", "usd_per_h": "rent per hour", "deadline_h": "time"}


def _changes(
    ask: Ask,
    weighed: Weighed,
    best: int,
    steps: Sequence[tuple[Step, ClusterChoice]],
) -> list[str]:
    chosen = weighed.choice(best)
    less = "less time" if ask.goal == "fastest" else "cheaper"
    said = [
        f"at {_percent(step.more)} more {WORDS[step.limit]}, {other} becomes {ask.goal} "
        f"({other.hours:,.2f} h for USD {other.usd:,.2f}: {_percent(step.gain)} {less})"
        for step, other in steps
    ]
    said += _cheaper_rival(ask, weighed, chosen)
    said += _safer(ask, weighed, chosen)
    if chosen.reclaims > 0 and ask.reclaims > 0:
        worse = weighed.again(2.0 * ask.reclaims)
        if ask.limits.keep(worse.clusters).any():
            other = worse.choice(pick(worse.clusters, ask.limits, ask.goal, alike=ask.alike))
            if str(other) != str(chosen):
                said.append(f"if spot nodes are reclaimed twice as often, {other} becomes {ask.goal}")
            else:
                said.append(f"if spot nodes are reclaimed twice as often, it stays and takes {other.hours:,.2f} h")
    return said


def _cheaper_rival(ask: Ask, weighed: Weighed, chosen: ClusterChoice) -> list[str]:
    """Which other kind of GPU is nearest to being chosen, and by how much its price would have to fall."""
    clusters = weighed.clusters
    same_R = np.array([row.offer.gpu == chosen.offer.gpu for row in weighed.rows])
    other_C = np.repeat(~same_R, ask.most_nodes) & replace(ask.limits, budget_usd=math.inf, usd_per_h=math.inf).keep(
        clusters
    )
    if ask.goal == "fastest":
        other_C &= clusters.hours_C < chosen.hours
        with np.errstate(invalid="ignore"):
            share_C = np.minimum(ask.limits.budget_usd / clusters.usd_C, ask.limits.usd_per_h / clusters.usd_per_h_C)
    else:
        share_C = chosen.usd / clusters.usd_C
    if not other_C.any() or not np.isfinite(share_C[other_C]).all():
        return []
    rows = np.flatnonzero(other_C)
    nearest = int(rows[share_C[rows].argmax()])
    cut = 1.0 - float(share_C[nearest])
    if not 0.0 < cut < 1.0:
        return []
    return [f"if {weighed.choice(nearest)} cost {_percent(cut)} less, it would be {ask.goal}"]


def _safer(ask: Ask, weighed: Weighed, chosen: ClusterChoice) -> list[str]:
    """If the choice may miss its deadline, the one that does so in one run of twenty only."""
    if chosen.late_h <= ask.limits.deadline_h:
        return []
    clusters = weighed.clusters
    surer = replace(clusters, hours_C=clusters.late_h_C)
    late = f"in one run of twenty it takes {chosen.late_h:,.1f} h and misses the deadline"
    if not ask.limits.keep(surer).any():
        return [f"{late}, as does all else within the limits"]
    other = weighed.choice(pick(surer, ask.limits, ask.goal, alike=ask.alike))
    return [f"{late}; {other} for USD {other.usd:,.2f} does not"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:,.0f} %"  # noqa: PLR2004 - a digit for small ones
