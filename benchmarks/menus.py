"""How long it takes to weigh all shapes of a fleet: five kinds of GPU, both markets, a hundred jobs that all differ.

CPU milliseconds of this process, medians. Beside pools with both markets stand the same offers as a pool for each
market, where shapes have no part on demand. Menus are kept from one decision to the next until what is believed of a
market has changed by enough; a decision that makes some anew is counted by itself. `python -m benchmarks.menus`
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.money import Price as Rent
from sublet.domain.offer import Market, Offer
from sublet.perf.speedup import Amdahl
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of_all
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver

JOBS = 100
WIDEST, NARROWER = 32, 23  # GPUs of a job: with both markets some 430 shapes, and the 300 of the goal
SIZES = (1, 8, 8, 4, 1)  # GPUs of a node, by kind
SPOT_GPUS, STEADY_GPUS = 120, 80  # of each kind: a fifth of what all could use
PRICE_GOAL_MS, DECIDE_GOAL_MS = 2.0, 50.0
TIMES = 11


def main() -> None:
    """Menus, prices and decisions."""
    print(f"a fleet of {JOBS} jobs that all differ, {len(SIZES)} kinds, spot and on demand (CPU ms, median)")
    print(f"  {'pools':22}{'shapes':>8}{'100 menus':>11}{'re-priced':>11}{'decide':>9}{'with new menus':>16}")
    separate, both = "one for each market", "with both markets"
    for name, mixed, widest in ((separate, False, WIDEST), (both, True, NARROWER), (both, True, WIDEST)):
        found = _measure(mixed=mixed, widest=widest)
        print(
            f"  {name:22}{found.shapes:8.0f}{found.built_ms:11.1f}{found.priced_ms:11.2f}"
            f"{found.decided_ms:9.1f}{found.anew_ms:16.1f}"
        )
    print(f"  goals with both markets and 300 shapes: re-priced {PRICE_GOAL_MS:g} ms, decide {DECIDE_GOAL_MS:g} ms\n")


def fleet(*, mixed: bool, widest: int = WIDEST) -> Driver:
    """The jobs have come, and nothing has been decided."""
    offers, limits = [], {}
    for kind, size in enumerate(SIZES):
        for market, usd, gpus in ((Market.SPOT, 1.0, SPOT_GPUS), (Market.ON_DEMAND, 3.0, STEADY_GPUS)):
            rent = Rent.from_usd_per_h(f"{(1 + kind) * size * usd:.2f}")
            pool = f"k{kind}" if mixed else ""
            hazard = {"hazard_per_h": 0.05, "notice_s": 120.0} if market is Market.SPOT else {}
            offer = Offer(
                id=f"k{kind}-{market}",
                gpu=f"K{kind}",
                gpus_per_node=size,
                market=market,
                price=rent,
                pool=pool,
                **hazard,
            )
            offers.append(offer)
            limits[offer.id] = Limit(max_nodes=gpus // size)
    driver = Driver(offers, limits=limits)
    driver.submit(*(_job(number, widest) for number in range(JOBS)))
    return driver


def _job(number: int, widest: int) -> Job:
    kinds = {f"K{kind}": 1.0 + 0.7 * kind + 0.01 * (number % 7) for kind in range(len(SIZES))}
    speed = Amdahl(parallel=0.9 + 0.0009 * number, kinds=kinds)
    work = 3600.0 * (20 + number)
    return Job(id=f"j{number:03}", submit_s=0.0, work=work, speed=speed, max_gpus=widest, restart_s=60.0)


class Figures(NamedTuple):
    """Of one fleet; times in ms."""

    shapes: float  # of a job, on average
    built_ms: float
    priced_ms: float
    decided_ms: float  # where all menus are as they were
    anew_ms: float  # where some are not


def _measure(*, mixed: bool, widest: int) -> Figures:
    driver = fleet(mixed=mixed, widest=widest)
    snapshot = driver.kernel.snapshot()
    terms = Terms.from_snapshot(snapshot)
    states = list(snapshot.waiting.by(lambda state: state.seq))
    menus, built_ms = _ms(lambda: [menu_of(state.job, terms.sites) for state in states])
    values = [5.0] * len(menus)

    def price() -> None:
        options_of_all(menus, states, 0.0, values, terms.rent_R)

    priced_ms = median(_ms(price)[1] for _ in range(TIMES))
    policy = Price()
    driver.settle(policy)
    kept, anew, last = [], [], menus
    for step in range(1, 2 * TIMES + 1):  # one kind at a time has fewer spot nodes, or as many as before
        offer = f"k{step % len(SIZES)}-{Market.SPOT}"
        size = SIZES[step % len(SIZES)]
        driver.tell(AvailabilityChanged(600.0 * step, offer, SPOT_GPUS // size - step % 3))
        now = driver.kernel.snapshot()
        took_ms = _ms(lambda now=now: policy.decide(now))[1]
        used = [menu_of(state.job, Terms.from_snapshot(now).sites) for state in states]
        (kept if all(map(operator.is_, used, last)) else anew).append(took_ms)
        last = used
        driver.settle(policy)
    shapes = sum(len(menu.shapes) for menu in menus) / len(menus)
    return Figures(shapes, built_ms, priced_ms, median(kept), median(anew))


def _ms(work: Callable[[], object]) -> tuple[object, float]:
    began = time.process_time()
    done = work()
    return done, 1000 * (time.process_time() - began)


if __name__ == "__main__":
    main()
