"""A market replayed in cloud time: what comes due, in which order, and what is past."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.errors import InvalidValue
from sublet.market.replay import Fall, Stock
from sublet.runtime.providers.local.market import Replay, Strike

changes = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12).map(
    lambda rows: [AvailabilityChanged(float(t_s), "o", nodes) for t_s, nodes in sorted(rows)]
)


def price(at_s, usd):
    return PriceChanged(at_s, "o", Price.from_usd_per_h(usd))


def test_a_fall_is_known_one_notice_before_it_comes():
    replay = Replay([AvailabilityChanged(0.0, "o", 4), AvailabilityChanged(300.0, "o", 2)], (), 120.0)
    assert replay.skip_to(0.0) == [AvailabilityChanged(0.0, "o", 4)]
    assert replay.next_s() == 180.0
    assert replay.until(179.0) == []
    assert replay.until(180.0) == [Fall(offer_id="o", nodes=2, at_s=300.0)]
    assert replay.next_s() == 300.0
    assert replay.until(301.0) == [AvailabilityChanged(300.0, "o", 2)]
    assert replay.next_s() == math.inf


def test_without_notices_falls_come_unannounced():
    replay = Replay([AvailabilityChanged(300.0, "o", 2)], (), 0.0)
    replay.skip_to(0.0)
    assert replay.until(300.0) == [AvailabilityChanged(300.0, "o", 2)]


def test_who_comes_late_is_told_how_things_stand_and_not_how_they_came_to():
    strikes = [Strike(at_s=5.0, verb="kill"), Strike(at_s=50.0, verb="kill")]
    record = [AvailabilityChanged(0.0, "o", 4), price(1.0, "1"), AvailabilityChanged(2.0, "o", 3), price(3.0, "2")]
    replay = Replay([*record, price(60.0, "3")], strikes, 120.0)
    assert replay.skip_to(10.0) == [AvailabilityChanged(2.0, "o", 3), price(3.0, "2")]
    assert replay.until(100.0) == [strikes[1], price(60.0, "3")]


def by_work(share, verb="kill"):
    return Strike(share=share, verb=verb)


def test_what_comes_by_work_comes_once_one_at_a_time_in_its_order_and_never_by_the_clock():
    later, first = by_work(0.6), by_work(0.2, "notice")
    replay = Replay((), (later, first), 120.0)
    replay.skip_to(0.0)
    assert replay.next_s() == math.inf
    assert replay.until(1e9) == []
    assert replay.reached(0.19, lambda _: ["n"]) == []
    assert replay.reached(0.9, lambda _: ["n"]) == [first]
    assert replay.awaits_work
    assert replay.reached(0.9, lambda _: ["n"]) == [later]
    assert not replay.awaits_work
    assert replay.reached(0.9, lambda _: ["n"]) == []


def test_what_comes_by_work_waits_for_a_node_to_take_and_a_restore_for_none():
    strikes = [by_work(0.2), by_work(0.3, "restore")]
    replay = Replay((), strikes, 120.0)
    assert replay.reached(0.5, lambda _: []) == []
    assert replay.reached(0.5, lambda strike: ["n"] if strike is strikes[0] else []) == strikes[:1]
    assert replay.reached(0.5, lambda _: []) == strikes[1:]


def test_who_comes_late_is_not_struck_by_what_the_work_had_called_for():
    strikes = [by_work(0.2), by_work(0.6)]
    replay = Replay((), strikes, 120.0)
    replay.skip_to(0.0, 0.5)
    assert replay.reached(0.5, lambda _: ["n"]) == []
    assert replay.reached(0.6, lambda _: ["n"]) == strikes[1:]
    fresh = Replay((), [by_work(0.0)], 120.0)
    fresh.skip_to(0.0, 0.0)
    assert fresh.awaits_work


@given(changes, st.integers(0, 30), st.lists(st.integers(0, 40)), st.sampled_from([0.0, 3.0, 100.0]))
def test_every_change_after_the_start_comes_once_in_order_and_never_early(record, start_s, asked, notice_s):
    replay = Replay(record, (), notice_s)
    past = replay.skip_to(float(start_s))
    assert past == [change for change in record if change.at_s <= start_s][-1:]
    seen = []
    for now_s in [*sorted(max(start_s, t) for t in asked), 1000]:
        happened = replay.until(float(now_s))
        assert all(what.at_s <= now_s for what in happened if not isinstance(what, Fall))
        assert all(what.at_s - notice_s <= now_s for what in happened)
        assert replay.next_s() > now_s
        seen += happened
    assert [what for what in seen if not isinstance(what, Fall)] == [c for c in record if c.at_s > start_s]
    falls = [what for what in seen if isinstance(what, Fall)]
    assert len(falls) == (len(seen) // 2 if notice_s else 0)
    for fall in falls:
        change = AvailabilityChanged(fall.at_s, "o", fall.nodes)
        assert seen.index(fall) < len(seen) - 1 - seen[::-1].index(change)


@pytest.mark.parametrize(
    "facts", [{"verb": "burn"}, {"at_s": -1.0}, {"nodes": 0}, {"nodes": ("",)}, {"share": 1.0}, {"share": -0.1}]
)
def test_a_strike_that_cannot_be_is_refused(facts):
    with pytest.raises(InvalidValue):
        Strike(**{"at_s": 1.0, "verb": "kill", **facts})


def test_a_rise_that_follows_a_fall_does_not_sell_what_the_fall_will_take():
    """Both are announced; a node rented in between would be taken, or another in its place, without a word."""
    stock = Stock()
    stock.record("o", 4)
    stock.announce("o", 3, 100.0)
    stock.announce("o", 4, 160.0)
    assert stock.to_stay("o") == 3
    stock.record("o", 3, 100.0)
    assert stock.to_stay("o") == 4
    stock.record("o", 4, 160.0)
    assert stock.to_stay("o") is None
