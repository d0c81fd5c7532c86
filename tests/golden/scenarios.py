"""Lives whose every event and order is kept in `logs/`: what follows from an event must not change by accident.

Nineteen are simulations, at least one for each policy, over owned, rented and spot machines; three are told to the
kernel by hand, for what no simulation does (a plan above the limits, another price list, a purse that is spent).
`python -m tests.golden.record` writes the logs anew, which is right only where other orders are meant to follow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import (
    BudgetChanged,
    JobCancelled,
    JobChanged,
    NodeLost,
    NodeNoticed,
    OffersChanged,
    PriceChanged,
    TimerFired,
)
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse, RetryOffer
from sublet.errors import MissingData
from sublet.market.traces import load_trace
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup

SIMULATED = {
    "boa": "shockwave-120 --jobs 20 --policy boa --average 40 --provision-s 60 --restart-s 30",
    "boa-ideal": "poisson:rate=30,n=40,seed=3 --policy boa-ideal --average 60 --restart-s 20",
    "elastic-batch": "pollux-1 --jobs 25 --policy elastic-batch --gpus 16 --restart-s 30 --round-s 60",
    "equal": "gavel-medium --policy equal --gpus 16 --restart-s 10",
    "fifo": "tiresias-60 --jobs 40 --policy fifo --gpus 32 --provision-s 60",
    "greedy-keep": "pollux-2 --jobs 20 --policy greedy-keep --gpus 16 --restart-s 30",
    "greedy-speed": "pollux-3 --jobs 20 --policy greedy-speed --gpus 24 --restart-s 30",
    "greedy-time": "pollux-4 --jobs 20 --policy greedy-time --gpus 24 --restart-s 30 --planning-s 5",
    "las": "itp-195 --jobs 40 --policy las --gpus 64 --restart-s 60",
    "max-speedup": "poisson:rate=20,n=30,seed=7 --policy max-speedup --market bamboo-p3 --speedup amdahl:0.95",
    "mip": "gavel-artifact --policy mip --gpus 8 --restart-s 30",
    "optimus": "pollux-5 --jobs 15 --policy optimus --gpus 16 --restart-s 30",
    "pollux": "pollux-6 --jobs 12 --policy pollux --gpus 16 --restart-s 30 --round-s 120",
    "price": "pollux-1 --jobs 20 --policy price --market skypilot-v100-2023-04 --as-gpu T4 --restart-s 40 "
    "--offer aws:g4dn.12xlarge:us-east-1 --purse 200 --planning-s 1",
    "sia": "pollux-2 --jobs 12 --policy sia --gpus 32 --restart-s 30 --round-s 120",
    "price-average": "shockwave-120 --jobs 20 --policy price --average 30 --restart-s 60 --provision-s 120",
    "price-cluster": "pollux-3 --jobs 25 --policy price --gpus 16 --restart-s 30",
    "srtf": "poisson:rate=60,n=40,seed=2 --policy srtf --gpus 32 --restart-s 15 --provision-s 30",
    "tiresias": "gavel-small --policy tiresias --gpus 8 --restart-s 10",
}


def simulated(arguments: str, folder: Path) -> list[str]:
    """The log of one simulation."""
    log, words = folder / "log.jsonl", arguments.split()
    if "--market" in words:
        try:
            load_trace(words[words.index("--market") + 1])
        except MissingData as missing:  # some records are not ours to ship
            pytest.skip(str(missing))
    assert run(["simulate", *words, "--log", str(log), "--quiet", "--json"]) == 0
    return log.read_text(encoding="utf-8").splitlines()


def refused_plans(folder: Path) -> list[str]:
    """Too many dollars, too many GPUs: nothing of it is done; that an offer may be had again calls for another plan."""
    driver = Driver(
        [an_offer("o", pool="p")], limits={"o": Limit(max_nodes=3)}, budget=Budget(burn=Price.from_usd_per_h("2.5"))
    )
    driver.submit(a_job("a", gpus=4), a_job("b", gpus=8))
    driver.plan(Plan(hold={"o": 2}, shapes={"a": Shape("p", 4)}))
    for plan in (Plan(hold={"o": 3}), Plan(hold={"o": 2}, shapes={"b": Shape("p", 99)})):
        driver.expect_refusal(plan)
        driver.tell(TimerFired(driver.now_s + 5.0, RetryOffer("o")))  # before the kernel's own timer
    driver.settle(MaxSpeedup())
    return driver.journal


def another_price_list(folder: Path) -> list[str]:
    """Offers come and go, prices move, nodes are noticed and taken, a job is paused and one is cancelled."""
    cheap, dear = an_offer("o", pool="p"), an_offer("d", pool="q")
    driver = Driver([cheap], limits={"o": Limit(max_nodes=3)})
    driver.submit(a_job("a", gpus=4, max_gpus=8), a_job("b", gpus=2))
    driver.settle(MaxSpeedup())
    driver.tell(PriceChanged(10.0, "o", Price.from_usd_per_h("1.5")))
    driver.tell(OffersChanged(20.0, (cheap, dear), {"o": Limit(max_nodes=1), "d": Limit(max_nodes=2)}, {"q": 8}))
    driver.settle(MaxSpeedup())
    node_id = min(driver.kernel.cluster.nodes)
    driver.tell(NodeNoticed(30.0, node_id, 40.0))
    driver.settle(MaxSpeedup())
    if node_id in driver.kernel.cluster.nodes:  # else it was given back at the notice
        driver.tell(NodeLost(40.0, node_id))
    driver.settle(MaxSpeedup())
    driver.tell(OffersChanged(50.0, (dear,), {"d": Limit(max_nodes=2)}, {}))
    driver.settle(MaxSpeedup())
    driver.tell(JobChanged(60.0, a_job("b", gpus=2, paused=True)))
    driver.settle(MaxSpeedup())
    driver.tell(JobChanged(70.0, a_job("b", gpus=2)))
    driver.settle(MaxSpeedup())
    driver.tell(JobCancelled(80.0, "a"))
    driver.settle(MaxSpeedup())
    return driver.journal


def spent_purse(folder: Path) -> list[str]:
    """Nodes are given back as a purse runs out, and rented again when it is filled."""
    driver = Driver([an_offer("o", pool="p")], budget=Budget(purse=Money.from_usd("3")))
    driver.submit(a_job("a", gpus=8, min_gpus=1), a_job("b", gpus=4, min_gpus=1))
    driver.settle(MaxSpeedup())
    for _ in range(12):
        if CheckPurse() not in driver.timers:
            break
        at_s = driver.timers.pop(CheckPurse())
        driver.tell(TimerFired(at_s, CheckPurse()))
        driver.settle(MaxSpeedup())
    driver.tell(BudgetChanged(driver.now_s + 60.0, Budget(purse=Money.from_usd("9"))))
    driver.settle(MaxSpeedup())
    return driver.journal


def _simulation(arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: simulated(arguments, folder)


OUTSIDE = {"price"}  # its market is a record that does not ship
SCENARIOS: dict[str, Callable[[Path], list[str]]] = {
    **{name: _simulation(arguments) for name, arguments in SIMULATED.items()},
    "refused-plans": refused_plans,
    "another-price-list": another_price_list,
    "spent-purse": spent_purse,
}
