"""The three cases on which budget-optimal rental is checked: types of jobs, their arrivals, and a cloud without end.

A GPU costs 1 USD per hour, so that a budget in USD per hour is a number of GPUs, held on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublet.domain.budget import Budget
from sublet.domain.demand import Demand
from sublet.domain.job import Job, Speed
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import NO_RECLAIMS
from sublet.perf.speedup import Amdahl, PowerLaw, Table
from sublet.planning.terms import Site
from sublet.sim.simulator import Cloud
from sublet.solve.arrays import Floats
from sublet.solve.curves import Curves
from sublet.solve.price import Frontier, frontier

# J jobs, C worker counts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """Jobs that differ in size only."""

    name: str
    speed: Speed
    per_h: float
    mean_work: float  # seconds on one GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A system of types; sizes have the coefficient of variation `cv`, arrivals come in bursts of `burst`."""

    name: str
    types: tuple[JobType, ...]
    widths: tuple[int, ...]
    grain_h: float  # in which a whole number of bursts of every type arrives
    cv: float = 1.0
    burst: int = 1
    prototype: tuple[tuple[float, float], ...] = ()  # (budget, mean hours in theory) on the design's own instance

    @property
    def per_h(self) -> float:
        """Jobs per hour."""
        return sum(of.per_h for of in self.types)

    def frontier(self) -> Frontier:
        """Exactly what theory says that any budget buys, in hours, per hour."""
        hours = [[of.mean_work / SECONDS_PER_H / self._rate(of, k) for k in self.widths] for of in self.types]
        cost = [[k * h for k, h in zip(self.widths, row, strict=True)] for row in hours]
        return frontier(Curves.from_tables(hours, cost), [of.per_h for of in self.types])

    def uniform(self, budget: float) -> float:
        """The mean time in hours of the best mixture of two worker counts that are common to all types."""
        spend_C = np.array([sum(self._load(of) * k / self._rate(of, k) for of in self.types) for k in self.widths])
        jobs_C = np.array([sum(self._load(of) / self._rate(of, k) for of in self.types) for k in self.widths])
        return frontier(Curves.from_tables([jobs_C], [spend_C]), [1.0]).at(budget).jobs / self.per_h

    def jobs(self, count: int, rng: np.random.Generator, *, sizes: str = "spread", swing: float = 0.0) -> list[Job]:
        """About `count` jobs, over so many whole grains, and the shares of the types as stated.

        Arrivals are those of a Poisson process with that many arrivals: uniform, in any order. Sizes are the quantiles
        of their distribution in random order (`spread`), so that their mean is what it should be, or `drawn` freely. A
        daily `swing` of 0.6 makes noon 60 percent busier and midnight as much quieter.
        """
        hours = self.hours(count)
        jobs = []
        for of in self.types:
            number = round(of.per_h * hours / self.burst) * self.burst
            at_h = np.repeat(_arrivals(number // self.burst, hours, swing, rng), self.burst)
            levels = (rng.permutation(number) + 0.5) / number if sizes == "spread" else rng.random(number)
            work = of.mean_work * _quantiles(levels, self.cv, exact_mean=sizes == "spread")
            jobs += [
                Job(
                    id=f"{of.name}-{at}",
                    submit_s=at_h[at] * SECONDS_PER_H,
                    work=work[at],
                    speed=of.speed,
                    max_gpus=self.widths[-1],
                    model=of.name,
                )
                for at in range(number)
            ]
        return jobs

    def hours(self, count: int) -> float:
        """How long about `count` jobs take to arrive."""
        return max(1, round(count / self.per_h / self.grain_h)) * self.grain_h

    def with_load(self, factor: float) -> Case:
        """The same with so many times as many jobs."""
        types = tuple(replace(of, per_h=of.per_h * factor) for of in self.types)
        return replace(self, types=types, grain_h=self.grain_h / factor)

    def forecast(self) -> Demand:
        """The true demand of this case in the long run."""
        hours = 1e6
        likes = [
            Job(id=of.name, submit_s=0.0, work=of.mean_work, speed=of.speed, max_gpus=self.widths[-1], model=of.name)
            for of in self.types
        ]
        demand = Demand.from_jobs(likes, hours)
        rates = {of.name: of.per_h for of in self.types}
        kinds = {key: replace(kind, jobs=rates[kind.like.model] * hours) for key, kind in demand.kinds.items()}
        return Demand(kinds=kinds, hours=hours)

    @staticmethod
    def _rate(of: JobType, gpus: int) -> float:
        return of.speed.rate(GPU, (1,) * gpus, 0.0)

    @staticmethod
    def _load(of: JobType) -> float:
        return of.per_h * of.mean_work / SECONDS_PER_H


GPU = "T4"
SITE = Site("T4x1:on-demand", GPU, 1, NO_RECLAIMS, 0.0, float("inf"))


def gpu_cloud(average: float, *, quota: int | None = None, gpus_per_node: int = 1) -> Cloud:
    """GPUs that can be had at once and in any number (up to the quota), and are given back at once."""
    price = Price.from_usd_per_h(str(gpus_per_node))
    offer = Offer(
        id="gpu",
        gpu=GPU,
        gpus_per_node=gpus_per_node,
        market=Market.ON_DEMAND,
        price=price,
        minimum_billing_s=0.0,
    )
    budget = Budget(average=Price.from_usd_per_h(f"{average:.6f}"))
    return Cloud(offers=(offer,), quotas={} if quota is None else {offer.pool: quota}, budget=budget)


def realised(jobs: Sequence[Job], widths: Sequence[int]) -> Frontier:
    """The best that any policy could have done with these very jobs, for any sum of money: exact, without overheads.

    Its `jobs` are the sum of all completion times, in hours; its budget is the whole bill.
    """
    rate_of: dict[int, list[float]] = {}
    rows = []
    for job in jobs:
        rates = rate_of.setdefault(id(job.speed), [job.speed.rate(GPU, (1,) * k, 0.0) for k in widths])
        rows.append([job.work / SECONDS_PER_H / rate for rate in rates])
    hours_JC = np.array(rows)
    return frontier(Curves.from_tables(hours_JC, hours_JC * np.array(widths)), np.ones(len(jobs)))


def _arrivals(number: int, hours: float, swing: float, rng: np.random.Generator) -> Floats:
    """Uniform in operational time; a swing stretches the nights."""
    level = np.sort(rng.random(number)) * hours
    if not swing:
        return level
    grid_h = np.linspace(0.0, hours, max(2, int(hours * 8)))
    turn = 2 * np.pi / 24.0
    done = grid_h + swing / turn * (1 - np.cos(turn * grid_h))  # the integral of 1 + swing sin(turn t)
    return np.interp(level, done * hours / done[-1], grid_h)


def _quantiles(level: Floats, cv: float, *, exact_mean: bool) -> Floats:
    """Quantiles of a size with mean 1: exponential for a coefficient of variation of 1, fixed for 0, else lognormal."""
    size: Floats
    if cv == 0.0:
        return np.ones(len(level))
    if cv == 1.0:
        size = -np.log1p(-level)
    else:
        from scipy.special import ndtri

        variance = np.log1p(cv * cv)
        size = np.exp(np.sqrt(variance) * ndtri(level) - variance / 2)
    return size / size.mean() if exact_mean else size


# ---------------------------------------------------------------------- the cases

WIDE = tuple(range(1, 65))
TABLE_WIDTHS = (1, 2, 4, 8, 12, 16)
# Measured on T4s by the authors of the public system (goodput relative to one GPU), with the goodput of one GPU, the
# work and the arrivals of its three applications: 85 jobs in 26,752 s. One row each: bert in its second epoch, cifar10
# in its 57th, deepspeech2 in its 70th.
MEASURED: dict[str, tuple[tuple[float, ...], float, int]] = {
    "bert": ((1, 1.94, 3.49, 6.43, 7.94, 9.11), 2 * 97_077 / 16.1, 7),
    "cifar10": ((1, 2.16, 3.95, 3.30, 3.55, 4.60), 100 * 50_000 / 990, 66),
    "deepspeech2": ((1, 1.79, 3.34, 5.42, 7.17, 8.02), 80 * 4_074 / 31, 12),
}

CASES: dict[str, Case] = {
    "A": Case(
        name="A: two types, Poisson",
        types=(
            JobType(name="amdahl", speed=Amdahl(parallel=0.8), per_h=0.4, mean_work=SECONDS_PER_H),
            JobType(name="root", speed=PowerLaw(exponent=0.5), per_h=0.4, mean_work=SECONDS_PER_H),
        ),
        widths=WIDE,
        grain_h=2.5,
        prototype=((1.5, 0.4332), (3.0, 0.2464)),
    ),
    "B": Case(
        name="B: six types, bursts of 20, size CV 4",
        types=(
            JobType(name="amdahl-50", speed=Amdahl(parallel=0.5), per_h=1.0, mean_work=SECONDS_PER_H),
            JobType(name="amdahl-80", speed=Amdahl(parallel=0.8), per_h=1.0, mean_work=2 * SECONDS_PER_H),
            JobType(name="amdahl-95", speed=Amdahl(parallel=0.95), per_h=1.0, mean_work=3 * SECONDS_PER_H),
            JobType(name="amdahl-99", speed=Amdahl(parallel=0.99), per_h=0.5, mean_work=6 * SECONDS_PER_H),
            JobType(name="power-50", speed=PowerLaw(exponent=0.5), per_h=1.0, mean_work=SECONDS_PER_H),
            JobType(name="power-80", speed=PowerLaw(exponent=0.8), per_h=1.0, mean_work=2 * SECONDS_PER_H),
        ),
        widths=WIDE,
        grain_h=40.0,
        cv=4.0,
        burst=20,
    ),
    "C": Case(
        name="C: measured T4 tables, Poisson",
        types=tuple(
            JobType(
                name=model,
                speed=Table(rates={GPU: dict(zip(TABLE_WIDTHS, speedup, strict=True))}),
                per_h=count / 26_752 * SECONDS_PER_H,
                mean_work=work,
            )
            for model, (speedup, work, count) in MEASURED.items()
        ),
        widths=TABLE_WIDTHS,
        grain_h=26_752 / SECONDS_PER_H,
        prototype=((22.0, 1819 / SECONDS_PER_H), (30.0, 1291 / SECONDS_PER_H), (40.0, 1240 / SECONDS_PER_H)),
    ),
}
