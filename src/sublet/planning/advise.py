"""The cluster adviser: which machines to rent for one job, and what more money, time or trust would change.

Every offer of a price list is weighed on 1 to 64 nodes, on demand, spot and mixed, with each way to keep checkpoints:

    hours = provisioning + restart + samples / rate x slowdown by reclaims        (`advise_speed`, `advise_keep`)
    USD   = rent of all nodes x hours: whole nodes, and the least that is billed
    risk  = how much longer one run in twenty takes: more reclaims than usual, and a speed that was only predicted

The answer is the frontier of all three, never one point; beside it stands what was asked for (the fastest within a
budget or a rent, the cheapest by a deadline), the limit that binds, and what little more of it would buy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sublet.domain.offer import Gpu, Market, Offer
from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import InvalidValue
from sublet.planning.advise_frontier import Clusters, Goal, Limits, Step, binding, frontier, pick, steps_up
from sublet.planning.advise_hazard import Reclaims, reclaims_of
from sublet.planning.advise_keep import Checkpoints, Keeper, Outages, anchors_for, nodes_on_demand, outages
from sublet.planning.advise_network import gbit_per_s
from sublet.planning.advise_profiles import Profile
from sublet.planning.advise_speed import Machine, Speeds, speeds

__all__ = ["WORDS", "Advice", "Ask", "Choice", "advise"]

# R rows: offers and ways to keep checkpoints; N numbers of nodes; C = R x N clusters
Floats = npt.NDArray[np.float64]

SECONDS_PER_H = 3600.0
UNLUCKY = 1.645  # standard deviations: one run in twenty is worse
RESOLUTION = 0.02  # clusters closer than this in time, dollars and risk are one point of the frontier
SPOT_KEEPERS: tuple[Keeper, ...] = ("storage", "peers", "anchors")
MIXED_KEEPERS: tuple[Keeper, ...] = ("one node", "half")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be done, within which limits, and what to prefer there."""

    profile: Profile
    samples: float
    limits: Limits = field(default_factory=Limits)
    goal: Goal = "fastest"
    most_nodes: int = 64
    provision_s: float = 120.0
    reclaims: float = 1.0  # times as many as were measured
    resolution: float = RESOLUTION

    def __post_init__(self) -> None:
        positive("samples", self.samples)
        whole("most_nodes", self.most_nodes, 1)
        at_least("provision_s", self.provision_s, 0.0)
        at_least("reclaims", self.reclaims, 0.0)
        if self.goal not in ("fastest", "cheapest"):
            raise InvalidValue("goal", self.goal, "fastest or cheapest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One cluster and what is to be expected of it."""

    offer: Offer  # of the nodes that train; on demand for a mixed cluster
    spot: Offer | None  # of the other nodes of a mixed cluster
    keeper: Keeper
    nodes: int
    hours: float
    usd: float
    usd_per_h: float
    late_h: float
    rate: float  # samples per second, undisturbed
    reclaims: float
    lost_share: float  # of the time, by reclaims and checkpoints
    checkpoint_every_s: float
    checkpoint_write_s: float
    how: str
    spread: float

    @property
    def risk(self) -> float:
        """How much longer an unlucky run takes."""
        return self.late_h / self.hours - 1.0

    @property
    def gpus(self) -> int:
        """All that are rented."""
        return self.nodes * self.offer.gpus_per_node

    def __str__(self) -> str:
        market = {"nothing": "on demand", "one node": "spot + 1 on demand", "half": "half spot"}.get(
            self.keeper, "spot"
        )
        return f"{self.gpus} x {self.offer.gpu} {market}" + (f" ({self.nodes} nodes)" if self.nodes > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The frontier, cheapest first; what was asked for; and what stands in its way."""

    frontier: tuple[Choice, ...]
    best: Choice
    cheapest: Choice
    fastest: Choice
    binding: tuple[str, ...]
    steps: tuple[tuple[Step, Choice], ...]
    changes: tuple[str, ...]
    beside: tuple[Choice, ...]  # the same nodes with checkpoints kept elsewhere
    offers: int
    clusters: int


def advise(ask: Ask, offers: Sequence[Offer], gpus: Mapping[str, Gpu]) -> Advice:
    """Weigh all clusters. `Infeasible` names the limit in the way. Cost: O(offers), and O(R N) for those worth it.

    Of offers that differ in price only the cheapest is weighed: it is as fast and as risky as the others.
    """
    weighed = _Weighed.of(ask, offers, gpus)
    clusters, limits = weighed.clusters, ask.limits
    best = pick(clusters, limits, ask.goal)
    steps = tuple((step, weighed.choice(step.cluster)) for step in steps_up(clusters, limits, ask.goal))
    front = frontier(clusters, limits, resolution=ask.resolution)
    return Advice(
        frontier=tuple(weighed.choice(int(at)) for at in front),
        best=weighed.choice(best),
        cheapest=weighed.choice(pick(clusters, limits, "cheapest")),
        fastest=weighed.choice(pick(clusters, limits, "fastest")),
        binding=tuple(binding(clusters, limits, ask.goal)),
        steps=steps,
        changes=tuple(_changes(ask, weighed, best, steps, offers, gpus)),
        beside=tuple(weighed.choice(at) for at in weighed.beside(best)),
        offers=len(offers),
        clusters=int(np.isfinite(clusters.hours_C).sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A kind of cluster: any number of nodes of one offer, or of two in the same place."""

    offer: Offer
    spot: Offer | None
    keeper: Keeper
    machine: int
    reclaims: Reclaims | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighed:
    """All clusters as arrays, row by row."""

    ask: Ask
    rows: Sequence[_Row]
    found: Speeds
    outages: Outages
    machine_R: npt.NDArray[np.intp]
    clusters: Clusters

    @classmethod
    def of(cls, ask: Ask, offers: Sequence[Offer], gpus: Mapping[str, Gpu]) -> _Weighed:
        rows, machines = _rows(offers)
        if not rows:
            raise InvalidValue("offers", 0, "at least one")
        nodes_N = np.arange(1.0, ask.most_nodes + 1.0)
        job = Checkpoints(
            state_bytes=ask.profile.state_bytes, restart_s=ask.profile.restart_s, provision_s=ask.provision_s
        )
        machine_R = np.array([row.machine for row in rows], dtype=np.intp)
        hazard_R = np.array([ask.reclaims * row.reclaims.per_h if row.reclaims else 0.0 for row in rows])
        at_once_R = np.array([row.reclaims.at_once if row.reclaims else 1.0 for row in rows])
        net_R = np.array([machines[row.machine].gbit_per_s for row in rows])
        lost = outages([row.keeper for row in rows], hazard_R, at_once_R, net_R, nodes_N, job)
        found = speeds(ask.profile, machines, ask.most_nodes, gpus)
        clusters = _clusters(ask, rows, nodes_N, job, lost, found.rate_MN[machine_R], found.spread_MN[machine_R])
        return cls(ask=ask, rows=rows, found=found, outages=lost, machine_R=machine_R, clusters=clusters)

    def beside(self, cluster: int) -> list[int]:
        """The same nodes in the same place, with checkpoints kept elsewhere or on another market; quickest first."""
        row_at, node_at = divmod(cluster, self.ask.most_nodes)
        place, kind = _place(self.rows[row_at]), self.rows[row_at].machine
        rows = [at for at, row in enumerate(self.rows) if at != row_at and row.machine == kind and _place(row) == place]
        found = [at * self.ask.most_nodes + node_at for at in rows]
        return sorted(
            (at for at in found if np.isfinite(self.clusters.hours_C[at])), key=lambda at: self.clusters.hours_C[at]
        )

    def choice(self, cluster: int) -> Choice:
        """One of them, spelled out."""
        row_at, node_at = divmod(cluster, self.ask.most_nodes)
        row, machine = self.rows[row_at], int(self.machine_R[row_at])
        hours = float(self.clusters.hours_C[cluster])
        slowdown = float(self.outages.slowdown_RN[row_at, node_at])
        return Choice(
            offer=row.offer,
            spot=row.spot,
            keeper=row.keeper,
            nodes=node_at + 1,
            hours=hours,
            usd=float(self.clusters.usd_C[cluster]),
            usd_per_h=float(self.clusters.usd_per_h_C[cluster]),
            late_h=float(self.clusters.late_h_C[cluster]),
            rate=float(self.found.rate_MN[machine, node_at]),
            reclaims=float(self.outages.per_h_RN[row_at, node_at]) * hours,
            lost_share=1.0 - 1.0 / slowdown,
            checkpoint_every_s=float(self.outages.every_s_RN[row_at, node_at]),
            checkpoint_write_s=float(self.outages.write_s_RN[row_at, node_at]),
            how=self.found.how[machine],
            spread=float(self.found.spread_MN[machine, node_at]),
        )


def _clusters(
    ask: Ask,
    rows: Sequence[_Row],
    nodes_N: Floats,
    job: Checkpoints,
    lost: Outages,
    rate_RN: Floats,
    spread_RN: Floats,
) -> Clusters:
    """Hours, dollars and unlucky hours of all."""
    keepers = [row.keeper for row in rows]
    steady_RN = nodes_on_demand(keepers, nodes_N)
    on_demand_R = np.array([row.offer.price.usd_per_h for row in rows])
    spot_R = np.array([(row.spot or row.offer).price.usd_per_h for row in rows])
    rent_RN = steady_RN * on_demand_R[:, None] + (nodes_N - steady_RN) * spot_R[:, None]
    beside_N = np.array([count * anchor.usd_per_h for anchor, count in (anchors_for(job, int(n)) for n in nodes_N)])
    rent_RN = rent_RN + np.where(np.array(keepers)[:, None] == "anchors", beside_N, 0.0)
    least_h_R = np.array([row.offer.minimum_billing_s for row in rows]) / SECONDS_PER_H
    with np.errstate(divide="ignore", invalid="ignore"):
        train_h_RN = ask.samples / rate_RN / SECONDS_PER_H
        start_h = (job.provision_s + job.restart_s) / SECONDS_PER_H
        hours_RN = start_h + train_h_RN * lost.slowdown_RN
        usd_RN = rent_RN * np.maximum(hours_RN, least_h_R[:, None])
        # A count of reclaims varies by its root; the speed, if it was predicted, by its spread.
        unlucky_h_RN = UNLUCKY * np.sqrt(lost.per_h_RN * hours_RN) * lost.lost_s_RN / SECONDS_PER_H
        slow_h_RN = train_h_RN * lost.slowdown_RN * np.expm1(UNLUCKY * spread_RN)
        late_h_RN = hours_RN + np.hypot(unlucky_h_RN, slow_h_RN)
    runs_RN = np.isfinite(hours_RN) & (rate_RN > 0)
    flat = (np.where(runs_RN, table, np.inf).ravel() for table in (hours_RN, usd_RN, late_h_RN, rent_RN))
    hours_C, usd_C, late_h_C, rent_C = flat
    return Clusters(hours_C=hours_C, usd_C=usd_C, late_h_C=late_h_C, usd_per_h_C=rent_C)


def _rows(offers: Sequence[Offer]) -> tuple[list[_Row], list[Machine]]:
    """Of offers alike in all but price the cheapest, with each way to keep checkpoints; and the machines they are."""
    machines: dict[Machine, int] = {}
    cheapest: dict[tuple[int, str, float, float], Offer] = {}
    twins: dict[str, Offer] = {}
    for offer in offers:
        kind = Machine(
            offer.gpu, offer.gpus_per_node, gbit_per_s(offer.cloud, offer.instance_type, offer.gpus_per_node)
        )
        machine = machines.setdefault(kind, len(machines))
        spot = offer.market is Market.SPOT
        hazard = (offer.hazard_per_h or reclaims_of(offer.cloud, offer.gpu).per_h) if spot else 0.0
        key = (machine, offer.market.value, hazard, offer.minimum_billing_s)
        if key not in cheapest or offer.price < cheapest[key].price:
            cheapest[key] = offer
        if not spot:
            twins[offer.id.removesuffix(Market.ON_DEMAND)] = offer
    rows = []
    for (machine, market, _, _), offer in cheapest.items():
        if market == Market.ON_DEMAND:
            rows.append(_Row(offer=offer, spot=None, keeper="nothing", machine=machine, reclaims=None))
            continue
        taken = _reclaims(offer)
        rows += [_Row(offer=offer, spot=None, keeper=way, machine=machine, reclaims=taken) for way in SPOT_KEEPERS]
        twin = twins.get(offer.id.removesuffix(Market.SPOT))
        if twin is not None:
            rows += [_Row(offer=twin, spot=offer, keeper=way, machine=machine, reclaims=taken) for way in MIXED_KEEPERS]
    return rows, list(machines)


def _place(row: _Row) -> str:
    return row.offer.id.rpartition(":")[0]


def _reclaims(offer: Offer) -> Reclaims:
    """What the offer itself says, else what traces say."""
    traced = reclaims_of(offer.cloud, offer.gpu)
    if not offer.hazard_per_h:
        return traced
    return replace(traced, per_h=offer.hazard_per_h, at_once=1.0, source="stated by the offer")


# ---------------------------------------------------------------------- what would change the answer

WORDS = {"budget_usd": "budget", "usd_per_h": "rent per hour", "deadline_h": "time"}


def _changes(
    ask: Ask,
    weighed: _Weighed,
    best: int,
    steps: Sequence[tuple[Step, Choice]],
    offers: Sequence[Offer],
    gpus: Mapping[str, Gpu],
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
        worse = _Weighed.of(replace(ask, reclaims=2.0 * ask.reclaims), offers, gpus)
        if ask.limits.keep(worse.clusters).any():
            other = worse.choice(pick(worse.clusters, ask.limits, ask.goal))
            if (other.offer, other.nodes, other.keeper) != (chosen.offer, chosen.nodes, chosen.keeper):
                said.append(f"if spot nodes are reclaimed twice as often, {other} becomes {ask.goal}")
            else:
                said.append(f"if spot nodes are reclaimed twice as often, it stays and takes {other.hours:,.2f} h")
    return said


def _cheaper_rival(ask: Ask, weighed: _Weighed, chosen: Choice) -> list[str]:
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


def _safer(ask: Ask, weighed: _Weighed, chosen: Choice) -> list[str]:
    """If the choice may miss its deadline, the one that does so in one run of twenty only."""
    if chosen.late_h <= ask.limits.deadline_h:
        return []
    clusters = weighed.clusters
    surer = replace(clusters, hours_C=clusters.late_h_C)
    late = f"in one run of twenty it takes {chosen.late_h:,.1f} h and misses the deadline"
    if not ask.limits.keep(surer).any():
        return [f"{late}, as does all else within the limits"]
    other = weighed.choice(pick(surer, ask.limits, ask.goal))
    return [f"{late}; {other} for USD {other.usd:,.2f} does not"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:,.0f} %"  # noqa: PLR2004 - a digit for small ones
