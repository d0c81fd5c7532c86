"""The way of an event through `price` is the one that is drawn, and it does not grow unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import sublet
from tests.figures import HERE, journeys
from tests.journey import JOURNEYS, journey_on, short_pools

ROOT = Path(sublet.__file__).parent
DRAWN = ROOT.parents[1] / "docs" / "architecture" / "plans.md"
OURS = ("policies", "planning", "perf.preemption")  # what speed models and solvers do is their own affair
MOST = {"one rented pool": (11, 6), "three kinds, paid for": (15, 6)}  # stays and rooms


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
    calls = [call for cloud in (*JOURNEYS.values(), short_pools) for call in journey_on(cloud()).calls]
    ours = {call.module.removeprefix("sublet.") for call in calls if call.room.startswith(OURS)}
    assert {name.replace(".", "/") + ".py" for name in ours} <= drawn
    assert "policies.price.congestion" in ours
