"""The way of an event through `price` is the one that is drawn, and it does not grow unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import sublet
from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.sim.simulator import Cloud
from sublet.testing.values import an_offer
from tests.figures import HERE, journeys
from tests.journey import JOURNEYS, journey_on

ROOT = Path(sublet.__file__).parent
DRAWN = ROOT.parents[1] / "docs" / "architecture" / "plans.md"
OURS = ("policies", "planning", "perf.preemption")  # what speed models and solvers do is their own affair
MOST = {"one rented pool": (11, 6), "three kinds, paid for": (15, 6)}  # stays and rooms


def on_a_purse():
    """Spot and on demand in a pool each, and money for less than all could use."""
    offers = [
        an_offer("s", gpus=1, usd_per_h="1", pool="spot", hazard_per_h=0.1),
        an_offer("d", gpus=1, usd_per_h="3", pool="steady", market=Market.ON_DEMAND),
    ]
    limits = {"s": Limit(max_nodes=6), "d": Limit(max_nodes=2)}
    return journey_on(Cloud(offers=tuple(offers), limits=limits, budget=Budget(purse=Money.from_usd("900"))))


def test_an_event_enters_few_modules_and_few_packages():
    """In a process apart: what is kept of other tests would be taken over, or told apart from what comes."""
    counts, calls = journeys(HERE)
    for title, (stays, rooms) in MOST.items():
        assert int(counts[f"an event in price, {title}: stays"]) <= stays
        assert int(counts[f"an event in price, {title}: rooms"]) <= rooms
    assert len(MOST) == len(JOURNEYS) == calls.count("Price.decide") == calls.count("read_jobs")
    assert calls.count("Terms.from_snapshot") == len(MOST)  # by each decision once


def test_a_decision_goes_through_the_files_that_are_drawn_and_no_others():
    drawing = DRAWN.read_text(encoding="utf-8").partition("## An event in `price`")[2].partition("\n## ")[0]
    drawn = set(re.findall(r"[a-z_]+/[a-z_/]+\.py", drawing))
    assert all((ROOT / file).is_file() for file in drawn)
    calls = [call for journey in (*JOURNEYS.values(), on_a_purse) for call in journey().calls]
    ours = {call.module.removeprefix("sublet.") for call in calls if call.room.startswith(OURS)}
    assert {name.replace(".", "/") + ".py" for name in ours} <= drawn
    assert "policies.price.congestion" in ours
