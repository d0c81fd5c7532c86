"""Clouds from what people say, and what they are told about them."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import Infeasible, InvalidValue, UnknownName
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace
from sublet.perf.speedup import Linear, Table
from sublet.policies.fifo import Fifo
from sublet.sim import scenario
from sublet.sim.simulator import simulate
from sublet.sim.world import Physics

FOUR = Offer(id="four", gpu="T4", gpus_per_node=4, market=Market.ON_DEMAND, price=Price.from_usd_per_h("4"))


def job(name="a", *, submit_s=0.0, speed=None, **fields):
    return Job(id=name, submit_s=submit_s, work=3600.0, speed=speed or Linear(), **fields)


def steps(*pairs):
    return Steps(t_s=np.array([t for t, _ in pairs], dtype=float), value=np.array([n for _, n in pairs]))


def trace(**fields):
    series = {"z": steps((0, 4), (1800, 2))}
    facts = {"name": "test", "end_s": {"z": 3600.0}, "span_s": 3600.0, "max_available": 4, "gpu": "V100"}
    return SpotTrace(**{"series": series, "gpus_per_instance": 1, **facts, **fields})


def test_owned_gpus_fill_whole_nodes_and_are_always_held():
    cloud = scenario.owned(FOUR, 12).cloud
    limit = cloud.limits["four"]
    assert (limit.min_nodes, limit.max_nodes) == (3, 3)
    run = simulate([job(gpus=4)], Fifo(), cloud)
    assert run.metrics.gpu_hours == pytest.approx(12 * 0.25)


def test_a_number_between_two_nodes_is_refused_with_both_neighbours():
    with pytest.raises(InvalidValue, match=r"gpus = 6 .* 4 or 8"):
        scenario.owned(FOUR, 6)


def test_less_than_a_node_is_a_smaller_node_at_its_share_of_the_price():
    scene = scenario.owned(FOUR, 3)
    (offer,) = scene.cloud.offers
    assert (offer.gpus_per_node, offer.price) == (3, Price.from_usd_per_h("3"))
    assert any("3 of the 4 GPUs" in note for note in scene.cloud.notes)


def test_a_rented_cloud_stays_within_its_budget():
    scene = scenario.rented([FOUR], Price.from_usd_per_h("9"), physics=Physics(provision_s=60.0))
    run = simulate([job("a", gpus=4), job("b", gpus=4), job("c", gpus=4)], Fifo(), scene.cloud)
    assert max(gpus for _, gpus in run.record.held) == 8
    assert "at most 2 x four (4 x T4) at USD 4.000 per hour" in scene.cloud.notes[0]


def test_a_budget_below_the_cheapest_node_is_refused():
    with pytest.raises(Infeasible) as caught:
        scenario.rented([FOUR], Price.from_usd_per_h("3"))
    assert (caught.value.needed, caught.value.available) == (4.0, 3.0)


def test_spot_nodes_without_a_market_say_that_they_are_never_taken():
    spot = Offer(id="s", gpu="T4", gpus_per_node=1, market=Market.SPOT, price=Price.from_usd_per_h("1"))
    notes = scenario.rented([spot], Price.from_usd_per_h("3")).cloud.notes
    assert any("never taken back" in note for note in notes)


def test_a_market_starts_with_the_first_job_and_streams_its_changes():
    offers, _ = scenario.spot_offers(trace(), price=Price.from_usd_per_h("1"))
    scene = scenario.spot_market(trace(), offers, first_s=100.0)
    assert list(scene.cloud.market()) == [
        AvailabilityChanged(100.0, "z:spot", 4),
        AvailabilityChanged(1900.0, "z:spot", 2),
    ]
    assert list(scene.cloud.market()) == list(scene.cloud.market())  # a fresh stream for every run
    assert scene.record_ends_s == 3700.0


def test_a_zone_that_begins_late_begins_with_nothing():
    late = trace(series={"z": steps((600, 4))})
    offers, _ = scenario.spot_offers(late, price=Price.from_usd_per_h("1"))
    first, second = scenario.spot_market(late, offers, first_s=0.0).cloud.market()
    assert (first.at_s, first.nodes) == (0.0, 0)
    assert (second.at_s, second.nodes) == (600.0, 4)


def test_a_run_that_outlasts_the_record_is_told_by_how_much():
    offers, _ = scenario.spot_offers(trace(), price=Price.from_usd_per_h("1"))
    scene = scenario.spot_market(trace(), offers, first_s=0.0, burn=Price.from_usd_per_h("2"))
    run = simulate([job("a"), job("b"), job("c"), job("d")], Fifo(), scene.cloud)
    (note,) = scene.notes_on(run)
    assert note.startswith("the run outlasted the market trace by 1.0 h")


def test_a_market_can_be_capped_in_gpus_over_all_its_zones():
    two = trace(series={"y": steps((0, 1)), "z": steps((0, 1))}, end_s={"y": 3600.0, "z": 3600.0})
    offers, _ = scenario.spot_offers(two, price=Price.from_usd_per_h("1"))
    cloud = scenario.spot_market(two, offers, first_s=0.0, gpus=2).cloud
    assert {offer.pool for offer in cloud.offers} == set(cloud.quotas)
    assert set(cloud.quotas.values()) == {2}


def test_a_known_trace_finds_the_price_of_its_nodes():
    offers, (note,) = scenario.spot_offers(load_trace("bamboo-p3"))
    (offer,) = offers.values()
    assert (offer.gpu, offer.gpus_per_node, offer.instance_type) == ("V100", 1, "p3.2xlarge")
    assert 0.3 < offer.price.usd_per_h < 3.06  # on demand it was 3.06
    assert "2023-02-15 catalogue" in note


def test_zones_are_priced_by_their_region_where_it_is_listed():
    offers, _ = scenario.spot_offers(load_trace("skynomad-h100"))
    assert len(offers) == 13
    assert len({offer.price for offer in offers.values()}) > 1


def test_a_trace_that_names_no_gpu_needs_an_offer():
    with pytest.raises(InvalidValue, match="does not say which GPUs"):
        scenario.spot_offers(trace(gpu=""), price=Price.from_usd_per_h("1"))


def test_a_trace_without_a_listed_price_needs_one():
    with pytest.raises(InvalidValue, match="--spot-price"):
        scenario.spot_offers(trace())


def test_a_kind_that_no_profile_knows_is_refused_with_the_kinds_that_would_do():
    measured = Table(rates={"T4": {1: 1.0, 4: 3.0}})
    v100 = scenario.as_if(FOUR, "V100")
    with pytest.raises(Infeasible, match=r"1 of 2 jobs have no speed on V100, such as b.*\n.*--as-gpu T4"):
        scenario.refuse_unknown_kinds([job("a"), job("b", speed=measured)], [v100])
    scenario.refuse_unknown_kinds([job("a"), job("b", speed=measured)], [FOUR, v100])


def test_a_disguised_node_keeps_its_price_and_changes_its_pool():
    disguised = scenario.as_if(FOUR, "A100")
    assert (disguised.gpu, disguised.price, disguised.pool) == ("A100", FOUR.price, "A100x4:on-demand")
    with pytest.raises(UnknownName, match="did you mean A100"):
        scenario.as_if(FOUR, "A1000")


def test_what_a_fall_takes_at_once_is_a_share_of_what_is_there_on_average():
    """Four for half an hour, then two: three on average, and one fall that took two."""
    offers, _ = scenario.spot_offers(trace(), price=Price.from_usd_per_h("1"))
    assert offers["z"].reclaim_share == pytest.approx(2 / 3)
    one_by_one = trace(series={"z": steps((0, 4), (1200, 3), (2400, 2))})
    offers, _ = scenario.spot_offers(one_by_one, price=Price.from_usd_per_h("1"))
    assert offers["z"].reclaim_share == pytest.approx(1 / 3)
    assert offers["z"].hazard_per_h == pytest.approx(2 / 3)  # two losses in three instance-hours


def test_zones_whose_record_ends_early_are_named():
    series = {"z": steps((0, 4), (1800, 2)), "y": steps((0, 1), (900, 0))}
    short = trace(series=series, end_s={"z": 3600.0, "y": 1800.0})
    offers, _ = scenario.spot_offers(short, price=Price.from_usd_per_h("1"))
    notes = scenario.spot_market(short, offers, first_s=0.0).cloud.notes
    assert [note for note in notes if "only" in note] == ["y is recorded for 0.5 h only: its last number after that"]
    whole = trace(series=series, end_s={"z": 3600.0, "y": 3590.0})
    assert not any("only" in note for note in scenario.spot_market(whole, offers, first_s=0.0).cloud.notes)
