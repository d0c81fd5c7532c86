"""Forty jobs of mixed kinds on real spot traces, with on demand beside: the input of every policy in the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.market.traces import load_trace
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.parcae import parcae_costs, parcae_rates
from sublet.sim.scenario import as_if, spot_market, spot_offers
from sublet.sim.simulator import Cloud
from sublet.sim.workloads.catalog import load_workload
from sublet.sim.world import Physics

ON_DEMAND_USD_PER_H = 3.06  # p3.2xlarge, and what one V100 of its size costs elsewhere, about
BOOT_S = 120.0  # clouds take one to five minutes
GPU = "T4"  # the data-parallel models were measured on it, and the nodes count as such for them
DATA_PARALLEL, EVERY = 38, 4  # so many jobs of a workload, of each four one: eight hours of arrivals
GRIDS = ("bert", "gpt-1.5b")  # Parcae's, which may be cut into parts
GRID_GPU_HOURS = 48.0  # of work each, in the thriftiest grid
GRID_SUBMIT_S = 1800.0
CHECKPOINT_EVERY_S, CHECKPOINT_WRITE_S = 600.0, 10.0
MOST_GPUS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCase:
    """A market. Its record is repeated when it has ended."""

    trace: str
    notice_s: float
    spot_usd_per_h: float


CASES = (
    WholeCase(trace="bamboo-p3", notice_s=120.0, spot_usd_per_h=0.918),
    WholeCase(trace="parcae-ladp", notice_s=120.0, spot_usd_per_h=0.918),
    WholeCase(trace="bamboo-gcp", notice_s=30.0, spot_usd_per_h=0.918),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Markets:
    """The same machines, offered in four ways."""

    mixed: Cloud  # both markets are one pool: a job may span them
    both: Cloud  # two pools: a job is in one of them
    spot: Cloud
    on_demand: Cloud


@cache
def clouds_of(case: WholeCase) -> Markets:
    """Spot as recorded, on demand without end."""
    trace = load_trace(case.trace, repeat=True)
    listed, _ = spot_offers(trace, price=Usd.from_usd_per_h(f"{case.spot_usd_per_h}"))
    spot = {zone: as_if(offer, GPU) for zone, offer in listed.items()}
    on_demand = Offer(
        id="on-demand",
        gpu=GPU,
        gpus_per_node=1,
        market=Market.ON_DEMAND,
        price=Usd.from_usd_per_h(f"{ON_DEMAND_USD_PER_H}"),
    )
    physics = Physics(provision_s=BOOT_S, notice_s=case.notice_s)
    one = {zone: replace(offer, pool=GPU) for zone, offer in spot.items()}
    return Markets(
        mixed=spot_market(trace, one, first_s=0.0, beside=[replace(on_demand, pool=GPU)], physics=physics).cloud,
        both=spot_market(trace, spot, first_s=0.0, beside=[on_demand], physics=physics).cloud,
        spot=spot_market(trace, spot, first_s=0.0, physics=physics).cloud,
        on_demand=Cloud(offers=(replace(on_demand, boot_s=BOOT_S),), physics=physics),
    )


# ---------------------------------------------------------------------- jobs


@cache
def jobs_of(seed: int) -> tuple[Job, ...]:
    """Jobs of one of the published workloads of Pollux, and two large ones whose grids are chosen."""
    rows = sorted(load_workload(f"pollux-{seed}").jobs, key=lambda job: job.submit_s)[::EVERY][:DATA_PARALLEL]
    plain = [
        _careful(replace(job, max_gpus=min(job.max_gpus, MOST_GPUS), gpus=min(job.gpus, MOST_GPUS))) for job in rows
    ]
    return tuple(
        sorted([*plain, *(_grid_job(model, _profile(model)) for model in GRIDS)], key=lambda job: job.submit_s)
    )


def of_one_depth(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The same, where jobs with grids keep to the depth that is thriftiest: only copies come and go."""
    return tuple(_at_its_depth(job) if isinstance(job.speed, Gridded) else job for job in jobs)


def with_fixed_batch(jobs: Sequence[Job], seed: int) -> tuple[Job, ...]:
    """The same, where data-parallel jobs keep the batch of the trace, and do the same work by it."""
    fixed = {job.id: job for job in load_workload(f"pollux-{seed}", fixed_batch=True).jobs}
    return tuple(
        replace(job, speed=fixed[job.id].speed, work=fixed[job.id].work) if job.id in fixed else job for job in jobs
    )


def gpu_hours(job: Job) -> float:
    """GPU-hours of its work, where they are fewest: on one GPU, or in the thriftiest grid."""
    if isinstance(job.speed, Gridded):
        return job.work / _thrift(job.speed.profile) / SECONDS_PER_H
    return job.speed.seconds(GPU, (1,), 0.0, job.work) / SECONDS_PER_H


def _careful(job: Job) -> Job:
    """Writes checkpoints, and outlives the loss of some of its workers."""
    return replace(job, checkpoint_every_s=CHECKPOINT_EVERY_S, checkpoint_write_s=CHECKPOINT_WRITE_S, survives=True)


def _grid_job(model: str, profile: SpotJob) -> Job:
    return _careful(
        Job(
            id=f"grid-{model}",
            submit_s=GRID_SUBMIT_S,
            work=GRID_GPU_HOURS * SECONDS_PER_H * _thrift(profile),
            speed=Gridded(profile),
            gpus=profile.least,
            min_gpus=profile.least,
            max_gpus=MOST_GPUS,
            pauses=LivePauses(profile),
            model=model,
        )
    )


def _at_its_depth(job: Job) -> Job:
    per_gpu = {grid: rate / (grid[0] * grid[1]) for grid, rate in parcae_rates(job.model).items()}
    _, depth = max(per_gpu, key=lambda grid: per_gpu[grid])
    of_depth = _profile(job.model, depth)
    return replace(
        job, speed=Gridded(of_depth), gpus=of_depth.least, min_gpus=of_depth.least, pauses=LivePauses(of_depth)
    )


@cache
def _profile(model: str, depth: int | None = None) -> SpotJob:
    rates = {grid: rate for grid, rate in parcae_rates(model).items() if depth in (None, grid[1])}
    return spot_job(model, rates, parcae_costs(model))


def _thrift(profile: SpotJob) -> float:
    """Samples per GPU-second in the thriftiest grid."""
    return float((profile.rate_C[1:] / profile.use_C[1:]).max())
