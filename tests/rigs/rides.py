"""One large job on a spot market, run twice: by the driver of its own, and by the kernel in the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sublet.domain.actions import Action, RentNode
from sublet.domain.events import AvailabilityChanged, Event
from sublet.domain.job import Job, Pauses
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.market.traces import load_trace
from sublet.perf.gridded import Gridded, LivePauses, StoragePauses
from sublet.perf.grids import SpotJob
from sublet.policies.fastest import Fastest
from sublet.policies.liveput import Liveput
from sublet.sim.one_job import RunResult, run_on_market
from sublet.sim.simulator import Cloud, Run, simulate
from sublet.sim.world import Physics
from sublet.spot import liveput as spot_liveput
from sublet.spot.measured import SPOT_USD_PER_H, measured_job
from sublet.spot.policies import CheckpointRestart, GreedyLive, SpotPolicy
from sublet.studies.liveput.study import HOURS, TRACE, part_of

MODELS = ("bert", "gpt-1.5b")


class Way(NamedTuple):
    """How a job rides: a policy of the kernel, what a change is, and the policy of the driver of its own."""

    policy: Policy
    pauses: Callable[[SpotJob], Pauses]
    alone: SpotPolicy


WAYS = {
    "checkpoint-restart": Way(Fastest(), StoragePauses, CheckpointRestart()),
    "greedy-live": Way(Fastest(), LivePauses, GreedyLive()),
    "liveput": Way(Liveput(), LivePauses, spot_liveput.Liveput()),
}
RIDES = [(way, model, hours) for way in WAYS for model in MODELS for hours in HOURS]


@dataclass
class Ride:
    """What came of it in the kernel."""

    samples: float
    usd: float
    run: Run
    rents: int = 0


def alone(way: str, model: str, hours: str) -> RunResult:
    """By the driver of its own."""
    return run_on_market(measured_job(model), WAYS[way].alone, part_of(hours).record)


def in_the_kernel(
    way: str, model: str, hours: str, *, boot_s: float = 0.0, notice_s: float = 0.0, checked: bool = False
) -> Ride:
    """The same stretch, with the market before it known."""
    profile, (start, end) = measured_job(model), HOURS[hours]
    offer = Offer(
        id="p3",
        gpu="V100",
        gpus_per_node=1,
        market=Market.SPOT,
        price=Price.from_usd_per_h(str(SPOT_USD_PER_H)),
        minimum_billing_s=0.0,
        boot_s=boot_s,
        notice_s=notice_s,
    )

    def market() -> list[AvailabilityChanged]:
        return [AvailabilityChanged(float(at_s), "p3", n) for at_s, _, n in load_trace(TRACE).events(0.0, math.inf)]

    job = Job(
        id=model,
        submit_s=60.0 * start,
        work=math.inf,
        speed=Gridded(profile),
        gpus=profile.least,
        min_gpus=profile.least,
        max_gpus=32,
        survives=True,
        pauses=WAYS[way].pauses(profile),
    )
    rents = 0

    def watch(event: Event, actions: object) -> None:
        nonlocal rents
        assert isinstance(actions, list)
        orders: list[Action] = actions
        rents += sum(isinstance(action, RentNode) for action in orders)

    physics = Physics(provision_s=boot_s, notice_s=notice_s)
    cloud = Cloud(offers=(offer,), physics=physics, market=market)
    run = simulate([job], WAYS[way].policy, cloud, until_s=60.0 * end, checked=checked, watch=watch)
    return Ride(run.record.jobs[model].done, run.metrics.usd, run, rents)


def main() -> None:
    """All thirty, as a table: `python -m tests.rigs.rides`."""
    for way, model, hours in RIDES:
        ours, theirs = in_the_kernel(way, model, hours), alone(way, model, hours)
        off = ours.samples / theirs.samples - 1.0
        print(f"{way:19} {model:9} {hours:5} {ours.samples:14,.3f} {theirs.samples:14,.3f} {off:+.1e}")


if __name__ == "__main__":
    main()
