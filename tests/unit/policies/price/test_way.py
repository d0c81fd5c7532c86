"""The way of a decision through `price` is the one that is drawn, and it does not grow unnoticed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import sublet
from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

ROOT = Path(sublet.__file__).parent
DRAWN = ROOT.parents[1] / "docs" / "architecture" / "plans.md"
ROOMS = ("policies/", "planning/", "perf/preemption")  # what a job's speed model and solvers do is their own affair
MOST_CALLS = 30  # different ones from file to file; there were 48 when each part read the market for itself


def calls_of(decide):
    """(calling file, called file, called function) of all calls from one file of ours to another's."""
    found = set()

    def watch(frame, event, _):
        if event != "call":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(ROOT)):
            caller = caller.f_back
        here = frame.f_code.co_filename
        if here.startswith(str(ROOT)) and caller is not None and caller.f_code.co_filename != here:
            names = [Path(each).relative_to(ROOT).as_posix() for each in (caller.f_code.co_filename, here)]
            found.add((*names, frame.f_code.co_qualname))

    sys.setprofile(watch)
    try:
        decide()
    finally:
        sys.setprofile(None)
    return {each for each in found if each[1].startswith(ROOMS)}


def test_a_decision_goes_through_the_files_that_are_drawn_and_no_others():
    offers = [
        an_offer("s", gpus=1, usd_per_h="1", pool="spot", hazard_per_h=0.1),
        an_offer("d", gpus=1, usd_per_h="3", pool="steady", market=Market.ON_DEMAND),
    ]
    limits = {"s": Limit(max_nodes=6), "d": Limit(max_nodes=2)}
    driver = Driver(offers, limits=limits, budget=Budget(purse=Money.from_usd("900")))
    driver.submit(*(a_job(f"j{n}", work=36_000.0, max_gpus=8, speed=Amdahl(parallel=0.9)) for n in range(3)))
    driver.settle(Price())
    driver.submit(a_job("late", work=36_000.0, max_gpus=8, speed=Amdahl(parallel=0.9)))
    now = driver.kernel.snapshot()
    calls = calls_of(lambda: Price().decide(now))
    assert len(calls) <= MOST_CALLS
    drawing = DRAWN.read_text(encoding="utf-8").partition("## An event in `price`")[2].partition("\n## ")[0]
    drawn = set(re.findall(r"[a-z_]+/[a-z_/]+\.py", drawing))
    assert {room for _, room, _ in calls} <= drawn
    assert all((ROOT / room).is_file() for room in drawn)
    assert ("policies/price/congestion.py", "planning/terms.py", "Terms.obtainable") in calls
    readers = {caller for caller, room, _ in calls if room == "planning/affordable.py"}
    assert readers == {"planning/terms.py", "planning/draft.py"}
