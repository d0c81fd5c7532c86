"""On a tight budget jobs are not so narrow that their nodes stand half empty."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

from sublet.domain.budget import Budget
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer

H = 3600.0
AIMS_USD_PER_H = ("16", "24", "40")


@cache
def run(aim):
    """A hundred and twenty jobs that do not scale well, on nodes of four GPUs at a dollar each."""
    rng, at_s, jobs = random.Random(5), 0.0, []
    for number in range(120):
        at_s += rng.expovariate(20 / H)
        speed = Amdahl(parallel=rng.choice((0.8, 0.9, 0.95)))
        work = rng.lognormvariate(0.0, 1.0) * H
        jobs.append(a_job(f"j{number}", work=work, speed=speed, submit_s=at_s, max_gpus=8, restart_s=30.0))
    offer = an_offer("o", gpus=4, usd_per_h="4", market=Market.ON_DEMAND, boot_s=120.0)
    budget = Budget(average=Usd.from_usd_per_h(aim))
    return simulate(jobs, Price(), Cloud(offers=[offer], budget=budget, physics=Physics(provision_s=120.0))).metrics


def test_who_aims_at_less_does_not_pay_more():
    bills = [run(aim).usd for aim in AIMS_USD_PER_H]
    assert all(less <= 1.02 * more for less, more in pairwise(bills)), bills


def test_nine_tenths_of_what_is_paid_for_is_used():
    for aim in AIMS_USD_PER_H:
        metrics = run(aim)
        assert metrics.used_gpu_hours + metrics.paused_gpu_hours >= 0.9 * metrics.gpu_hours, aim
