"""What can be had of an offer, as the market, the cloud and the user have it: told step by step."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.kernel.supply import Supply
from sublet.testing.values import an_offer

SPOT, SURE = Market.SPOT, Market.ON_DEMAND
A, B = an_offer("a", gpus=2, pool="p", hazard_per_h=0.1), an_offer("b", gpus=2, pool="p")
D = an_offer("d", gpus=2, pool="p", market=SURE)
NO_END = math.inf


def supply_of(*offers, limits=None, quotas=None, budget=UNLIMITED):
    return Supply(offers, limits or {}, quotas or {}, budget)


def held(supply, *node_ids, offer_id="a"):
    for node_id in node_ids:
        supply.cluster.add(node_id, supply.offers[offer_id])
        supply.ledger.open(node_id, offer_id, 0.0)
    return supply


def leaving(supply, node_id):
    supply.mark_noticed(supply.cluster.nodes[node_id])


# ---------------------------------------------------------------------- how many


def test_it_is_the_smaller_of_the_limit_and_of_what_the_market_has():
    supply = supply_of(A, B, limits={"a": Limit(max_nodes=3)})
    assert (supply.offering.most("a"), supply.offering.most("b")) == (3, NO_END)
    for nodes, found in ((5, (3, 5)), (2, (2, 2)), (None, (3, NO_END))):
        for offer_id in ("a", "b"):
            supply.restock(offer_id, nodes, 0.0)
        assert (supply.offering.most("a"), supply.offering.most("b")) == found
        assert tuple(supply.offering.state(offer_id).most for offer_id in ("a", "b")) == found
    supply.restock("a", 2, 0.0)
    assert (supply.offering.obtained("a", 1), supply.offering.obtained("a", 9)) == (1, 2)


def test_gpus_of_a_pool_are_within_the_quotas_of_the_pool_and_of_each_market():
    def found(**quotas):
        supply = supply_of(A, B, D, limits={each: Limit(max_nodes=3) for each in "abd"}, quotas=quotas)
        pool = supply.pools["p"]
        of = supply.offering.most_of
        return supply.offering.most_gpus(pool), of(pool, SPOT), of(pool, SURE)

    assert found() == (18, 12, 6)
    assert found(p=15) == (15, 12, 6)
    assert found(p=5) == (5, 5, 5)
    assert found(**{"p:spot": 7}) == (13, 7, 6)
    assert found(**{"p:spot": 7, "p": 9}) == (9, 7, 6)
    alone = supply_of(A)
    assert alone.offering.most_of(alone.pools["p"], SURE) == 0


def test_above_the_highest_price_that_is_paid_and_without_money_there_is_none():
    supply = supply_of(replace(A, cap=Price.from_usd_per_h("2")))
    supply.ledger.reprice("a", Price.from_usd_per_h("2"), 0.0)
    assert supply.offering.most("a") == NO_END
    supply.ledger.reprice("a", Price.from_usd_per_h("2.01"), 0.0)
    assert supply.offering.most("a") == 0
    broke = supply_of(A, budget=Budget(purse=Money.from_usd(1)))
    assert broke.offering.most("a") == NO_END
    broke.purse.most_nodes = 0
    assert broke.offering.most("a") == 0


def test_what_is_announced_to_fall_is_not_to_be_had():
    supply = supply_of(A)
    supply.offering.memory.announce("a", "n1", 100.0)
    assert supply.offering.most("a") == NO_END
    supply.offering.restock("a", 3, 0.0)
    assert supply.offering.most("a") == 2
    assert supply.offering.wake_for_fall() == 100.0
    supply.offering.restock("a", 0, 0.0)
    assert supply.offering.most("a") == 0
    unknown = supply_of(A)
    unknown.offering.memory.announce("a", "n1", 100.0)
    assert unknown.offering.wake_for_fall() is None  # nobody says how many there are


# ---------------------------------------------------------------------- refusals


def test_a_refused_offer_has_what_was_ours_then_less_what_leaves():
    supply = held(supply_of(A), "n1", "n2", "n3")
    leaving(supply, "n3")
    supply.offering.refuse("a")
    assert supply.offering.is_sold_out("a")
    assert supply.offering.most("a") == 2  # three were ours, one of which goes
    leaving(supply, "n2")
    assert supply.offering.most("a") == 1
    supply.offering.take_back("a")
    assert supply.offering.most("a") == 0
    supply.offering.take_back("a")
    supply.offering.take_back("a")
    assert supply.offering.most("a") == 0
    supply.retry("a")
    assert (supply.offering.most("a"), supply.offering.is_sold_out("a")) == (NO_END, False)
    supply.offering.take_back("a")  # of one that is not sold out nothing is counted
    assert supply.offering.most("a") == NO_END


def test_it_rests_twice_as_long_after_each_refusal_in_a_row_up_to_sixteen_minutes():
    supply = supply_of(A)
    waits = []
    for _ in range(6):
        waits.append(supply.offering.refuse("a"))
        assert supply.offering.refuse("a") == waits[-1]  # another node of the same request
        supply.offering.retry("a")
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0]
    assert supply.offering.state("a").refused == 6
    supply.offering.deliver("a")
    assert supply.offering.state("a").refused == 0
    assert supply.offering.refuse("a") == 60.0
    supply.offering.restock("a", None, 0.0)  # the market has spoken
    assert supply.offering.state("a").refused == 0
    assert not supply.offering.is_sold_out("a")


def test_a_node_that_came_while_it_is_sold_out_makes_the_next_refusal_the_first():
    supply = supply_of(A)
    supply.offering.refuse("a")
    supply.offering.retry("a")
    supply.offering.refuse("a")
    supply.offering.deliver("a")
    assert supply.offering.refuse("a") == 60.0


# ---------------------------------------------------------------------- another list


def test_an_offer_that_is_withdrawn_has_what_is_held_until_the_last_has_gone():
    supply = held(supply_of(A, B, quotas={"p": 8}), "n1", "n2")
    supply.offering.restock("a", 9, 0.0)
    supply.offering.change([B], {}, {"p": 8}, 0.0)
    assert list(supply.offering.withdrawn) == ["a"]
    assert supply.offering.most("a") == 2
    assert supply.pools["p"].offer_ids == ("b", "a")
    assert supply.offering.retire() == []
    leaving(supply, "n1")
    leaving(supply, "n2")
    assert supply.offering.retire() == []  # on their way, and not gone
    for node_id in ("n1", "n2"):
        supply.cluster.remove(supply.cluster.nodes[node_id])
    assert supply.offering.retire() == ["a"]
    assert (list(supply.offers), list(supply.limits), list(supply.offering.withdrawn)) == (["b"], ["b"], [])
    assert (supply.pools["p"].offer_ids, supply.pools["p"].max_gpus) == (("b",), 8)
    assert list(supply.offering.every) == ["a", "b"]
    assert supply.offering.retire() == []


def test_what_is_known_of_offers_that_stay_is_kept_and_of_others_forgotten():
    supply = supply_of(A, B)
    for offer_id in ("a", "b"):
        supply.offering.restock(offer_id, 3, 0.0)
        supply.offering.refuse(offer_id)
    new = an_offer("new", gpus=2, pool="q")
    supply.offering.change([A, new], {"a": Limit(max_nodes=7)}, {}, 10.0)
    assert list(supply.offers) == ["a", "new"]
    assert (supply.limits["a"].max_nodes, supply.limits["new"].max_nodes) == (7, None)
    assert (supply.offering.most("a"), supply.offering.most("new")) == (0, NO_END)  # sold out as it was
    supply.offering.retry("a")
    assert supply.offering.most("a") == 3
    supply.offering.change([A, B, new], {}, {}, 20.0)
    assert (supply.offering.most("b"), supply.offering.state("b").refused) == (NO_END, 0)
    assert set(supply.offering.memory.capacity) == {"a"}
    assert not supply.offering.was_offered("p")
    supply.offering.change([new], {}, {}, 30.0)
    assert supply.offering.was_offered("p")
    assert not supply.offering.was_offered("r")
    assert not supply.offering.was_offered("q")


def test_a_price_that_the_user_lists_anew_counts_and_else_that_of_the_market_stands():
    supply = held(supply_of(A), "n1")
    supply.ledger.reprice("a", Price.from_usd_per_h("3"), 0.0)
    supply.offering.change([A], {}, {}, 0.0)
    assert supply.ledger.price("a") == Price.from_usd_per_h("3")
    dearer = an_offer("a", gpus=2, pool="p", hazard_per_h=0.1, usd_per_h="2", minimum_billing_s=60.0)
    supply.offering.change([dearer], {}, {}, 0.0)
    assert supply.ledger.price("a") == Price.from_usd_per_h("2")
    assert supply.cluster.nodes["n1"].offer is dearer
    assert supply.ledger.close("n1", 0.0) == Price.from_usd_per_h("2").over(60_000_000)


def test_exposure_is_watched_from_when_an_offer_is_listed():
    supply = supply_of(B)
    supply.offering.change([A, B], {}, {}, 3600.0)
    supply.offering.exposure.lose("a", 3600.0)
    assert supply.offering.state("a", 3600.0).lost == 1.0
    assert supply.offering.state("a").lost == 0.0  # without a time nothing is looked up


def test_a_price_that_is_doubted_is_charged_up_to_the_highest():
    supply = supply_of(replace(A, cap=Price.from_usd_per_h("2")))
    supply.offering.doubt("a", Price.from_usd_per_h("1.5"), 0.0)
    assert supply.ledger.price("a") == Price.from_usd_per_h("1.5")
    supply.offering.doubt("a", Price.from_usd_per_h("9"), 0.0)
    assert supply.ledger.price("a") == Price.from_usd_per_h("2")
    assert supply.offering.state("a").price == Price.from_usd_per_h("1")  # what is believed


def test_an_offering_goes_on_from_a_snapshot():
    supply = held(supply_of(A, B), "n1")
    supply.offering.restock("b", 3, 5.0)
    supply.offering.refuse("b")
    supply.offering.memory.announce("b", "n7", 100.0)
    supply.offering.exposure.lose("a", 5.0)
    supply.offering.change([B], {}, {}, 6.0)
    facts = json.loads(json.dumps(supply.offering.facts()))
    twin = held(supply_of(B, A), "n1")
    twin.offering.restore(facts)
    assert json.loads(json.dumps(twin.offering.facts())) == facts
    for offer_id in ("a", "b"):
        assert twin.offering.most(offer_id) == supply.offering.most(offer_id)
    older = {name: fact for name, fact in facts.items() if name not in ("refused", "memory")}
    again = held(supply_of(B, A), "n1")
    again.offering.restore(older)
    assert again.offering.state("b").refused == 0


@pytest.mark.parametrize("phase", ["held", "gone"])
def test_the_mappings_stay_the_same_objects(phase):
    supply = supply_of(A, B)
    if phase == "held":
        held(supply, "n1")
    offers, limits, pools = supply.offers, supply.limits, supply.pools
    supply.offering.change([B], {}, {}, 0.0)
    assert (offers is supply.offering.offers, limits is supply.offering.limits) == (True, True)
    assert pools is supply.offering.pools
    assert ("a" in offers) is (phase == "held")
