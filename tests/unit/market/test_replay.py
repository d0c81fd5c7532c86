"""A recorded market, replayed without clock or nodes: what is known when, and whom a change takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.errors import InvalidValue
from sublet.market.replay import Fall, ReadAhead, ReplayedMarket
from sublet.testing.values import an_offer

NODES = [f"n{number}" for number in range(8)]


def a_market(seed=0, **facts):
    offer = an_offer("o", **facts)
    return ReplayedMarket({"o": offer}, np.random.default_rng(seed))


def test_a_notice_comes_before_what_it_tells_of_though_both_are_due_at_once():
    change = AvailabilityChanged(100.0, "o", 2)
    ahead = ReadAhead([change], 120.0)
    assert list(ahead.read(100.0)) == [(100.0, Fall(offer_id="o", nodes=2, at_s=100.0)), (100.0, change)]
    assert ahead.next_s == math.inf


def test_nothing_is_read_more_than_one_notice_ahead_nor_twice():
    changes = [PriceChanged(10.0, "o", Price(1)), PriceChanged(500.0, "o", Price(2))]
    ahead = ReadAhead(changes, 120.0)
    assert [what for _, what in ahead.read(0.0)] == changes[:1]
    assert list(ahead.read(379.0)) == []
    assert ahead.next_s == 380.0
    assert [what for _, what in ahead.read(380.0)] == changes[1:]


def test_without_a_notice_nothing_is_told_before_it_is_so():
    change = AvailabilityChanged(100.0, "o", 2)
    assert list(ReadAhead([change], 0.0).read(100.0)) == [(100.0, change)]


def test_a_notice_of_less_than_no_time_is_refused():
    with pytest.raises(InvalidValue, match="notice_s"):
        ReadAhead([], -1.0)


def test_those_with_a_notice_go_when_their_time_has_come_and_nobody_else():
    market = a_market()
    noticed = market.notice(Fall(offer_id="o", nodes=5, at_s=120.0), NODES)
    assert len(noticed) == 3
    gone = market.resupply(AvailabilityChanged(120.0, "o", 5), NODES, dict.fromkeys(noticed, 120.0), 120.0)
    assert gone == noticed


def test_equal_seeds_take_equal_nodes():
    falls = [Fall(offer_id="o", nodes=nodes, at_s=120.0) for nodes in (6, 3)]
    first, second = ([a.notice(fall, NODES) for fall in falls] for a in (a_market(7), a_market(7)))
    assert first == second


def test_what_a_script_has_taken_is_missing_from_what_will_be():
    market = a_market()
    market.stock.record("o", 8)
    market.stock.strike("o")
    assert len(market.notice(Fall(offer_id="o", nodes=5, at_s=120.0), NODES)) == 4
    assert len(market.resupply(AvailabilityChanged(120.0, "o", 5), NODES, {}, 120.0)) == 4


def test_a_supply_without_end_takes_nobody():
    market = a_market()
    market.resupply(AvailabilityChanged(0.0, "o", 2), [], {}, 0.0)
    assert market.is_sold_out("o", 2)
    assert market.resupply(AvailabilityChanged(1.0, "o", None), NODES, {}, 1.0) == []
    assert not market.is_sold_out("o", 99)


def test_above_our_cap_all_nodes_go_and_none_is_sold_until_the_price_is_back():
    market = a_market(cap=Price.from_usd_per_h("2"))
    assert market.reprice(PriceChanged(0.0, "o", Price.from_usd_per_h("2")), NODES) == []
    assert market.reprice(PriceChanged(1.0, "o", Price.from_usd_per_h("2.01")), NODES) == NODES
    assert market.too_dear == {"o"}
    assert market.reprice(PriceChanged(2.0, "o", Price.from_usd_per_h("1")), NODES) == []
    assert market.too_dear == set()


def test_of_too_few_nodes_all_are_drawn():
    assert a_market().draw(NODES[:2], 5) == NODES[:2]
    assert len(a_market().draw(NODES, 3)) == 3
