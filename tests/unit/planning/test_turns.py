"""First come, first served: who is asked first, where, and for how much of what is left."""

from __future__ import annotations

from sublet.domain.budget import Limit
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
