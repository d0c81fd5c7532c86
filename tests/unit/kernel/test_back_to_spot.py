"""Who keeps others from which market, which nodes on demand are given up, and who leaves them for spot: by hand.

A pool of both markets with nodes of four GPUs.
"""

from __future__ import annotations

import pytest

from sublet.domain.budget import UNLIMITED
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Grid, Shape
from sublet.kernel.cluster import NodePhase
from sublet.kernel.growing import Growing
from sublet.kernel.placing import Placing
from sublet.kernel.supply import Supply
from sublet.testing.values import a_job, an_offer

SPOT, SURE = Market.SPOT, Market.ON_DEMAND
BOTH = frozenset(Market)


class World:
    """Nodes by name: those that begin with s are of spot, with d on demand, with q of a pool of spot alone."""

    def __init__(self, *nodes, hold=(1, 1)):
        offers = [an_offer("s", pool="p"), an_offer("d", pool="p", market=SURE), an_offer("q", pool="q")]
        self.supply = Supply(offers, {}, {}, UNLIMITED)
        self.cluster = self.supply.cluster
        for node_id in nodes:
            self.cluster.add(node_id, self.supply.offers[node_id[0]])
            self.cluster.ready(self.cluster.nodes[node_id])
        self.supply.hold = {"s": hold[0], "d": hold[1], "q": 0}
        self.placing = Placing(self.supply, Growing(self.supply))

    def take(self, **gpus):
        """So many GPUs of a node are somebody's."""
        for node_id, count in gpus.items():
            self.cluster.take("other", node_id, count)
        return self

    def given_up(self, owed=0):
        return [node.id for node in self.placing.given_up("p", owed)]

    def find(self, held, gpus, steady=0, *, owed=0, phase=Phase.RUNNING):
        for node_id, count in held.items():
            self.cluster.take("a", node_id, count)
        state = JobState(job=a_job("a", gpus=1, max_gpus=9), seq=0, shape=Shape("p", gpus, steady=steady), phase=phase)
        found = self.placing.find(state, tuple(held.items()), 0.0, owed=owed)
        return None if found is None else dict(found)


def state(gpus, steady=0, pool="p"):
    return JobState(job=a_job("a", gpus=1, max_gpus=9), seq=0, shape=Shape(pool, gpus, steady=steady))


# ---------------------------------------------------------------------- whom it keeps others from


@pytest.mark.parametrize(
    ("gpus", "steady", "waits"),
    [
        (4, 0, SPOT),
        (5, 1, SURE),  # four on spot are there: what it lacks is on demand
        (6, 1, SPOT),  # one more than there are on spot
        (6, 2, SURE),
    ],
)
def test_one_that_waits_keeps_others_from_the_market_that_it_lacks(gpus, steady, waits):
    world = World("s1", "d1")
    assert world.placing.waits_for(state(gpus, steady), ()) == {waits}


def test_its_own_gpus_on_spot_count_unless_they_will_be_taken():
    world = World("s1", "s2", "d1").take(s1=4, s2=4)
    held = (("s1", 3),)
    assert world.placing.waits_for(state(4, 1), held) == {SURE}
    assert world.placing.waits_for(state(5, 1), held) == {SPOT}
    world.cluster.withdraw(world.cluster.nodes["s1"], NodePhase.NOTICED)
    assert world.placing.waits_for(state(4, 1), held) == {SPOT}


def test_in_a_pool_of_one_market_or_on_its_way_between_pools_it_keeps_them_from_all():
    world = World("s1", "q1")
    assert world.placing.waits_for(state(4, pool="q"), ()) == BOTH
    assert world.placing.waits_for(state(4, 1), (("q1", 1),)) == BOTH
    assert world.placing.waits_for(state(4, 1), (("s1", 1),)) != BOTH
    nothing = JobState(job=a_job("a"), seq=0)
    assert world.placing.waits_for(nothing, ()) == BOTH


# ---------------------------------------------------------------------- nodes that are given up


def test_nodes_on_demand_beyond_what_is_wanted_are_given_up_the_emptiest_first():
    world = World("d1", "d2", "d3", hold=(0, 3)).take(d1=3, d2=1, d3=2)
    assert world.given_up() == []
    world.supply.hold["d"] = 2
    assert world.given_up() == ["d2"]
    world.supply.hold["d"] = 1
    assert world.given_up() == ["d2", "d3"]
    world.cluster.add("d4", world.supply.offers["d"])  # one on its way goes first
    assert world.given_up() == ["d2", "d3"]
    assert world.placing.given_up("q") == []


def test_where_more_is_owed_on_demand_than_is_free_any_node_may_be_left():
    world = World("d1", "d2", hold=(0, 2)).take(d1=4, d2=3)
    assert world.given_up(owed=1) == []  # one is free
    assert world.given_up(owed=2) == ["d2", "d1"]
    world.cluster.add("d3", world.supply.offers["d"])
    world.supply.hold["d"] = 3
    assert world.given_up(owed=2) == []  # one that is wanted is on its way
    world.supply.hold["d"] = 2
    assert world.given_up(owed=2) == ["d2", "d1"]  # it will be given back


# ---------------------------------------------------------------------- back to spot


def test_who_sits_on_demand_without_need_goes_back_to_spot_when_the_node_is_given_up():
    assert World("s1", "d1", hold=(1, 0)).find({"d1": 2}, 2) == {"s1": 2}
    assert World("s1", "d1", hold=(1, 1)).find({"d1": 2}, 2) == {"d1": 2}  # the plan wants it
    assert World("s1", "d1", hold=(1, 0)).take(s1=3).find({"d1": 2}, 2) == {"d1": 2}  # no room on spot
    assert World("s1", "d1", hold=(1, 0)).find({"d1": 2}, 2, steady=2) == {"d1": 2}  # it was promised that
    assert World("s1", "d1", hold=(1, 0)).find({"d1": 2}, 2, steady=1) == {"d1": 2}  # nodes are left whole


def test_of_several_nodes_it_leaves_those_that_spot_has_room_for():
    world = World("s1", "d1", "d2", hold=(1, 0)).take(s1=2)
    assert world.find({"d1": 2, "d2": 1}, 3) == {"d1": 2, "s1": 1}  # the smaller part first, and there are two in all
    assert World("s1", "d1", "d2", hold=(1, 0)).find({"d1": 2, "d2": 1}, 3) == {"s1": 3}
    assert World("s1", "d1", "d2", hold=(1, 0)).find({"d1": 2, "d2": 1}, 3, steady=2) == {"d1": 2, "s1": 1}
    assert World("s1", "d1", "d2", hold=(1, 1)).take(d2=2).find({"d1": 2, "d2": 1}, 3) == {"s1": 2, "d2": 1}


def test_for_one_that_lacks_them_as_many_go_as_it_lacks():
    assert World("s1", "d1", hold=(1, 1)).take(d1=1).find({"d1": 3}, 3, owed=1) == {"d1": 2, "s1": 1}
    assert World("s1", "d1", hold=(1, 1)).take(d1=1).find({"d1": 3}, 3, owed=9) == {"s1": 3}
    assert World("s1", "d1", hold=(1, 1)).take(d1=1).find({"d1": 3}, 3, steady=2, owed=9) == {"d1": 2, "s1": 1}
    assert World("s1", "d1", hold=(1, 1)).find({"d1": 3}, 3, owed=1) == {"d1": 3}  # one is free


def test_what_a_grid_keeps_is_its_copies_those_on_demand_first():
    world = World("s1", "d1")
    held = (("s1", 2), ("d1", 2))
    assert world.placing.kept(held, Shape("p", 3)) == held
    assert world.placing.kept(held, Shape("p", 3, grid=Grid(3, 1))) == (("d1", 2), ("s1", 1))
    assert world.placing.kept((("s1", 2),), Shape("p", 1, grid=Grid(1, 1))) == (("s1", 1),)
    world.cluster.withdraw(world.cluster.nodes["d1"], NodePhase.NOTICED)
    assert world.placing.kept(held, Shape("p", 3, grid=Grid(3, 1))) == (("s1", 2),)
    nothing = JobState(job=a_job("a"), seq=0)
    assert world.placing.find(nothing, (), 0.0) is None
