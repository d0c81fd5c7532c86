"""Places of two recorded markets, and windows of them in which one job has to be done.

A place is a zone on spot, or a region on demand, each a pool of its own. A window is known to the simulated cloud and
to the best in hindsight; a policy is told prices, which clouds publish, and hears the rest by asking for nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.market.prices import load_p3_prices
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace
from sublet.perf.speedup import Linear
from sublet.sim.simulator import Cloud
from sublet.sim.world import MarketChange, Physics
from sublet.solve.arrays import Bools, Floats

EGRESS_USD = 1.0  # 50 GB of checkpoint at 0.02 USD per GB between regions, nothing within one: as SkyNomad counts
HAZARD_PER_H = 0.25  # a guess that is the same for all zones; what is lost and held tells them apart
MICRO = 1_000_000

# USD per hour of a3-highgpu-8g, spot and on demand, of 2025-10-23: what the authors of the trace price its zones at
H100_USD_PER_H = {
    "asia-south2": (69.910116, 99.121323),
    "asia-southeast1": (19.256384, 107.007720),
    "europe-west1": (16.356320, 90.868740),
    "europe-west3": (17.529216, 97.380014),
    "us-central1": (18.979008, 82.525434),
    "us-east4": (14.853440, 82.525437),
    "us-east5": (16.726720, 92.948357),
    "us-west1": (18.979008, 82.525434),
}
P3_ON_DEMAND_USD_PER_H = 3.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A recorded market: supply over time, and prices."""

    name: str
    gpu: str
    trace: SpotTrace = field(repr=False)
    spot: Mapping[str, Steps] = field(repr=False)  # micro-USD per hour, by zone
    on_demand: Mapping[str, float]  # USD per hour, by region
    tick_s: float  # of the record
    unit_s: float  # ticks, pauses and work are whole numbers of these
    restart_s: float

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones of spot."""
        return tuple(self.spot)

    def offers(self, at_s: float) -> list[Offer]:
        """Each a pool of its own, at the prices of then."""
        spot = [
            Offer(
                id=f"{zone} spot",
                gpu=self.gpu,
                gpus_per_node=1,
                market=Market.SPOT,
                price=Price(self.spot[zone].at(at_s, before=int(self.spot[zone].value[0]))),
                pool=f"{zone} spot",
                region=region_of(zone),
                zone=zone,
                hazard_per_h=HAZARD_PER_H,
            )
            for zone in self.zones
        ]
        steady = [
            Offer(
                id=f"{region} on demand",
                gpu=self.gpu,
                gpus_per_node=1,
                market=Market.ON_DEMAND,
                price=Price.from_usd_per_h(usd_per_h),
                pool=f"{region} on demand",
                region=region,
            )
            for region, usd_per_h in self.on_demand.items()
        ]
        return [*spot, *steady]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """So many seconds of work to be done within so many, from an instant of a scene on."""

    scene: Scene
    begins_s: float
    work_s: float
    within_s: float

    def job_in(self, pools: tuple[str, ...] = ()) -> Job:
        """Equally fast everywhere; with a node it loses at most a second of work, and the time of the pause."""
        return Job(
            id="job",
            submit_s=0.0,
            work=self.work_s,
            speed=Linear(),
            restart_s=self.scene.restart_s,
            checkpoint_every_s=1.0,
            deadline_s=self.within_s,
            pools=pools,
        )

    def cloud(self) -> Cloud:
        """A cloud that says nothing of its supply, and takes nodes without a notice."""
        physics = Physics(notice_s=0.0, says_supply=False)
        return Cloud(offers=self.scene.offers(self.begins_s), physics=physics, market=self._changes)

    def _changes(self) -> Iterator[MarketChange]:
        changes: list[MarketChange] = [
            AvailabilityChanged(change.t_s - self.begins_s, f"{change.zone} spot", change.available)
            for change in self.scene.trace.events(self.begins_s, self.begins_s + self.within_s)
            if change.zone in self.scene.spot
        ]
        for zone, steps in self.scene.spot.items():
            for t_s, micro in zip(*steps.between(self.begins_s, self.begins_s + self.within_s), strict=True):
                changes.append(PriceChanged(t_s - self.begins_s, f"{zone} spot", Price(int(micro))))
        return iter(sorted(changes, key=lambda change: change.at_s))

    def places(self) -> tuple[Bools, Floats, Floats]:
        """The view of the best in hindsight: open places in each unit, the cost of the unit, the cost of a move."""
        scene, units = self.scene, round(self.within_s / self.scene.unit_s)
        at_s_T: Floats = self.begins_s + scene.unit_s * np.arange(units + 1, dtype=np.float64)
        spot_TP = np.column_stack([scene.trace.series[z].many(at_s_T[:-1], before=0) > 0 for z in scene.zones])
        open_TP = np.hstack([spot_TP, np.ones((units, len(scene.on_demand)), dtype=bool)])
        paid = [np.diff(_paid_usd(scene.spot[zone], at_s_T)) for zone in scene.zones]
        paid += [np.full(units, usd * scene.unit_s / SECONDS_PER_H) for usd in scene.on_demand.values()]
        regions = np.array([*map(region_of, scene.zones), *scene.on_demand])
        return open_TP, np.column_stack(paid), EGRESS_USD * (regions[:, None] != regions[None, :])


def _paid_usd(steps: Steps, at_s_T: Floats) -> Floats:
    """The payment of a holder of a node from the first step on."""
    t_s = np.append(steps.t_s, max(at_s_T[-1], steps.t_s[-1]) + 1.0)
    usd = np.append(0.0, np.cumsum(np.diff(t_s) * steps.value)) / MICRO / SECONDS_PER_H
    return np.interp(at_s_T, t_s, usd)


def region_of(zone: str) -> str:
    """`us-east4` of `us-east4-a`, `us-east-1` of `us-east-1a`."""
    return zone[:-2] if zone[-2] == "-" else zone[:-1]


# ---------------------------------------------------------------------- the two that are known


@cache
def gcp_h100() -> Scene:
    """SkyNomad's own: thirteen zones of GCP, asked every ten minutes; prices did not change."""
    trace = load_trace("skynomad-h100")
    spot = {z: Steps(t_s=np.zeros(1), value=np.array([_micro(H100_USD_PER_H[region_of(z)][0])])) for z in trace.zones}
    on_demand = {region: usd for region, (_, usd) in H100_USD_PER_H.items()}
    return Scene(
        name="h100",
        gpu="H100",
        trace=trace,
        spot=spot,
        on_demand=on_demand,
        tick_s=600.0,
        unit_s=120.0,
        restart_s=360.0,
    )


@cache
def v100_2023() -> Scene:
    """Can't Be Late's: nine zones of AWS, asked every 195 s, with the prices of their days."""
    trace, book = load_trace("skypilot-v100-2023-02"), load_p3_prices()
    keys = {zone: next(key for key in book.series if zone in key.split(":")) for zone in trace.zones}
    on_demand = dict.fromkeys((region_of(zone) for zone in trace.zones), P3_ON_DEMAND_USD_PER_H)
    spot = {zone: book.series[key] for zone, key in keys.items()}
    return Scene(
        name="v100",
        gpu="V100",
        trace=trace,
        spot=spot,
        on_demand=on_demand,
        tick_s=195.0,
        unit_s=195.0,
        restart_s=390.0,
    )


def _micro(usd: float) -> int:
    return Price.from_usd_per_h(usd).micro_usd_per_h
