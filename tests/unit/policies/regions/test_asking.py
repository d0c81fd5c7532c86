"""Several jobs look for places: each in turn, and asked again when the first of them wants it."""

from __future__ import annotations

import math

import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.policies.regions.policy import WAITS, serve_by_place
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SURE = an_offer("sure", gpus=1, pool="sure", market=Market.ON_DEMAND)


def job(job_id, deadline_s=None, gpus=1):
    return a_job(job_id, work=3600.0 * gpus, gpus=gpus, deadline_s=deadline_s, restart_s=0.0, checkpoint_every_s=1.0)


def asked(choose, *jobs, limit=None):
    driver = Driver([SURE], limits={"sure": Limit(max_nodes=limit)})
    driver.submit(*jobs)
    return serve_by_place(driver.kernel.snapshot(), choose)


@pytest.mark.parametrize(
    ("deadlines_s", "again_s"),
    [((None, None), 300.0), ((None, 3701.0), 100.0), ((3701.0, 3651.0), 50.0), ((99_999.0, 99_999.0), 300.0)],
)
def test_who_waits_looks_again_in_five_minutes_or_at_its_last_call(deadlines_s, again_s):
    """An hour of work is left, and a second is at risk."""
    jobs = [job(name, deadline_s) for name, deadline_s in zip("ab", deadlines_s, strict=True)]
    plan = asked(lambda *_: [], *jobs)
    assert plan.shapes == {}
    assert plan.ask_again_s == pytest.approx(again_s)


def test_who_has_a_place_is_not_looked_at_again_and_takes_it_from_the_next():
    seen = []

    def first_with_room(places, here, region, clock):
        seen.append(([place.has_room for place in places], here, region, clock.slack_h))
        return [place for place in places if place.has_room]

    plan = asked(first_with_room, job("a"), job("b"), job("c"), limit=2)
    assert {job_id: shape.pool for job_id, shape in plan.shapes.items()} == {"a": "sure", "b": "sure"}
    assert [room for room, *_ in seen] == [[True], [True], [False]]
    assert seen[0][1:] == (None, "", math.inf)
    assert plan.ask_again_s == 300.0  # for the third, which waits
    assert plan.hold == {"sure": 2}
    assert WAITS not in plan.reasons.values()  # it had nothing to give back


def test_who_asks_for_a_better_place_beside_takes_both_from_the_next():
    """The first stays where it is and has a node of the other region come: nothing of either is left to the second."""
    offers = [an_offer(name, gpus=1, pool=name, market=Market.ON_DEMAND) for name in ("here", "there")]
    driver = Driver(offers, limits={"here": Limit(max_nodes=1), "there": Limit(max_nodes=1)})
    driver.submit(job("a"))
    driver.settle(Only("here"))
    driver.submit(job("b"))
    seen = []

    def better(places, here, region, clock):
        room = {place.shape.pool: place.has_room for place in places}
        seen.append((room, None if here is None else here.shape.pool))
        return [place for place in places if place.has_room and place.shape.pool == "there"] if room["there"] else []

    plan = serve_by_place(driver.kernel.snapshot(), better)
    assert plan.shapes == {}
    assert plan.hold == {"here": 1, "there": 1}
    assert plan.ask_again_s == driver.now_s + 1.0
    assert seen[0] == ({"here": True, "there": True}, "here")
    assert seen[1] == ({"here": False, "there": False}, None)


class Only:
    """Everybody in one pool."""

    def __init__(self, pool):
        self._pool = pool

    def decide(self, snapshot):
        return serve_by_place(snapshot, lambda places, *_: [each for each in places if each.shape.pool == self._pool])
