"""Policies in the comparison: `price` on everything and on less of it, and published systems, each on its share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.domain.budget import Budget
from sublet.domain.demand import Demand
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.plan import Policy
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.gridded import Gridded
from sublet.policies.boa.policy import Boa
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.liveput.policy import Liveput
from sublet.policies.mip.policy import Mip
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import MarketChange
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.pollux import Pollux
from sublet_lab.studies.whole.scene import WholeCase, clouds_of, gpu_hours, jobs_of, of_one_depth, with_fixed_batch

WHOLE = "price"


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalPart:
    """Some of the jobs, and the policy that runs them where.

    A budget is an aim per hour, or a cap where a policy knows no aim.
    """

    policy: Policy
    where: str  # a field of Markets
    takes: Callable[[Job], bool] = bool
    capped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One line of the table; parts share the budget, and the spot nodes, by the GPU-hours of their jobs."""

    name: str
    knows: str
    parts: Sequence[RivalPart]
    jobs: Callable[[int], Sequence[Job]] = jobs_of  # by seed


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalOutcome:
    """One rival on one market with one budget and one seed."""

    usd: float
    hours: Mapping[str, float]  # by job, from submission to end; empty where one never ended
    losses: int
    paused_gpu_h: float


def _has_grids(job: Job) -> bool:
    return isinstance(job.speed, Gridded)


def _has_none(job: Job) -> bool:
    return not _has_grids(job)


PARCAE = RivalPart(policy=Liveput(), where="spot", takes=_has_grids, capped=True)
SIZES = "sizes, speeds, arrivals"
DATA_PARALLEL: Mapping[str, tuple[Policy, bool, str]] = {  # policy, whether a budget is a cap to it, what it asks for
    "boa": (Boa(), False, SIZES),
    "pollux": (Pollux(), True, "speeds"),
    "elastic-batch": (ElasticBatch(), True, "speeds"),
    "mip": (Mip(), True, "sizes, speeds"),
    "optimus": (Optimus(), True, "sizes, speeds"),
}
PUBLISHED = tuple(
    Rival(
        name=f"{name} {market} + parcae",
        knows=knows,
        parts=(RivalPart(policy=policy, where=where, takes=_has_none, capped=capped), PARCAE),
    )
    for name, (policy, capped, knows) in DATA_PARALLEL.items()
    for market, where in (("on demand", "on_demand"), ("spot", "spot"))
)
PURE = (
    Rival(name="all spot", knows=SIZES, parts=(RivalPart(policy=Price(), where="spot"),)),
    Rival(name="all on demand", knows=SIZES, parts=(RivalPart(policy=Price(), where="on_demand"),)),
)


def _of_one_depth(seed: int) -> Sequence[Job]:
    return of_one_depth(jobs_of(seed))


def _narrow(seed: int) -> Sequence[Job]:
    return of_one_depth(with_fixed_batch(jobs_of(seed), seed))


ABLATIONS = (
    Rival(name=WHOLE, knows=SIZES, parts=(RivalPart(policy=Price(), where="mixed"),)),
    Rival(name="width only", knows=SIZES, parts=(RivalPart(policy=Price(), where="both"),), jobs=_narrow),
    Rival(
        name="without grids",
        knows=SIZES,
        parts=(RivalPart(policy=Price(), where="mixed"),),
        jobs=_of_one_depth,
    ),
    Rival(name="without mixed markets", knows=SIZES, parts=(RivalPart(policy=Price(), where="both"),)),
)


def outcome_of(rival: Rival, case: WholeCase, seed: int, usd_per_h: float) -> RivalOutcome:
    """Run it. All are told the same: the jobs' speeds and sizes, and how many of a kind are to come."""
    every, markets = rival.jobs(seed), clouds_of(case)
    span_h = max(job.submit_s for job in every) / SECONDS_PER_H
    total_h = sum(gpu_hours(job) for job in jobs_of(seed))
    hours: dict[str, float] = {}
    usd = paused_gpu_h = 0.0
    losses, ended, below = 0, True, 0.0
    for part in rival.parts:
        jobs = [job for job in every if part.takes(job)]
        names = {job.id for job in jobs}
        share = sum(gpu_hours(job) for job in jobs_of(seed) if job.id in names) / total_h
        most = Usd.from_usd_per_h(f"{usd_per_h * share:.3f}")
        budget = Budget(burn=most) if part.capped else Budget(average=most)
        cloud = share_of(replace(getattr(markets, part.where), budget=budget), below, below + share)
        below += share
        run = simulate(
            jobs, part.policy, cloud, seed=seed, expected=Demand.from_jobs(jobs, span_h), keep_segments=False
        )
        usd += run.metrics.usd
        losses += run.metrics.losses
        paused_gpu_h += run.metrics.paused_gpu_hours
        ended = ended and not run.unfinished
        hours |= {row.job_id: row.completion_s / SECONDS_PER_H for row in run.record.jobs.values() if row.finish_s}
    return RivalOutcome(usd=usd, hours=hours if ended else {}, losses=losses, paused_gpu_h=paused_gpu_h)


def share_of(cloud: Cloud, low: float, high: float) -> Cloud:
    """The same, with a part of its spot nodes: what lies between these two, of all nodes in a row."""

    def market() -> Iterator[MarketChange]:
        for change in cloud.market():
            if isinstance(change, AvailabilityChanged) and change.nodes is not None:
                nodes = round(high * change.nodes) - round(low * change.nodes)
                yield replace(change, nodes=nodes)
            else:
                yield change

    return cloud if (low, high) == (0.0, 1.0) else replace(cloud, market=market)
