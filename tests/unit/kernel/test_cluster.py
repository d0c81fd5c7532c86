"""Nodes come, take work and go; room is counted on those that stay."""

from __future__ import annotations

import pytest

from sublet.domain.plan import Packing
from sublet.kernel.cluster import Cluster, NodePhase
from sublet.testing.values import an_offer

OFFER = an_offer("o", gpus=4)
POOL = OFFER.pool


@pytest.fixture
def cluster():
    made = Cluster()
    for node_id in ("n1", "n2"):
        made.add(node_id, OFFER)
        made.ready(made.nodes[node_id])
    return made


def test_a_node_that_is_on_its_way_is_held_but_has_no_room():
    cluster = Cluster()
    cluster.add("n1", OFFER)
    assert (cluster.held["o"], cluster.free_gpus[POOL]) == (1, 0)
    assert cluster.rearrange(POOL, (), 1) is None
    cluster.ready(cluster.nodes["n1"])
    assert (cluster.held["o"], cluster.free_gpus[POOL]) == (1, 4)
    assert cluster.rearrange(POOL, (), 4) == (("n1", 4),)


@pytest.mark.parametrize("phase", [NodePhase.NOTICED, NodePhase.RELEASING])
def test_a_node_that_will_go_is_not_held_and_has_no_room(cluster, phase):
    cluster.withdraw(cluster.nodes["n1"], phase)
    assert (cluster.held["o"], cluster.free_gpus[POOL]) == (1, 4)
    assert cluster.rearrange(POOL, (), 5) is None
    assert "n1" in cluster.nodes


def test_gpus_of_a_node_that_will_go_do_not_come_back_as_room(cluster):
    cluster.take("a", "n1", 3)
    cluster.withdraw(cluster.nodes["n1"], NodePhase.NOTICED)
    cluster.give("a", "n1", 3)
    assert cluster.free_gpus[POOL] == 4
    assert cluster.nodes["n1"].idle


def test_taking_and_giving_back_leaves_a_node_as_it_was(cluster):
    cluster.take("a", "n1", 1)
    cluster.take("a", "n1", 2)
    cluster.take("b", "n1", 1)
    assert cluster.nodes["n1"].jobs == {"a": 3, "b": 1}
    assert list(cluster.idle["o"]) == ["n2"]
    for job_id, gpus in (("a", 2), ("b", 1), ("a", 1)):
        cluster.give(job_id, "n1", gpus)
    assert cluster.nodes["n1"].jobs == {}
    assert set(cluster.idle["o"]) == {"n1", "n2"}
    assert cluster.free_gpus[POOL] == 8


def test_only_ready_nodes_are_a_healthy_place(cluster):
    cluster.withdraw(cluster.nodes["n1"], NodePhase.NOTICED)
    assert cluster.healthy((("n1", 4), ("n2", 2))) == (("n2", 2),)


def test_a_removed_node_is_gone_for_good(cluster):
    cluster.remove(cluster.nodes["n1"])
    assert set(cluster.nodes) == {"n2"}
    assert (cluster.held["o"], cluster.free_gpus[POOL]) == (1, 4)


def test_told_to_take_the_emptiest_a_job_goes_to_the_oldest_node_with_most_room(cluster):
    cluster.packing = Packing.EMPTIEST
    cluster.take("a", "n1", 1)
    assert cluster.rearrange(POOL, (), 3) == (("n2", 3),)
    assert cluster.rearrange(POOL, (("n1", 1),), 3) == (("n1", 3),)  # its own nodes still come first
    assert cluster.rearrange(POOL, (), 6) == (("n2", 4), ("n1", 2))
    cluster.take("b", "n2", 1)
    assert cluster.rearrange(POOL, (), 1) == (("n1", 1),)
