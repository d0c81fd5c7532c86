"""First come, first served: who is asked first, where, and for how much of what is left."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, NodeNoticed
from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import Shape
from sublet.perf.speedup import ConstantRate, Linear
from sublet.planning.turns import TOO_LITTLE, fastest_shape, serve_in_turn
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OFFERS = [an_offer("o", gpus=1, pool="p"), an_offer("r", gpus=1, pool="q")]


def driver_of(*jobs, nodes=4):
    driver = Driver(OFFERS, limits={offer.id: Limit(max_nodes=nodes) for offer in OFFERS})
    driver.submit(*jobs)
    return driver


def all_of_it(state: JobState, pool: Pool, gpus: int) -> Shape:
    return Shape(pool.name, gpus)


def only_in(name):
    return lambda state, pool, gpus: all_of_it(state, pool, gpus) if pool.name == name else None


class Turn:
    """A policy of nothing but turns."""

    def __init__(self, choose):
        self.choose = choose

    def decide(self, snapshot):
        return serve_in_turn(snapshot, self.choose).plan()


def test_a_job_that_runs_is_asked_for_its_own_pool_first():
    for own in ("p", "q"):
        driver = driver_of(a_job("a", gpus=1, max_gpus=2))
        driver.settle(Turn(only_in(own)))
        asked = []
        serve_in_turn(driver.kernel.snapshot(), lambda state, pool, gpus, asked=asked: asked.append(pool.name))
        assert asked[0] == own
        assert sorted(asked) == ["p", "q"]


def test_where_its_own_pool_will_do_no_job_leaves_it():
    driver = driver_of(a_job("a", gpus=1, max_gpus=2, pools=("q",)), a_job("b", gpus=1, max_gpus=2))
    driver.settle(Turn(only_in("q")))
    plan = serve_in_turn(driver.kernel.snapshot(), all_of_it).plan()
    assert plan.shapes == {}
    assert plan.hold == {"o": 0, "r": 4}


def test_each_gets_what_those_before_it_left_and_no_more_than_it_may_have():
    jobs = [a_job(name, gpus=1, max_gpus=3, pools=("p",)) for name in "abc"]
    plan = serve_in_turn(driver_of(*jobs).kernel.snapshot(), all_of_it).plan()
    assert plan.shapes == {"a": Shape("p", 3), "b": Shape("p", 1)}


def test_who_comes_too_late_gives_back_what_it_has_and_is_told_why():
    driver = driver_of(a_job("a", gpus=1, max_gpus=2, pools=("p",)), a_job("b", gpus=1, max_gpus=2, pools=("p",)))
    driver.settle(Turn(all_of_it))
    first = serve_in_turn(driver.kernel.snapshot(), lambda state, pool, gpus: Shape("p", 4) if state.seq == 0 else None)
    assert first.plan().shapes == {"a": Shape("p", 4), "b": None}
    assert first.plan().reasons == {"b": TOO_LITTLE}


def told_of_falls(*nodes, lead_s=0.0):
    """Two jobs of two GPUs each on four nodes, of which some will be taken."""
    facts = {"gpus": 2, "min_gpus": 2, "max_gpus": 2, "pools": ("p",), "survives": True, "lead_s": lead_s}
    driver = Driver(OFFERS)
    driver.tell(AvailabilityChanged(0.0, "o", 4))
    driver.submit(a_job("a", **facts), a_job("b", **facts))
    driver.settle(Turn(all_of_it))
    on = {job_id: [node_id for node_id, _ in held] for job_id, held in driver.kernel.tenancy.placement.items()}
    for job_id, place in nodes:
        driver.tell(NodeNoticed(10.0, on[job_id][place], 99.0))
    return driver


@pytest.mark.parametrize(
    ("nodes", "lead_s", "shapes"),
    [
        ([("b", 0)], 0.0, {}),  # it lacks nothing but what is about to be taken
        ([("b", 0)], 5.0, {"b": None}),  # it has to save first
        ([("a", 0)], 0.0, {"b": None}),  # what will be left is for the first in line
        ([("a", 0), ("b", 0)], 0.0, {"b": None}),
        ([("a", 0), ("a", 1), ("b", 0)], 0.0, {}),  # neither finds anything: both go on till then
    ],
)
def test_who_finds_nothing_since_its_own_is_about_to_be_taken_stays_until_it_is(nodes, lead_s, shapes):
    driver = told_of_falls(*nodes, lead_s=lead_s)
    plan = serve_in_turn(driver.kernel.snapshot(), all_of_it).plan()
    assert plan.shapes == shapes
    driver.settle(Turn(all_of_it))  # no plan is refused


def one_of_two(*places, behind=()):
    """A job on both GPUs that there are, of which those at these places will be taken, and others behind it."""
    facts = {"gpus": 2, "min_gpus": 2, "max_gpus": 2, "survives": True, "lead_s": 0.0}
    driver = Driver(OFFERS[:1])
    driver.tell(AvailabilityChanged(0.0, "o", 2))
    driver.submit(a_job("a", **facts), *behind)
    driver.settle(Turn(all_of_it))
    on = [node_id for node_id, _ in driver.kernel.tenancy.placement["a"]]
    for place in places:
        driver.tell(NodeNoticed(10.0, on[place], 99.0))
    return driver


def test_those_behind_who_stays_get_what_its_other_gpus_leave():
    driver = one_of_two(0, behind=[a_job("b", gpus=1, max_gpus=1)])
    assert serve_in_turn(driver.kernel.snapshot(), all_of_it).plan().shapes == {}
    driver.settle(Turn(all_of_it))  # no plan is refused


def test_who_will_lose_all_stays_too_though_nothing_is_left_for_anybody():
    driver = one_of_two(0, 1)
    assert serve_in_turn(driver.kernel.snapshot(), all_of_it).plan().shapes == {}


def test_who_chooses_nothing_of_what_there_is_does_not_stay():
    driver = told_of_falls(("a", 0))
    plan = serve_in_turn(
        driver.kernel.snapshot(), lambda state, pool, gpus: all_of_it(state, pool, 2) if state.seq else None
    ).plan()
    assert plan.shapes == {"a": None}


class UpToThree(ConstantRate):
    """More than three GPUs are no faster."""

    def rate(self, gpu, spread, done):
        return float(min(3, sum(spread)))


def test_of_shapes_that_are_as_fast_the_narrowest_is_taken():
    jobs = [a_job(name, gpus=1, max_gpus=8, speed=speed) for name, speed in (("a", UpToThree()), ("b", Linear()))]
    snapshot = driver_of(*jobs).kernel.snapshot()
    chosen = {
        state.job.id: fastest_shape(state, snapshot.pools["p"], 4)
        for state in snapshot.waiting.by(lambda state: state.seq)
    }
    assert chosen == {"a": Shape("p", 3), "b": Shape("p", 4)}
