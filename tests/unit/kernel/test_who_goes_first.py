"""Who goes first when money ends, and what is forgotten of an offer: told step by step."""

from __future__ import annotations

import pytest

from sublet.domain.actions import RefusePlan
from sublet.domain.budget import Budget
from sublet.domain.money import Money
from sublet.kernel.requests import MOST_PLANS_AT_ONCE, PlanRequests
from sublet.kernel.supply import Supply
from sublet.testing.values import an_offer

CHEAP = an_offer("cheap", usd_per_h="1", pool="p", minimum_billing_s=60.0)
DEAR = an_offer("dear", usd_per_h="1", pool="p", minimum_billing_s=3600.0)


def supply_with(*nodes, used=()):
    """Ready nodes, named by their offers and a number; on those that are `used` a job has a GPU."""
    supply = Supply([CHEAP, DEAR], {}, {}, Budget(purse=Money.from_usd("100")))
    for node_id in nodes:
        supply.cluster.add(node_id, supply.offers[node_id[:-1]])
        supply.ledger.open(node_id, node_id[:-1], 0.0)
        supply.cluster.ready(supply.cluster.nodes[node_id])
    for node_id in used:
        supply.cluster.take("job", node_id, 1)
    return supply


@pytest.mark.parametrize(
    ("nodes", "used", "given_up"),
    [
        (["cheap1", "dear1", "cheap2", "dear2"], ["cheap1", "dear1"], ["dear2", "cheap2"]),  # nobody is on these
        (["cheap1", "dear1", "cheap2", "dear2"], ["dear1", "dear2"], ["cheap1", "cheap2"]),
        (["cheap1", "dear1", "cheap2"], ["dear1", "cheap1", "cheap2"], ["dear1", "cheap1"]),  # it keeps back more
        (["cheap1", "cheap2", "dear1"], [], ["dear1", "cheap1"]),
        (["cheap1"], ["cheap1"], ["cheap1"]),
    ],
)
def test_of_half_of_the_nodes_those_go_first_that_nobody_is_on_then_those_that_keep_back_most(nodes, used, given_up):
    purse = supply_with(*nodes, used=used).purse
    assert [node.id for node in purse.give_up_half(0.0)] == given_up
    assert purse.most_nodes == len(nodes) - len(given_up)


def test_a_stale_plan_is_followed_by_another_up_to_the_thousandth_at_one_instant():
    requests, refusal = PlanRequests(), RefusePlan("pool", 2, 1)
    for _ in range(MOST_PLANS_AT_ONCE):
        assert requests.count(5.0) is None
        assert requests.refuse(refusal, 5.0, stale=True) == [refusal]
    assert requests.count(5.0) is not None
    assert len(requests.refuse(refusal, 5.0, stale=True)) == 2  # it is put off


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_of_what_is_sold_out_there_is_one_less_with_each_that_is_taken_and_never_less_than_none(taken):
    supply = supply_with("cheap1", "cheap2")
    supply.offering.refuse("cheap")
    assert supply.offering.most("cheap") == 2
    for _ in range(taken):
        supply.offering.take_back("cheap")
    assert supply.offering.most("cheap") == max(0, 2 - taken)


def test_an_offer_that_was_withdrawn_and_is_listed_again_is_not_sold_out_any_more():
    supply = supply_with("cheap1")
    supply.offering.refuse("cheap")
    assert supply.offering.is_sold_out("cheap")
    supply.offering.change([DEAR], {}, {}, 1.0)
    supply.cluster.remove(supply.cluster.nodes["cheap1"])
    assert supply.offering.retire() == ["cheap"]
    supply.offering.change([CHEAP, DEAR], {}, {}, 2.0)
    assert not supply.offering.is_sold_out("cheap")
    assert supply.offering.refuse("cheap") == 60.0  # the first in a row
