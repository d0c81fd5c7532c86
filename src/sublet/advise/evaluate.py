"""All clusters of one question as arrays: hours, dollars and unlucky hours of every row on every number of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sublet.advise.candidates import Row, between_zones_usd_per_gb, rows_from_offers
from sublet.advise.checkpointing import Checkpoints, Fleets, Keeper, Outages, anchors_for, outages
from sublet.advise.frontier import Clusters, Goal, Limits
from sublet.advise.losses import losses
from sublet.advise.profiles import Profile
from sublet.advise.speed import Machine, Speeds, speeds
from sublet.domain.offer import Gpu, Offer
from sublet.domain.quantity import at_least, whole
from sublet.domain.units import GB, SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats

# R rows: kinds of cluster; N numbers of nodes; C = R x N clusters

UNLUCKY = 1.645  # standard deviations: one run in twenty is worse
RESOLUTION = 0.02  # clusters closer than this in time, dollars and risk are one point of the frontier
ALIKE = 0.01  # and those closer than this in what is asked for are equal
MOST_SAMPLES = 1e18  # more than all GPUs on sale could read in a century
ELSEWHERE: tuple[Keeper, ...] = ("storage", "peers", "anchors", "nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question: the work, the limits, and the preference within them."""

    profile: Profile
    samples: float
    limits: Limits = field(default_factory=Limits)
    goal: Goal = "fastest"
    most_nodes: int = 64
    provision_s: float = 120.0
    reclaims: float = 1.0  # times as many as were measured
    resolution: float = RESOLUTION

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise InvalidValue("samples", self.samples, f"between 1 and {MOST_SAMPLES:g}")
        whole("most_nodes", self.most_nodes, 1)
        at_least("provision_s", self.provision_s, 0.0)
        at_least("reclaims", self.reclaims, 0.0)
        if self.goal not in ("fastest", "cheapest"):
            raise InvalidValue("goal", self.goal, "fastest or cheapest")

    @property
    def alike(self) -> float:
        """Clusters closer than this in what is asked for are equal."""
        return min(self.resolution, ALIKE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """One cluster and what is to be expected of it."""

    offer: Offer  # on demand where some nodes are, else the spot offer of the first zone
    spots: tuple[Offer, ...]  # of the nodes that may be reclaimed, one for each zone
    keeper: Keeper
    nodes: int
    steady: int  # of them on demand
    together: bool  # in one of the zones at a time
    goes_on: bool  # after a loss, with the nodes that are left
    hours: float
    usd: float
    usd_per_h: float  # of all nodes
    traffic_usd: float  # between zones
    late_h: float
    rates: tuple[float, ...]  # samples per second on 1 to all nodes, undisturbed
    reclaims: float
    lost_share: float  # of the time, by reclaims and checkpoints
    checkpoint_every_s: float
    checkpoint_write_s: float
    copied_every_s: float  # to object storage, from the memory of peers; infinite = never
    how: str
    spread: float

    @property
    def rate(self) -> float:
        """Samples per second, undisturbed."""
        return self.rates[-1]

    @property
    def risk(self) -> float:
        """How much longer an unlucky run takes."""
        return self.late_h / self.hours - 1.0

    @property
    def gpus(self) -> int:
        """All that are rented."""
        return self.nodes * self.offer.gpus_per_node

    @property
    def market(self) -> str:
        """On demand, spot, or both."""
        return "on-demand" if not self.spots else "mixed" if self.steady else "spot"

    def __str__(self) -> str:
        zones = ""
        if len(self.spots) > 1:
            zones = f" in {'1 of ' if self.together else ''}{len(self.spots)} zones"
        what = f"{self.gpus} x {self.offer.gpu}"
        if self.market == "mixed":
            return f"{what}: {self.steady} on demand + {self.nodes - self.steady} spot nodes{zones}"
        nodes = f" ({self.nodes} nodes)" if self.nodes > 1 else ""
        return f"{what} {'spot' if self.spots else 'on demand'}{nodes}{zones}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """All clusters as arrays, row by row."""

    ask: Ask
    rows: Sequence[Row]
    machines: Sequence[Machine]
    found: Speeds
    outages: Outages
    traffic_usd_R: Floats
    clusters: Clusters

    @classmethod
    def of(cls, ask: Ask, offers: Sequence[Offer], gpus: Mapping[str, Gpu]) -> Weighed:
        """All clusters of a price list. O(offers), and O(R N) for those worth it."""
        rows, machines = rows_from_offers(offers)
        if not rows:
            raise InvalidValue("offers", 0, "at least one")
        return cls.of_rows(ask, rows, machines, speeds(ask.profile, machines, ask.most_nodes, gpus))

    @classmethod
    def of_rows(cls, ask: Ask, rows: Sequence[Row], machines: Sequence[Machine], found: Speeds) -> Weighed:
        """Clusters of rows whose speeds are known."""
        job = Checkpoints(
            state_bytes=ask.profile.state_bytes, restart_s=ask.profile.restart_s, provision_s=ask.provision_s
        )
        fleets = _fleets(ask, rows, machines, found)
        lost = outages(fleets, job)
        crossing_gb_R = np.array([2.0 * (row.zones - 1) if row.spread else 0.0 for row in rows])
        usd_per_gb_R = np.array([between_zones_usd_per_gb(row.offer.cloud) for row in rows])
        steps = ask.samples / ask.profile.batch
        traffic_usd_R = steps * ask.profile.gradient_bytes / GB * crossing_gb_R * usd_per_gb_R
        machine_R = np.array([row.machine for row in rows], dtype=np.intp)
        clusters = _clusters(ask, rows, fleets, job, lost, found.spread_MN[machine_R], traffic_usd_R)
        return cls(
            ask=ask,
            rows=rows,
            machines=machines,
            found=found,
            outages=lost,
            traffic_usd_R=traffic_usd_R,
            clusters=clusters,
        )

    def again(self, reclaims: float) -> Weighed:
        """With so many times the reclaims."""
        return Weighed.of_rows(replace(self.ask, reclaims=reclaims), self.rows, self.machines, self.found)

    def beside(self, cluster: int) -> list[ClusterChoice]:
        """The same nodes in the same place with checkpoints kept elsewhere, quickest first."""
        row_at, node_at = divmod(cluster, self.ask.most_nodes)
        row = self.rows[row_at]
        ways = [way for way in ELSEWHERE if row.spots and way != row.keeper and (way != "nodes" or row.steady)]
        if not ways:
            return []
        others = Weighed.of_rows(self.ask, [replace(row, keeper=way) for way in ways], self.machines, self.found)
        found = [at * self.ask.most_nodes + node_at for at in range(len(ways))]
        choices = [others.choice(at) for at in found if np.isfinite(others.clusters.hours_C[at])]
        return sorted(choices, key=lambda choice: choice.hours)

    def choice(self, cluster: int) -> ClusterChoice:
        """One of them, spelled out."""
        row_at, node_at = divmod(cluster, self.ask.most_nodes)
        row = self.rows[row_at]
        hours = float(self.clusters.hours_C[cluster])
        at = (row_at, node_at)
        return ClusterChoice(
            offer=row.offer,
            spots=row.spots,
            keeper=row.keeper,
            nodes=node_at + 1,
            steady=int(row.steady_of(np.array([node_at + 1.0]))[0]),
            together=row.together,
            goes_on=bool(self.outages.goes_on_RN[at]),
            hours=hours,
            usd=float(self.clusters.usd_C[cluster]),
            usd_per_h=float(self.clusters.usd_per_h_C[cluster]),
            traffic_usd=float(self.traffic_usd_R[row_at]),
            late_h=float(self.clusters.late_h_C[cluster]),
            rates=tuple(self.found.rate_MN[row.machine, : node_at + 1].tolist()),
            reclaims=float(self.outages.per_h_RN[at]) * hours,
            lost_share=1.0 - 1.0 / float(self.outages.slowdown_RN[at]),
            checkpoint_every_s=float(self.outages.every_s_RN[at]),
            checkpoint_write_s=float(self.outages.write_s_RN[at]),
            copied_every_s=float(self.outages.copied_s_RN[at]),
            how=self.found.how[row.machine],
            spread=float(self.found.spread_MN[row.machine, node_at]),
        )


def _fleets(ask: Ask, rows: Sequence[Row], machines: Sequence[Machine], found: Speeds) -> Fleets:
    """The rows as arrays."""
    nodes_N = np.arange(1.0, ask.most_nodes + 1.0)
    steady_RN = np.array([row.steady_of(nodes_N) for row in rows])
    least_R1 = np.array([row.least() for row in rows])[:, None]
    spot_RN = np.where(nodes_N < least_R1, 0.0, nodes_N - steady_RN).astype(np.intp)
    met = [
        losses(taken.traces, row.zones, ask.most_nodes, together=row.together, share=taken.share)
        if (taken := row.reclaims)
        else losses((), row.zones, ask.most_nodes)
        for row in rows
    ]
    names = ("at_once_S", "all_S", "wait_s_S", "wait_square_S")
    tables = (np.array([getattr(each, name) for each in met]) for name in names)
    at_once_RN, all_RN, wait_s_RN, wait_square_RN = (np.take_along_axis(table, spot_RN, axis=1) for table in tables)
    machine_R = np.array([row.machine for row in rows], dtype=np.intp)
    waits = float(ask.reclaims > 0)
    return Fleets(
        keepers=[row.keeper for row in rows],
        nodes_N=nodes_N,
        # Below the least size there is no such cluster, which a negative number of spot nodes says.
        steady_RN=np.where(nodes_N < least_R1, nodes_N + 1.0, steady_RN),
        hazard_per_h_R=np.array([ask.reclaims * row.reclaims.per_h if row.reclaims else 0.0 for row in rows]),
        notice_s_R=np.array([row.reclaims.notice_s if row.reclaims else 0.0 for row in rows]),
        at_once_RN=at_once_RN,
        all_RN=np.where(steady_RN > 0, 0.0, all_RN),
        wait_s_RN=waits * wait_s_RN,
        wait_square_RN=waits * wait_square_RN,
        spread_R=np.array([row.spread for row in rows]),
        gbit_per_s_R=np.array([machines[row.machine].gbit_per_s for row in rows]),
        rate_RN=found.rate_MN[machine_R],
    )


def _clusters(
    ask: Ask,
    rows: Sequence[Row],
    fleets: Fleets,
    job: Checkpoints,
    lost: Outages,
    spread_RN: Floats,
    traffic_usd_R: Floats,
) -> Clusters:
    """Hours, dollars and unlucky hours of all."""
    nodes_N, steady_RN = fleets.nodes_N, fleets.steady_RN
    on_demand_R1 = np.array([row.offer.price.usd_per_h for row in rows])[:, None]
    spot_R1 = np.array([_mean_usd_per_h(row) for row in rows])[:, None]
    beside_N = np.array([count * anchor.usd_per_h for anchor, count in (anchors_for(job, int(n)) for n in nodes_N)])
    steady_usd_RN = steady_RN * on_demand_R1 + np.where(np.array(fleets.keepers)[:, None] == "anchors", beside_N, 0.0)
    rent_RN = steady_usd_RN + (nodes_N - steady_RN) * spot_R1
    least_h_R = np.array([row.offer.minimum_billing_s for row in rows]) / SECONDS_PER_H
    with np.errstate(divide="ignore", invalid="ignore"):
        train_h_RN = ask.samples / fleets.rate_RN / SECONDS_PER_H
        start_h = (job.provision_s + job.restart_s) / SECONDS_PER_H
        hours_RN = start_h + train_h_RN * lost.slowdown_RN
        paid_RN = steady_usd_RN + lost.paid_RN * spot_R1
        usd_RN = paid_RN * np.maximum(hours_RN, least_h_R[:, None]) + traffic_usd_R[:, None]
        # A count of reclaims varies by its root; the speed, if it was predicted, by its spread.
        unlucky_h_RN = UNLUCKY * np.sqrt(lost.per_h_RN * hours_RN) * lost.lost_s_RN / SECONDS_PER_H
        slow_h_RN = train_h_RN * lost.slowdown_RN * np.expm1(UNLUCKY * spread_RN)
        late_h_RN = hours_RN + np.hypot(unlucky_h_RN, slow_h_RN)
    runs_RN = np.isfinite(hours_RN) & (fleets.rate_RN > 0)
    flat = (np.where(runs_RN, table, np.inf).ravel() for table in (hours_RN, usd_RN, late_h_RN, rent_RN))
    hours_C, usd_C, late_h_C, rent_C = flat
    return Clusters(hours_C=hours_C, usd_C=usd_C, late_h_C=late_h_C, usd_per_h_C=rent_C)


def _mean_usd_per_h(row: Row) -> float:
    """Mean price of a spot node over its zones."""
    offers = row.spots or (row.offer,)
    return sum(offer.price.usd_per_h for offer in offers) / len(offers)
