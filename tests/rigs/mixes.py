"""One job on both markets of one kind: what the best mix would have gained in hindsight, and what `price` gets of it.

`python -m tests.rigs.mixes` prints it for five recorded markets. An hour on spot costs 1 per GPU, on demand 3.3; an
hour of the job is worth `v`. What is compared is v x hours + rent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.market.hazard import trace_hazard
from sublet.market.traces import load_trace
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price as PricePolicy
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics

MARKETS = {  # trace, the zones that count (0 = all), and what is had of what they have
    "bamboo-p3": ("bamboo-p3", 0, lambda nodes: nodes),
    "bamboo-p3, scarce": ("bamboo-p3", 0, lambda nodes: max(0, (nodes - 10) // 3)),
    "parcae-ladp": ("parcae-ladp", 0, lambda nodes: nodes),
    "skypilot-2023-08, one zone": ("skypilot-v100-2023-08", 1, lambda nodes: nodes),
    "skypilot-2023-02, 9 zones": ("skypilot-v100-2023-02", 0, lambda nodes: nodes),
}
RATIO, WORK_H, BOOT_S, RESTART_S, MOST = 3.3, 60.0, 120.0, 30.0, 32  # USD per USD, GPU-hours, s, s, GPUs
WIDTHS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
CHECKPOINT_S = 300.0  # shorter than most changes take: the simulator begins the interval anew at each of them
SPAN_S = 10 * 86_400.0  # whoever has not ended by then never does
CORES = (1, 2, 4, 8, 12)
VALUES = tuple(2.0 ** (at / 2) for at in range(2, 19))  # 2 to 512


@dataclass(frozen=True)
class Fixed:
    """So many GPUs, some on demand, the rest as spot has them; `fill`: on demand for what spot lacks."""

    gpus: int
    steady: int
    fill: bool = False

    def decide(self, snapshot):
        states = [*snapshot.active.values(), *snapshot.waiting.by(lambda state: state.seq)]
        if not states:
            return Plan(hold={"s": 0, "d": 0})
        spot = int(min(self.gpus - self.steady, snapshot.offers["s"].most))
        sure = self.gpus - spot if self.fill else self.steady
        shape = Shape("p", spot + sure, steady=sure) if spot + sure else None
        return Plan(shapes={states[0].job.id: shape}, hold={"s": spot, "d": sure})


@cache
def changes_of(market, from_s):
    """What spot has, from a moment of its record on."""
    name, zones, had = MARKETS[market]
    trace = load_trace(name, repeat=True)
    nodes, last, found = {}, None, []
    for change in trace.events(from_s, from_s + SPAN_S):
        if zones and change.zone not in trace.zones[:zones]:
            continue
        nodes[change.zone] = change.available
        if (total := had(sum(nodes.values()))) != last:
            found.append(AvailabilityChanged(max(0.0, change.t_s - from_s), "s", total))
            last = total
    seen = trace_hazard(trace).pooled
    share = seen.losses / seen.falls / seen.mean_available
    return tuple(found), {"hazard_per_h": seen.per_h or 0.0, "reclaim_share": share}


@dataclass(frozen=True)
class Outcome:
    """Hours, and GPU-hours paid on each market."""

    hours: float
    spot_h: float
    on_demand_h: float

    def cost(self, v):
        return v * self.hours + self.spot_h + RATIO * self.on_demand_h


def run(policy, market, from_s=0.0, *, apart=False):
    """One job of 60 GPU-hours; in a pool of both markets, or in one of each."""
    changes, risk = changes_of(market, from_s)
    facts = {"gpu": "V100", "gpus_per_node": 1, "boot_s": BOOT_S, "minimum_billing_s": 0.0}
    pools = ("s", "d") if apart else ("p", "p")
    offers = [
        Offer(id="s", market=Market.SPOT, price=Price.from_usd_per_h("1"), pool=pools[0], **risk, **facts),
        Offer(id="d", market=Market.ON_DEMAND, price=Price.from_usd_per_h(str(RATIO)), pool=pools[1], **facts),
    ]
    job = Job(
        id="j",
        submit_s=0.0,
        work=WORK_H * 3600.0,
        speed=Amdahl(parallel=0.98),
        max_gpus=MOST,
        restart_s=RESTART_S,
        checkpoint_every_s=CHECKPOINT_S,
        survives=True,
    )
    cloud = Cloud(offers=offers, physics=Physics(provision_s=BOOT_S, notice_s=0.0), market=lambda: changes)
    done = simulate([job], policy, cloud, until_s=SPAN_S)
    row = done.record.jobs["j"]
    if row.finish_s is None:
        return Outcome(math.inf, math.inf, math.inf)
    gpu_h, usd = done.metrics.gpu_hours, done.metrics.usd
    on_demand_h = (usd - gpu_h) / (RATIO - 1.0)
    return Outcome(row.finish_s / 3600.0, gpu_h - on_demand_h, on_demand_h)


@dataclass(frozen=True)
class Hindsight:
    """Of one market: all that was tried, and on which market it was."""

    spot: tuple[Outcome, ...]
    on_demand: tuple[Outcome, ...]
    mixed: tuple[Outcome, ...]

    def pure(self, v):
        return min(each.cost(v) for each in (*self.spot, *self.on_demand))

    def best_mix(self, v):
        return min(each.cost(v) for each in self.mixed)

    def gain(self, v):
        """Of the best mix over the better pure choice."""
        return 1.0 - self.best_mix(v) / self.pure(v)


@cache
def in_hindsight(market, from_s=0.0, widths=WIDTHS, cores=CORES):
    return Hindsight(
        spot=tuple(run(Fixed(gpus, 0), market, from_s) for gpus in widths),
        on_demand=tuple(run(Fixed(gpus, gpus), market, from_s) for gpus in widths),
        mixed=tuple(
            run(Fixed(gpus, steady, fill), market, from_s)
            for gpus in widths
            for steady, fill in ((0, True), *((core, False) for core in cores if core < gpus))
        ),
    )


def priced(market, v, from_s=0.0, *, apart=False):
    """What `price` makes of it, where an hour of the job is worth so much."""
    return run(PricePolicy(hour_usd=v), market, from_s, apart=apart)


def main():
    print(
        "gain over the better pure choice: of the best mix in hindsight, of price in one pool of both markets, in two"
    )
    for market in MARKETS:
        found = in_hindsight(market)
        for v in VALUES:
            pure = found.pure(v)
            mixed, apart = (1.0 - priced(market, v, apart=each).cost(v) / pure for each in (False, True))
            facts = f"hindsight {found.gain(v):+7.1%}  one pool {mixed:+7.1%}  two {apart:+7.1%}"
            print(f"{market:28} v {v:6.1f}  {facts}", flush=True)


if __name__ == "__main__":
    main()
