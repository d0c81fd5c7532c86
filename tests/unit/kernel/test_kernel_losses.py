"""Whether another node is rented at once in place of one that goes, or when a plan says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.actions import RentNode
from sublet.domain.events import JobChanged, NodeLost, NodeNoticed
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@pytest.mark.parametrize("gone", [NodeLost(1.0, "n1"), NodeNoticed(1.0, "n1", 121.0)])
def test_no_other_node_is_rented_in_place_of_one_that_nobody_needs(gone):
    driver = Driver([an_offer("o", gpus=4, pool="p")])
    driver.submit(a_job("a", gpus=8))
    driver.settle(Equal())
    driver.tell(JobChanged(1.0, replace(driver.kernel.jobs["a"].job, paused=True)))  # it is still on its nodes
    assert not [order for order in driver.tell(gone) if isinstance(order, RentNode)]


@pytest.mark.parametrize("gone", [NodeLost(1.0, "n1"), NodeNoticed(1.0, "n1", 121.0)])
def test_another_node_is_rented_at_once_where_gpus_are_promised_that_are_missing_then(gone):
    driver = Driver([an_offer("o", gpus=4, pool="p")])
    driver.submit(a_job("a", gpus=8))
    driver.settle(Equal())
    assert [order for order in driver.tell(gone) if isinstance(order, RentNode)] == [RentNode("n3", "o")]


def test_owned_nodes_are_asked_for_again_whoever_needs_them(town):
    assert RentNode("n3", "o") in town.tell(NodeLost(1.0, "n1"))
