"""A simulation ends when nothing can change any more, also where a policy thinks for longer than it wants to wait."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, PlanMade
from sublet.domain.money import Money
from sublet.domain.plan import Plan
from sublet.errors import NeverAtRest
from sublet.kernel import requests
from sublet.sim import simulator
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from sublet_lab.rivals.optimus import Optimus

PENNILESS = Budget(purse=Money())
TWO_JOBS = [a_job("a", work=100.0), a_job("b", work=100.0, submit_s=5.0)]  # the second while a plan is made


@dataclass(frozen=True)
class Impatient:
    """Gives nobody anything, and wants to be asked again sooner than it can answer."""

    every_s: float = 10.0

    def decide(self, snapshot):
        return Plan(ask_again_s=snapshot.now_s + self.every_s)


def plans(policy, *, planning_s, round_s=0.0, changes=()):
    cloud = Cloud(
        offers=[an_offer("o", pool="p")],
        limits={"o": Limit(max_nodes=2)},
        budget=PENNILESS,
        physics=Physics(planning_s=planning_s, round_s=round_s),
        market=Changes(AvailabilityChanged(at_s, "o", 1) for at_s in changes),
    )
    made = []
    run = simulate(TWO_JOBS, policy, cloud, checked=True, watch=lambda event, _: made.append(type(event)))
    assert run.unfinished == ("a", "b")
    return made.count(PlanMade)


@pytest.mark.parametrize("every_s", [1.0, 10.0, 20.0, 30.0])
def test_a_policy_that_thinks_for_longer_than_it_wants_to_wait_is_asked_a_few_times_in_vain(every_s):
    assert plans(Impatient(every_s), planning_s=20.0) <= 2 + requests.MOST_OUTRUN


def test_rounds_that_end_as_the_policy_wants_to_be_asked_again_are_no_news():
    """Plans of 20 s at every half minute, asked for again after a minute: the timer rings as the plan comes."""
    assert plans(Optimus(), planning_s=20.0, round_s=30.0, changes=(620.0, 640.0)) < 40


def test_what_goes_round_in_circles_is_told_and_does_not_run_for_ever(monkeypatch):
    monkeypatch.setattr(requests, "MOST_OUTRUN", 10**9)  # every timer makes the plan under way stale, as it once did
    monkeypatch.setattr(simulator, "MOST_IN_VAIN", 1_000)
    with pytest.raises(NeverAtRest, match="nothing else is to come, 1,001 times in a row") as found:
        plans(Impatient(), planning_s=20.0)
    assert any(isinstance(event, PlanMade) for event in found.value.last)


def test_time_that_stands_still_is_told(monkeypatch):
    monkeypatch.setattr(simulator, "MOST_AT_ONCE", 2)
    jobs = [a_job(f"j{at}") for at in range(3)]
    with pytest.raises(NeverAtRest, match="time stands still, 3 times in a row"):
        simulate(jobs, Impatient(), Cloud(offers=[an_offer("o", pool="p")]))
