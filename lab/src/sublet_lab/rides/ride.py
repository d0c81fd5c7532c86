"""A job that knows grids, through the kernel, over a market: samples, dollars, changes, and how long decisions took."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import pairwise

from sublet.domain.actions import Action, RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.events import AvailabilityChanged, Event
from sublet.domain.job import Pauses
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.domain.quantity import at_least
from sublet.market.spot import SpotTrace
from sublet.perf.gridded import LivePauses, config_of
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.perf.parcae import SPOT_USD_PER_H, gridded_job
from sublet.sim.simulator import Cloud, Run, simulate
from sublet.sim.world import Physics
from sublet_lab.rides.record import Record

BOOT_S = 45.0  # what Bamboo measured for creating an instance
POOL = "spot"


@dataclass(frozen=True, slots=True)
class Way:
    """How a job rides: a policy of the kernel, and what a change is; None for one that costs nothing."""

    policy: Policy
    pauses: Callable[[SpotJob], Pauses] | None = LivePauses


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Instances of every zone over time, as (seconds, instances from then on); the job comes at `begins_s`.

    All zones are one pool, of which at most `most` are held.
    """

    zones: Mapping[str, Sequence[tuple[float, int]]]
    begins_s: float
    ends_s: float
    most: int

    @classmethod
    def of(cls, record: Record) -> Supply:
        """A record of all zones together."""
        most = max([1, *record.capacity, *record.before, *(now for _, now in record.between)])
        begins_s = record.begins_s
        return cls(zones={POOL: record.with_before()}, begins_s=begins_s, ends_s=begins_s + record.span_s, most=most)

    @classmethod
    def of_trace(cls, trace: SpotTrace, *, most: int, ends_s: float) -> Supply:
        """Every zone of a trace, from its beginning."""
        zones: dict[str, list[tuple[float, int]]] = {zone: [] for zone in trace.zones}
        for change in trace.events(0.0, ends_s):
            zones[change.zone].append((change.t_s, change.available))
        return cls(zones=zones, begins_s=0.0, ends_s=ends_s, most=most)

    def changes(self) -> Iterator[AvailabilityChanged]:
        """Changes of all zones, in order of time."""
        lines = ([(at_s, zone, now) for at_s, now in line] for zone, line in self.zones.items())
        for at_s, zone, now in merge(*lines):
            yield AvailabilityChanged(at_s, zone, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RideResult:
    """The result of a ride."""

    samples: float
    usd: float
    on_demand_h: float  # instance-hours
    changes: int  # that cost anything
    suspended_s: float
    shapes: tuple[tuple[float, int], ...]  # (seconds since the start, configuration from then on)
    decision_s: tuple[float, ...]
    rents: int = 0
    run: Run | None = field(default=None, repr=False)  # None of what the kernel did not drive

    @property
    def samples_per_usd(self) -> float:
        """0 where nothing was paid."""
        return self.samples / self.usd if self.usd else 0.0

    def config_T(self, ticks: int, step_s: float) -> tuple[int, ...]:  # noqa: N802 - its axis
        """Configurations at so many ticks."""
        at_s = [at for at, _ in self.shapes]
        places = (bisect_right(at_s, tick * step_s) - 1 for tick in range(ticks))
        return tuple(self.shapes[place][1] if place >= 0 else SUSPENDED for place in places)


def ride(  # noqa: PLR0913 - one argument per knob
    job: SpotJob,
    way: Way,
    market: Supply | Record | Sequence[int],
    *,
    notice_s: float = 0.0,
    usd_per_h: float = SPOT_USD_PER_H,
    boot_s: float = 0.0,
    of_running: bool = True,
    seed: int = 0,
    checked: bool = False,
    clock: Callable[[], float] = time.process_time,
) -> RideResult:
    """Run a job without an end, from when it comes to the end of the market.

    A market `of_running` instances counts some of which ours are: what comes has booted, and a fall hits any of them.
    Those that were there and not held take `boot_s`. Otherwise it says how many could be held.
    """
    at_least("usd_per_h", usd_per_h, 0.0)
    if not isinstance(market, Supply):
        record = market if isinstance(market, Record) else Record(capacity=tuple(market), step_s=job.step_s)
        market = Supply.of(record)
    offers = _offers(market, usd_per_h, notice_s=notice_s, boot_s=boot_s)
    most = max(market.most, job.least)
    rider = gridded_job(
        job,
        None if way.pauses is None else way.pauses(job),
        id=job.name,
        submit_s=market.begins_s,
        work=math.inf,
        max_gpus=most,
    )
    cloud = Cloud(
        offers=offers,
        quotas={POOL: most},
        physics=Physics(provision_s=boot_s, notice_s=notice_s, hits_any=of_running, arrives_booted=of_running),
        market=market.changes,
    )
    timed, diary = _Timed(way.policy, clock), _Diary(job)
    run = simulate(
        [rider], timed, cloud, seed=seed, checked=checked, until_s=market.ends_s, keep_segments=False, watch=diary
    )
    row = run.record.jobs[job.name]
    return RideResult(
        samples=row.done,
        usd=run.metrics.usd,
        on_demand_h=0.0,
        changes=0 if way.pauses is None else row.starts + row.resizes,
        suspended_s=diary.suspended_s(market),
        shapes=tuple((at_s - market.begins_s, config) for at_s, config in diary.shapes),
        decision_s=tuple(timed.spent_s),
        rents=diary.rents,
        run=run,
    )


def _offers(market: Supply, usd_per_h: float, *, notice_s: float, boot_s: float) -> list[Offer]:
    return [
        Offer(
            id=zone,
            gpu="V100",
            gpus_per_node=1,
            market=Market.SPOT,
            price=Price.from_usd_per_h(f"{usd_per_h:.9f}"),
            pool=POOL,
            minimum_billing_s=0.0,
            boot_s=boot_s,
            notice_s=notice_s,
        )
        for zone in market.zones
    ]


@dataclass(slots=True)
class _Timed:
    """A policy, and how long each of its decisions took."""

    policy: Policy
    clock: Callable[[], float]
    spent_s: list[float] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Plan:
        started_s = self.clock()
        plan = self.policy.decide(snapshot)
        self.spent_s.append(self.clock() - started_s)
        return plan


@dataclass(slots=True)
class _Diary:
    """The shape of the one job over time."""

    job: SpotJob
    shapes: list[tuple[float, int]] = field(default_factory=list)
    rents: int = 0

    def __call__(self, event: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, StartJob | ResizeJob):
                self._put(event.at_s, config_of(self.job, action.shape))
            elif isinstance(action, StopJob):
                self._put(event.at_s, SUSPENDED)
            elif isinstance(action, RentNode):
                self.rents += 1

    def _put(self, at_s: float, config: int) -> None:
        if self.shapes and self.shapes[-1][0] == at_s:
            self.shapes.pop()
        if not self.shapes or self.shapes[-1][1] != config:
            self.shapes.append((at_s, config))

    def suspended_s(self, market: Supply) -> float:
        """The suspended time of the ride."""
        end_s = market.ends_s
        points = [(market.begins_s, SUSPENDED), *(each for each in self.shapes if each[0] < end_s), (end_s, SUSPENDED)]
        return sum(later - at_s for (at_s, config), (later, _) in pairwise(points) if config == SUSPENDED)
