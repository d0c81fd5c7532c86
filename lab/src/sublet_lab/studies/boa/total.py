"""A budget that is never overspent, whatever prices do, and hardly ever underspent: random workloads and markets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sublet.domain.budget import Budget
from sublet.domain.demand import Demand
from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.planning.value_of_time import HURRY
from sublet.policies.price.policy import Price as PricePolicy
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import MarketChange, Physics
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most, equals

JUMP = 5.0  # a price may rise to this many times the list price
SPEEDS = (Amdahl(parallel=0.95), Amdahl(parallel=0.8), PowerLaw(exponent=0.7), PowerLaw(exponent=0.9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamble:
    """Jobs, a cloud whose prices jump and whose spot nodes are taken, and a budget that does not pay for all."""

    jobs: tuple[Job, ...]
    cloud: Cloud
    purse: Money
    forecast: Demand


def gamble(seed: int) -> Gamble:
    """All of it drawn from one seed."""
    rng = np.random.default_rng(seed)
    hours = float(rng.uniform(4.0, 24.0))
    jobs = tuple(_job(at, hours, rng) for at in range(int(rng.integers(10, 40))))
    release_s = float(rng.choice([0.0, 30.0, 120.0]))
    kinds = (("od", Market.ON_DEMAND, 4.0, 0.0), ("spot", Market.SPOT, 1.4, 0.2))
    offers = tuple(
        Offer(
            id=name,
            gpu="T4",
            gpus_per_node=4,
            market=market,
            price=Price.from_usd_per_h(str(usd)),
            cap=Price.from_usd_per_h(str(JUMP * usd)),
            hazard_per_h=hazard,
            wind_down_s=release_s,
        )
        for name, market, usd, hazard in kinds
    )
    changes = tuple(_changes(offers, 3 * hours, rng))
    least_usd = sum(job.work for job in jobs) / SECONDS_PER_H * 1.4 / 4  # on one spot GPU each, at list price
    purse = Money.from_usd(f"{float(rng.uniform(0.3, 0.8)) * least_usd + 5.0:.2f}")
    physics = Physics(
        provision_s=float(rng.choice([0.0, 120.0])), release_s=release_s, notice_s=float(rng.choice([0.0, 120.0]))
    )
    cloud = Cloud(offers=offers, budget=Budget(purse=purse), physics=physics, market=lambda: changes)
    return Gamble(jobs=jobs, cloud=cloud, purse=purse, forecast=Demand.from_jobs(jobs, hours))


def purse(quick: bool, tell: Tell) -> Findings:
    """Never a cent over, and under 3 % left over at the median, when there is more to do than the budget pays for."""
    seeds = 25 if quick else 1_000
    over, left, finished = 0, [], []
    for seed in range(seeds):
        if seed % 100 == 0:
            tell(f"purse, seed {seed} of {seeds}")
        game = gamble(seed)
        run = simulate(
            game.jobs, PricePolicy(hour_usd=HURRY), game.cloud, seed=seed, expected=game.forecast, keep_segments=False
        )
        spent = run.record.spend[-1][1]
        over += spent > game.purse
        if run.unfinished:
            left.append(1.0 - spent.usd / game.purse.usd)
        finished.append(run.metrics.finished / run.metrics.jobs)
    p50, p90 = np.percentile(left, [50, 90]).tolist()
    checks = [
        equals(f"purse: overspent in {seeds} random workloads", over, 0, unit="runs"),
        at_most("purse: left over at the median", 100 * p50, 3.0, unit="%"),
    ]
    rows = [
        ["workloads", f"{seeds:,}"],
        ["of these with more to do than the budget pays for", f"{len(left):,}"],
        ["overspent", f"{over}"],
        ["left over, median", f"{100 * p50:.2f} %"],
        ["left over, 90th percentile", f"{100 * p90:.2f} %"],
        ["jobs that ended, mean", f"{100 * float(np.mean(finished)):.0f} %"],
    ]
    return Findings(checks=checks, tables=[StudyTable(title="A hard total budget", columns=["", "price"], rows=rows)])


def _job(at: int, hours: float, rng: np.random.Generator) -> Job:
    return Job(
        id=f"job-{at}",
        submit_s=float(rng.uniform(0.0, hours)) * SECONDS_PER_H,
        work=float(rng.lognormal(1.0, 1.0)) * SECONDS_PER_H,
        speed=SPEEDS[int(rng.integers(len(SPEEDS)))],
        max_gpus=16,
        restart_s=30.0,
        checkpoint_every_s=600.0,
        checkpoint_write_s=10.0,
    )


def _changes(offers: tuple[Offer, ...], hours: float, rng: np.random.Generator) -> Iterator[MarketChange]:
    """Prices that jump up to their cap and back, and spot nodes that come and go, in order of time."""
    at_s = 0.0
    while (at_s := at_s + float(rng.exponential(1800.0))) < SECONDS_PER_H * hours:
        offer = offers[int(rng.integers(len(offers)))]
        if offer.market is Market.SPOT and rng.random() < 0.5:
            yield AvailabilityChanged(at_s, offer.id, int(rng.integers(0, 12)))
        else:
            factor = float(np.exp(rng.uniform(np.log(0.5), np.log(JUMP))))
            yield PriceChanged(at_s, offer.id, Price(int(offer.price.micro_usd_per_h * factor)))
