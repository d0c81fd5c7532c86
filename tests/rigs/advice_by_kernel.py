"""The spread of results of an advised cluster, run by the kernel: its job over windows of real spot traces.

A window is a group of zones of a trace and a moment in it at which there were enough nodes, as in the light replay
beside it (`replay`). From there on the kernel rents the cluster, loses nodes as the record falls (a fall hits any node
of the zone), waits or goes on, and rents again; every node boots, and dollars are those of its ledger. If a cluster
needs more nodes than the zones had half of the time, the market is taken to be larger in proportion. Checkpoints slow
training by the time to write them; the loss of state when peers are lost together is left to the light replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from sublet.advise.adviser import Ask, ClusterChoice
from sublet.advise.losses import Capacity, neighbours
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState, Plan, Pool, Snapshot
from sublet.domain.quantity import whole
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace
from sublet.perf.speedup import Table
from sublet.planning.turns import serve_in_turn
from sublet.sim.advice.replay import WINDOWS, ReplayedWindows
from sublet.sim.advice.window import Place
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics

__all__ = ["AsAdvised", "simulated"]

LONGEST = 50.0  # times what is expected: a job that has not ended then never does
POOL = "cluster"
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class AsAdvised:
    """The advised number of GPUs, some of them on demand: all of them or none, or those that are to be had."""

    gpus: int
    steady: int
    goes_on: bool

    def decide(self, snapshot: Snapshot) -> Plan:
        """In the first place that has enough."""

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            del state
            held = min(self.gpus, gpus // pool.gpus_per_node * pool.gpus_per_node)
            if held < (1 if self.goes_on else self.gpus):
                return None
            return Shape(pool.name, held, steady=min(self.steady, held))

        return serve_in_turn(snapshot, choose).plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Zones of a trace, from a moment on; counts are so many times those recorded."""

    trace: SpotTrace
    zones: Sequence[str]
    start_s: float
    times: float

    def changes(self, until_s: float) -> Iterator[AvailabilityChanged]:
        """As a market of the simulator, whose clock starts now; the record starts again when it has ended."""
        for change in replace(self.trace, repeat=True).events(self.start_s, self.start_s + until_s):
            if change.zone in self.zones:
                yield AvailabilityChanged(
                    change.t_s - self.start_s, change.zone, math.floor(self.times * change.available)
                )


def simulated(
    choice: ClusterChoice, ask: Ask, traces: Sequence[SpotTrace], *, rng: np.random.Generator, windows: int = WINDOWS
) -> ReplayedWindows:
    """Each window is a run of the simulator. On demand alone only the speed varies."""
    whole("windows", windows, 1)
    if choice.spots and not traces:
        raise InvalidValue("traces", 0, "at least one for a cluster with spot nodes")
    normal, shares = NormalDist(), (np.arange(windows) + 0.5) / windows
    speed_W = np.exp(choice.spread * rng.permutation([normal.inv_cdf(share) for share in shares]))
    begun: Sequence[_Window | None] = [None] * windows
    if choice.spots:
        begun = _begin(traces, choice, windows, rng)
    ends = [
        _run(choice, ask, window, float(speed), at)
        for at, (window, speed) in enumerate(zip(begun, speed_W, strict=True))
    ]
    hours_W, usd_W, losses_W = (np.array(column, dtype=np.float64) for column in zip(*ends, strict=True))
    return ReplayedWindows(
        hours_W=hours_W, usd_W=usd_W, reclaims_W=losses_W, traces=tuple(each.name for each in traces)
    )


def _begin(traces: Sequence[SpotTrace], choice: ClusterChoice, windows: int, rng: np.random.Generator) -> list[_Window]:
    """Moments spread evenly over the time with enough nodes, equally many of each trace."""
    spot_nodes, found = choice.nodes - choice.steady, []
    for at, trace in enumerate(traces):
        spans = []
        for zones in neighbours(trace, max(len(choice.spots), 1)):
            capacity = Capacity.of(trace, zones, together=choice.together)
            place = Place.of(capacity, spot_nodes, 1.0)
            least = int(capacity.nodes_T[np.array(place.enough)].min()) if any(place.enough) else 1
            times = max(1.0, spot_nodes / max(least, 1))
            for t_s, end_s, enough in zip(place.t_s, [*place.t_s[1:], place.end_s], place.enough, strict=True):
                if enough and end_s > t_s:
                    spans.append((zones, times, t_s, end_s))
        if not spans:
            raise InvalidValue("trace", trace.name, "one in which nodes can be held at some time")
        upto_s = np.cumsum([end_s - t_s for _, _, t_s, end_s in spans])
        count = len(range(at, windows, len(traces)))
        for moment_s in (np.arange(count) + rng.random(count)) / max(count, 1) * upto_s[-1]:
            span = min(int(np.searchsorted(upto_s, moment_s, side="right")), len(spans) - 1)
            zones, times, _, end_s = spans[span]
            start_s = end_s - float(upto_s[span] - moment_s)
            found.append(_Window(trace=trace, zones=zones, start_s=start_s, times=times))
    return found


def _run(choice: ClusterChoice, ask: Ask, window: _Window | None, speed: float, seed: int) -> tuple[float, float, int]:
    """Hours and dollars until the job is done, and the nodes that were lost."""
    size = choice.offer.gpus_per_node
    every_s, write_s = choice.checkpoint_every_s, choice.checkpoint_write_s
    pace = speed if math.isinf(every_s) else speed * every_s / (every_s + write_s)
    rates = {nodes * size: rate * pace for nodes, rate in enumerate(choice.rates, 1)}
    job = Job(
        id="advised",
        submit_s=0.0,
        work=ask.samples,
        speed=Table(rates={choice.offer.gpu: rates}),
        gpus=choice.nodes * size,
        min_gpus=size if choice.goes_on else choice.nodes * size,
        restart_s=ask.profile.restart_s,
        checkpoint_every_s=every_s,
        checkpoint_write_s=write_s,
    )
    notice_s = choice.spots[0].notice_s if choice.spots else 0.0
    until_s = LONGEST * SECONDS_PER_H * choice.hours / min(speed, 1.0)
    cloud = Cloud(
        offers=_offers(choice, window, ask.provision_s),
        physics=Physics(provision_s=ask.provision_s, notice_s=notice_s, hits_any=True),
        market=tuple if window is None else partial(window.changes, until_s),
    )
    policy = AsAdvised(choice.nodes * size, choice.steady * size, choice.goes_on)
    run = simulate([job], policy, cloud, seed=seed, keep_segments=False, until_s=until_s)
    row = run.record.jobs["advised"]
    if row.finish_s is None:
        return math.inf, math.inf, run.metrics.losses
    hours = row.finish_s / SECONDS_PER_H
    beside = max(0.0, choice.usd_per_h - _rent_usd_per_h(choice))  # what keeps checkpoints and trains nothing
    return hours, run.metrics.usd + beside * hours + choice.traffic_usd, run.metrics.losses


def _offers(choice: ClusterChoice, window: _Window | None, boot_s: float) -> list[Offer]:
    """Zones in which nodes are spread are one pool; where they are together in one of them, each is a pool."""
    found = []
    for at, zone in enumerate(window.zones if window is not None else ()):
        like = choice.spots[at % len(choice.spots)]
        pool = zone if choice.together and len(choice.spots) > 1 else POOL
        found.append(replace(like, id=zone, pool=pool, boot_s=boot_s, market=Market.SPOT))
    if choice.steady or window is None:
        found.append(replace(choice.offer, id="on-demand", pool=POOL, boot_s=boot_s, hazard_per_h=0.0))
    return found


def _rent_usd_per_h(choice: ClusterChoice) -> float:
    spot = sum(offer.price.usd_per_h for offer in choice.spots) / max(len(choice.spots), 1)
    return choice.steady * choice.offer.price.usd_per_h + (choice.nodes - choice.steady) * (
        spot if choice.spots else choice.offer.price.usd_per_h
    )
