"""Room in a pool of both markets, what is kept for others, and the lists that decide who comes first: by hand."""

from __future__ import annotations

import json

import pytest

from sublet.domain.offer import Market
from sublet.domain.plan import Packing
from sublet.kernel.cluster import Cluster, NodePhase
from sublet.testing.values import an_offer

SPOT, SURE = Market.SPOT, Market.ON_DEMAND
OFFERS = {
    "s": an_offer("s", gpus=4, pool="p"),
    "d": an_offer("d", gpus=4, pool="p", market=SURE),
    "q": an_offer("q", gpus=2, pool="q"),
}


def cluster_of(*names, **taken):
    """Ready nodes, named by their offers; `taken` GPUs of them are somebody's."""
    made = Cluster()
    for name in names:
        made.add(name, OFFERS[name[0]])
        made.ready(made.nodes[name])
    for name, gpus in taken.items():
        made.take("other", name, gpus)
    return made


def arranged(cluster, gpus, kept=(), pool="p", shunned=frozenset(), **facts):
    found = cluster.rearrange(pool, kept, gpus, shunned, **facts)
    return None if found is None else dict(found)


# ---------------------------------------------------------------------- one market


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (4, {"s3": 4}),  # a whole node
        (2, {"s2": 2}),  # the tightest fit
        (1, {"s1": 1}),
        (3, {"s3": 3}),
        (5, {"s3": 4, "s1": 1}),  # a whole node, then what fits tightest
        (6, {"s3": 4, "s2": 2}),
        (7, {"s3": 4, "s2": 2, "s1": 1}),
        (8, None),
    ],
)
def test_a_job_gets_whole_nodes_then_the_tightest_fit(gpus, found):
    assert arranged(cluster_of("s1", "s2", "s3", s1=3, s2=2), gpus) == found


def test_where_nothing_fits_whole_the_emptiest_nodes_are_taken():
    assert arranged(cluster_of("s1", "s2", "s3", s1=3, s2=1, s3=2), 5) == {"s2": 3, "s3": 2}
    assert arranged(cluster_of("s1", "s2", s1=1, s2=1), 4) == {"s1": 3, "s2": 1}


def test_it_fills_its_own_nodes_first_and_shrinks_from_where_it_has_least():
    cluster = cluster_of("s1", "s2", "s3", s1=1)
    for node_id, gpus in (("s1", 1), ("s2", 2)):
        cluster.take("a", node_id, gpus)
    kept = (("s1", 1), ("s2", 2))
    assert arranged(cluster, 5, kept) == {"s1": 3, "s2": 2}
    assert arranged(cluster, 8, kept) == {"s1": 3, "s2": 4, "s3": 1}
    assert arranged(cluster, 3, kept) == {"s1": 1, "s2": 2}
    assert arranged(cluster, 2, kept) == {"s2": 2}
    assert arranged(cluster, 1, kept) == {"s2": 1}
    assert arranged(cluster, 5, kept, shunned={"s1"}) == {"s1": 1, "s2": 4}
    assert arranged(cluster, 8, kept, shunned={"s1"}) == {"s1": 1, "s2": 4, "s3": 3}
    assert arranged(cluster, 10, kept, shunned={"s1"}) is None


# ---------------------------------------------------------------------- both


def test_what_need_not_be_on_demand_is_on_spot_as_far_as_there_is_room():
    cluster = cluster_of("s1", "d1")
    assert arranged(cluster, 3) == {"s1": 3}
    assert arranged(cluster, 6) == {"d1": 2, "s1": 4}
    assert arranged(cluster, 3, steady=2) == {"d1": 2, "s1": 1}
    assert arranged(cluster, 8) == {"d1": 4, "s1": 4}
    assert arranged(cluster, 9) is None
    assert arranged(cluster, 5, steady=5) is None
    assert arranged(cluster, 3, shunned={"s1"}) == {"d1": 3}


def test_what_it_has_on_demand_it_keeps():
    cluster = cluster_of("s1", "d1")
    cluster.take("a", "d1", 2)
    assert arranged(cluster, 3, (("d1", 2),)) == {"d1": 2, "s1": 1}
    assert arranged(cluster, 1, (("d1", 2),)) == {"d1": 1}
    found = cluster.rearrange("p", (("d1", 2),), 4, steady=3)
    assert found == (("d1", 3), ("s1", 1))


def test_what_spot_lacks_leaves_those_that_are_owed():
    cluster = cluster_of("s1", "d1", s1=3)
    assert arranged(cluster, 3, owed=2) == {"d1": 2, "s1": 1}
    assert arranged(cluster, 3, owed=3) is None
    assert arranged(cluster, 3, steady=2, owed=9) == {"d1": 2, "s1": 1}  # what it was promised is its own


def test_nothing_more_is_taken_of_a_market_that_is_closed():
    cluster = cluster_of("s1", "d1")
    assert arranged(cluster, 3, closed={SURE}) == {"s1": 3}
    assert arranged(cluster, 5, closed={SURE}) is None
    assert arranged(cluster, 3, closed={SPOT}) is None
    assert arranged(cluster, 3, steady=3, closed={SPOT}) == {"d1": 3}
    assert arranged(cluster, 3, steady=2, closed={SPOT}) is None
    cluster.take("a", "s1", 2)
    assert arranged(cluster, 2, (("s1", 2),), closed={SPOT}) == {"s1": 2}
    assert arranged(cluster, 3, (("s1", 2),), steady=1, closed={SPOT}) == {"d1": 1, "s1": 2}
    assert arranged(cluster, 3, (("s1", 2),), closed={SPOT}) is None


def test_room_is_counted_by_pool_and_market():
    cluster = cluster_of("s1", "s2", "d1", "q1", s1=1, d1=3)
    assert (cluster.free_gpus["p"], cluster.free_on_demand("p"), cluster.spot_room("p", ())) == (8, 1, 7)
    assert cluster.spot_room("p", (("s1", 1), ("d1", 3))) == 8
    assert cluster.spot_room("p", (), {"s2", "d1"}) == 3
    assert (cluster.on_demand((("s1", 1), ("d1", 3))), cluster.on_market(SPOT, (("s1", 1), ("d1", 3)))) == (
        3,
        (("s1", 1),),
    )
    assert arranged(cluster, 2, pool="q") == {"q1": 2}
    cluster.withdraw(cluster.nodes["s2"], NodePhase.NOTICED)
    assert cluster.spot_room("p", (), {"s2"}) == 3  # one that goes has no room that could be shunned


# ---------------------------------------------------------------------- who goes, and in which order


def test_a_node_that_nobody_hears_of_is_on_its_way_again():
    cluster = cluster_of("s1", "s2", s1=1)
    cluster.lose_touch(cluster.nodes["s1"])
    assert (cluster.free_gpus["p"], cluster.held["s"], list(cluster.requested["s"])) == (4, 2, ["s1"])
    cluster.give("other", "s1", 1)
    cluster.ready(cluster.nodes["s1"])
    assert (cluster.free_gpus["p"], list(cluster.requested["s"]), list(cluster.idle["s"])) == (8, [], ["s2", "s1"])


def test_nodes_in_use_beyond_what_is_wanted_are_the_emptiest_that_are_ready():
    cluster = cluster_of("s1", "s2", "s3", "d1", s1=3, s2=1, s3=2, d1=4)
    found = cluster.in_use_beyond({"s": 1, "d": 1})
    assert [node.id for node in found] == ["s2", "s3"]
    assert cluster.in_use_beyond({"s": 3}) == []
    cluster.add("s4", OFFERS["s"])  # held, and not ready
    assert [node.id for node in cluster.in_use_beyond({"s": 3})] == ["s2"]
    assert [node.id for node in cluster.in_use_beyond({"s": 0, "d": 0})] == ["s2", "s3", "s1", "d1"]


def test_noticed_nodes_are_given_back_when_nobody_is_on_them():
    cluster = cluster_of("s1", "s2", s1=1)
    for name in ("s1", "s2"):
        cluster.withdraw(cluster.nodes[name], NodePhase.NOTICED)
    assert [node.id for node in cluster.idle_noticed()] == ["s2"]
    assert (cluster.held["s"], cluster.leaving["s"]) == (0, 2)
    cluster.withdraw(cluster.nodes["s2"], NodePhase.RELEASING)
    assert (cluster.idle_noticed(), cluster.leaving["s"]) == ([], 2)
    cluster.remove(cluster.nodes["s2"])
    assert (cluster.leaving["s"], list(cluster.nodes)) == (1, ["s1"])


def test_a_pool_of_which_nothing_is_held_may_have_nodes_of_another_size():
    cluster = cluster_of("s1", "q1")
    cluster.remove(cluster.nodes["q1"])
    wider = an_offer("q", gpus=8, pool="q")
    cluster.reoffer({**OFFERS, "q": wider})
    cluster.add("q2", wider)
    cluster.ready(cluster.nodes["q2"])
    assert arranged(cluster, 8, pool="q") == {"q2": 8}
    assert arranged(cluster, 4) == {"s1": 4}


@pytest.mark.parametrize("packing", list(Packing))
def test_a_cluster_goes_on_from_a_snapshot_with_its_lists_in_order(packing):
    cluster = cluster_of("s1", "s2", "s3", "d1", "d2", s2=2, d1=1)
    cluster.packing = packing
    cluster.add("s4", OFFERS["s"])
    cluster.withdraw(cluster.nodes["d2"], NodePhase.NOTICED)
    cluster.take("a", "s1", 1)
    cluster.give("a", "s1", 1)  # now it is the last in its list
    facts = json.loads(json.dumps(cluster.facts()))
    twin = Cluster()
    twin.restore(facts, OFFERS)
    assert json.loads(json.dumps(twin.facts())) == facts
    assert (twin.held, twin.leaving, twin.free_gpus) == (cluster.held, cluster.leaving, cluster.free_gpus)
    assert list(twin.idle["s"]) == list(cluster.idle["s"]) == ["s3", "s1"]
    for gpus in range(1, 14):
        assert twin.rearrange("p", (), gpus) == cluster.rearrange("p", (), gpus)
    twin.ready(twin.nodes["s4"])
    assert twin.spot_room("p", ()) == 14
