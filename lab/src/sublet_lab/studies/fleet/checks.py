"""The smaller parts of the study of many jobs on spot: the formula, the flight from hazard, and spares lent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.actions import Action, RentNode
from sublet.domain.budget import Limit
from sublet.domain.demand import Demand
from sublet.domain.events import AvailabilityChanged, Event, NodeLost, NodeReleased
from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import Reclaims, spot_speed
from sublet.perf.speedup import Linear
from sublet.perf.speedup import Table as SpeedTable
from sublet.planning.value_of_time import HURRY
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price
from sublet.sim.metrics import Metrics
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet_lab.studies.study import Check, Findings, StudyTable, Tell, at_least, at_most, within

AWAY_S = 1.0  # a zone that lost its node has another one so soon
WORK_S = 600 * SECONDS_PER_H
GPU_USD_PER_H = 3.0


# ---------------------------------------------------------------------- the formula, beside the simulator


def reclaimed_cloud(nodes: int, per_h: float, *, notice_s: float, boot_s: float, seed: int) -> Cloud:
    """Twice as many zones as nodes are needed, one node in each, which is taken at random and soon back."""
    zones = [
        Offer(
            id=f"zone{at}",
            gpu="V100",
            gpus_per_node=1,
            market=Market.SPOT,
            price=Usd.from_usd_per_h("1"),
            minimum_billing_s=0.0,
        )
        for at in range(2 * nodes)
    ]

    def market() -> Iterator[AvailabilityChanged]:
        rng = np.random.default_rng(seed)
        for zone in zones:
            yield AvailabilityChanged(0.0, zone.id, 1)
        at_s = notice_s
        while True:
            at_s += AWAY_S + float(rng.exponential(SECONDS_PER_H / (per_h * len(zones))))
            zone = zones[int(rng.integers(len(zones)))]
            yield AvailabilityChanged(at_s, zone.id, 0)
            yield AvailabilityChanged(at_s + AWAY_S, zone.id, 1)

    return Cloud(offers=zones, physics=Physics(provision_s=boot_s, notice_s=notice_s), market=market)


def single(quick: bool, tell: Tell) -> Findings:
    """One job of fixed worker count, alone with its reclaims: the part of its speed that it keeps."""
    checks: list[Check] = []
    rows = []
    tell("one job, formula beside simulator")
    for nodes, per_h, notice_s in ((1, 0.5, 0.0), (1, 0.5, 120.0), (4, 0.5, 120.0), (4, 1.0, 0.0)):
        boot_s = 90.0
        job = Job(
            id="j",
            submit_s=0.0,
            work=(WORK_S / 4 if quick else WORK_S) * nodes,
            speed=Linear(),
            gpus=nodes,
            min_gpus=nodes,
            restart_s=100.0,
            checkpoint_every_s=300.0,
        )
        cloud = reclaimed_cloud(nodes, per_h, notice_s=notice_s, boot_s=boot_s, seed=1)
        run = simulate([job], Fifo(), cloud, keep_segments=False)
        seen = job.work / nodes / run.metrics.mean_s
        said = float(spot_speed(Reclaims(per_h=per_h, notice_s=notice_s, boot_s=boot_s), job, [nodes])[0])
        name = f"{nodes} node{'s' if nodes > 1 else ''}, {per_h:g} reclaims per node-hour, {notice_s:g} s notice"
        checks.append(within(f"speed lost: {name}", 1.0 - said, 1.0 - seen, 0.3 if quick else 0.15))
        rows.append([name, f"{said:.4f}", f"{seen:.4f}", f"{run.metrics.losses}"])
    table = StudyTable(title="Speed kept on spot", columns=["", "formula", "simulated", "nodes lost"], rows=rows)
    return Findings(checks=checks, tables=[table])


# ---------------------------------------------------------------------- the dial


@dataclass(slots=True)
class _Rented:
    """Node-seconds by offer."""

    since: dict[str, tuple[str, float]] = field(default_factory=dict)
    node_s: dict[str, float] = field(default_factory=dict)

    def __call__(self, event: Event, orders: Sequence[Action]) -> None:
        if isinstance(event, NodeLost | NodeReleased) and event.node_id in self.since:
            offer_id, since_s = self.since.pop(event.node_id)
            self.node_s[offer_id] = self.node_s.get(offer_id, 0.0) + event.at_s - since_s
        for order in orders:
            if isinstance(order, RentNode):
                self.since[order.node_id] = (order.offer_id, event.at_s)


def dialled(quick: bool, tell: Tell, scene: Callable[[float], tuple[list[Job], Cloud, Demand]]) -> Findings:
    """The same record faster and faster: where spot costs more per unit of work than on demand, it is left."""
    rows, shares = [], {}
    for times in (1.0, 20.0) if quick else (1.0, 4.0, 10.0, 20.0):
        tell(f"hazard dial: {times:g} times as fast")
        jobs, cloud, told = scene(times)
        rented = _Rented()
        run = simulate(jobs, Price(), cloud, expected=told, keep_segments=False, watch=rented)
        steady = {offer.id for offer in cloud.offers if offer.market is Market.ON_DEMAND}
        total = sum(rented.node_s.values())
        shares[times] = sum(node_s for offer_id, node_s in rented.node_s.items() if offer_id in steady) / total
        hazard = max(offer.hazard_per_h for offer in cloud.offers)
        rows.append([f"{hazard:.2f}", f"{100 * shares[times]:.0f} %", f"{run.metrics.losses}"])
    columns = ["reclaims per node-hour", "on demand, of all node-hours", "nodes lost"]
    return Findings(
        checks=[
            at_most("hazard dial: on demand at the recorded hazard", 100 * shares[1.0], 25, unit="%"),
            at_least("hazard dial: on demand at 20 times the recorded hazard", 100 * shares[20.0], 90, unit="%"),
        ],
        tables=[
            StudyTable(title="Where price rents when spot is 0.7 of on demand", columns=columns, rows=rows, texts=0)
        ],
    )


# ---------------------------------------------------------------------- spares


def rigid_and_elastic(stages: int, pipelines: int, most: int, hours: float = 4.0) -> tuple[Job, Job]:
    """A job that runs only as whole pipelines, and one that takes up to `most` GPUs and lasts as long."""
    grids = {stages * wide: float(wide) for wide in range(1, pipelines + 1)}
    rates = {gpus: grids.get(gpus, 0.0) for gpus in range(1, stages * pipelines + 1)}
    rigid = Job(
        id="rigid",
        submit_s=0.0,
        work=pipelines * hours * SECONDS_PER_H,
        speed=SpeedTable(rates={"V100": rates}),
        gpus=stages * pipelines,
        min_gpus=stages,
        restart_s=30.0,
    )
    elastic = Job(
        id="elastic", submit_s=0.0, work=most * hours * SECONDS_PER_H, speed=Linear(), max_gpus=most, restart_s=30.0
    )
    return rigid, elastic


def lent(tell: Tell) -> Findings:
    """GPUs that one job's grid leaves over: idle if it is alone, used if others are there."""
    tell("spares lent")
    checks, rows = [], []
    scenes = {
        "3 of the 4 GPUs of a rented node": (rigid_and_elastic(3, 1, 1), 4, None),
        "2 pipelines x 4 stages on 10 owned GPUs": (rigid_and_elastic(4, 2, 2), 1, 10),
    }
    for name, (jobs, size, owned) in scenes.items():
        price = Usd.from_usd_per_h(f"{GPU_USD_PER_H * size}")
        offer = Offer(id="o", gpu="V100", gpus_per_node=size, market=Market.ON_DEMAND, price=price)
        limits = {} if owned is None else {"o": Limit(min_nodes=owned, max_nodes=owned)}
        cloud = Cloud(offers=(offer,), limits=limits)
        together = simulate(jobs, Price(hour_usd=HURRY), cloud).metrics
        alone = [simulate([job], Price(hour_usd=HURRY), cloud).metrics for job in jobs]
        idle_usd, usd = sum(map(_idle_usd, alone)), sum(run.usd for run in alone)
        cells = (idle_usd, _idle_usd(together), usd, together.usd)
        rows.append([name, *(f"{cell:.2f}" for cell in cells)])
        label = f"spares lent, {name}"
        checks.append(at_most(f"{label}: idle dollars over those of each alone", _idle_usd(together) / idle_usd, 0.1))
        checks.append(at_most(f"{label}: the whole bill over both alone", together.usd / usd, 0.6))
    columns = ["", "idle alone, USD", "idle together, USD", "bill alone, USD", "bill together, USD"]
    return Findings(checks=checks, tables=[StudyTable(title="Spares lent to another job", columns=columns, rows=rows)])


def _idle_usd(run: Metrics) -> float:
    return GPU_USD_PER_H * (run.gpu_hours - run.used_gpu_hours)
