"""GPUs on demand that are still to come, and who goes half of the way to them so that nobody waits for another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import UNLIMITED
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.kernel.cluster import NodePhase
from sublet.kernel.placing import half_way, owed
from sublet.kernel.supply import Supply
from sublet.testing.values import a_job, an_offer

OFFERS = (
    an_offer("spot", gpus=4, pool="p"),
    an_offer("sure", gpus=4, pool="p", market=Market.ON_DEMAND),
    an_offer("other", gpus=4, pool="q"),
)


def ready(supply, node_id, offer_id):
    supply.cluster.add(node_id, supply.offers[offer_id])
    supply.cluster.ready(supply.cluster.nodes[node_id])


def running(job_id, gpus, steady, **facts):
    shape = Shape("p", gpus, steady=steady)
    facts = {"phase": Phase.RUNNING, "shape": shape, "gpus": gpus, **facts}
    return JobState(job=a_job(job_id, gpus=gpus, max_gpus=8), seq=0, **facts)


class World:
    """ "a" has four GPUs on spot and is to have two of four on demand; "b" sits on three of four on demand."""

    def __init__(self):
        self.supply = Supply(OFFERS, {}, {}, UNLIMITED)
        ready(self.supply, "s1", "spot")
        ready(self.supply, "d1", "sure")
        self.supply.hold = {"spot": 1, "sure": 1, "other": 0}
        self.active = {"a": running("a", 4, 2), "b": running("b", 3, 0)}
        self.placement = {"a": (("s1", 4),), "b": (("d1", 3),)}
        for job_id, placement in self.placement.items():
            for node_id, gpus in placement:
                self.supply.cluster.take(job_id, node_id, gpus)

    def step(self, line=("a",)):
        return half_way(self.supply, "p", line, self.active, self.placement)

    def told(self, job_id="a", **facts):
        self.active[job_id] = replace(self.active[job_id], **facts)


@pytest.fixture
def world():
    return World()


def test_the_first_takes_what_is_free_on_demand_for_spot_gpus_of_its_own(world):
    state, shape, placement = world.step()
    assert state is world.active["a"]
    assert shape == Shape("p", 4, steady=1)
    assert dict(placement) == {"s1": 3, "d1": 1}


def test_what_it_has_on_demand_already_counts(world):
    world.told(shape=Shape("p", 4, steady=4))
    ready(world.supply, "d2", "sure")
    world.supply.hold["sure"] = 2
    world.supply.cluster.give("a", "s1", 1)
    world.supply.cluster.take("a", "d2", 1)
    world.supply.cluster.take("c", "d2", 3)
    world.placement["a"] = (("d2", 1), ("s1", 3))
    _, shape, placement = world.step()
    assert shape.steady == 2
    assert dict(placement) == {"d2": 1, "d1": 1, "s1": 2}


def test_nobody_goes_half_way_who_could_go_all_of_it_or_does_not_run_as_it_was_promised(world):
    world.told(shape=Shape("p", 4, steady=1))
    assert world.step() is None  # it is enough: it waits for something else
    world = World()
    for facts in ({"phase": Phase.BROKEN}, {"shape": None}, {"shape": Shape("p", 3, steady=2)}):
        world.told(**facts)
        assert world.step() is None
        world.told(phase=Phase.RUNNING, shape=Shape("p", 4, steady=2))
    assert world.step() is not None
    assert world.step(line=["gone", "a"]) is not None  # who has ended is passed over
    assert world.step(line=["gone"]) is None
    assert world.step(line=["b", "a"])[0] is world.active["a"]


def test_nor_from_a_node_that_will_be_taken(world):
    world.supply.cluster.withdraw(world.supply.cluster.nodes["s1"], NodePhase.NOTICED)
    world.supply.hold["spot"] = 0
    assert world.step() is None


def test_nor_where_nothing_is_free_on_demand(world):
    world.supply.cluster.take("b", "d1", 1)
    assert world.step() is None


def test_nor_while_something_else_may_bring_it(world):
    world.told("b", phase=Phase.RESIZING)
    assert world.step() is None
    world.told("b", phase=Phase.RUNNING)
    world.supply.hold["sure"] = 2  # a node will be asked for
    assert world.step() is None
    world.supply.hold["sure"] = 1
    assert world.step() is not None
    world.supply.hold["other"] = 1  # of another pool: that brings nothing
    assert world.step() is not None


def test_in_a_pool_of_one_market_there_is_no_way_at_all():
    supply = Supply([OFFERS[1]], {}, {}, UNLIMITED)
    ready(supply, "d1", "sure")
    supply.hold = {"sure": 1}
    assert half_way(supply, "p", ["a"], {"a": running("a", 4, 2)}, {}) is None


def test_owed_is_what_is_promised_on_demand_and_not_there_but_to_one(world):
    world.active |= {"c": running("c", 8, 3), "d": running("d", 2, 2, shape=Shape("q", 2, steady=2))}
    active, cluster = world.active.values(), world.supply.cluster
    assert owed(cluster, "p", active, world.placement) == 2 + 3
    assert owed(cluster, "p", active, world.placement, but_to="a") == 3
    assert owed(cluster, "q", active, world.placement) == 2
    world.told("b", shape=Shape("p", 3, steady=2))  # it has three
    assert owed(cluster, "p", active, world.placement) == 2 + 3
    world.told("c", shape=None)
    assert owed(cluster, "p", active, world.placement) == 2
