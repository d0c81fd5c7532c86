"""Where a job with a deadline goes, what it waits for, and when it does not."""

from __future__ import annotations

import pytest

from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.events import AvailabilityChanged
from sublet.domain.offer import Market
from sublet.errors import InvalidValue
from sublet.policies.regions.policy import Regions
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0
PAUSE_S = 360.0


def spot(offer_id, usd_per_h="1", region="east"):
    facts = {"pool": offer_id, "region": region, "hazard_per_h": 0.2}
    return an_offer(offer_id, gpus=1, usd_per_h=usd_per_h, **facts)


SURE = an_offer("sure", gpus=1, usd_per_h="5", pool="sure", region="east", market=Market.ON_DEMAND)


def ride(offers, changes, within_h, work_h=10.0, policy=None):
    """Where it went and when, in hours; what it cost; when it was done."""
    went = []

    def watch(event, actions):
        orders = (order for order in actions if isinstance(order, StartJob | ResizeJob))
        went.extend((event.at_s / HOUR_S, order.shape.pool) for order in orders)

    market = [AvailabilityChanged(hour * HOUR_S, offer_id, nodes) for hour, offer_id, nodes in changes]
    cloud = Cloud(offers=offers, physics=Physics(notice_s=0.0, says_supply=False), market=lambda: market)
    deadline_s = None if within_h is None else within_h * HOUR_S
    facts = {"gpus": 1, "restart_s": PAUSE_S, "checkpoint_every_s": 1.0, "deadline_s": deadline_s}
    job = a_job(work=work_h * HOUR_S, **facts)
    run = simulate([job], policy or Regions(), cloud, watch=watch, until_s=100 * HOUR_S)
    return went, run.metrics.usd, run.record.jobs[job.id].finish_s / HOUR_S


def test_with_time_to_spare_it_waits_for_the_cheap_place():
    went, usd, _ = ride([spot("cheap"), spot("dear", "3"), SURE], [(0, "cheap", 0), (2, "cheap", 1)], within_h=40)
    assert [pool for _, pool in went] == ["cheap"]
    assert 2.0 <= went[0][0] < 2.3  # as soon as it asks again: after a quarter of an hour at most
    assert usd == pytest.approx(10.1)


def test_with_little_time_it_takes_the_dear_one_and_moves_when_the_cheap_one_comes():
    went, _, _ = ride([spot("cheap"), spot("dear", "2"), SURE], [(0, "cheap", 0), (4, "cheap", 1)], within_h=12)
    assert [pool for _, pool in went] == ["dear", "cheap"]
    assert went[0][0] < 1.9
    assert 4.0 <= went[1][0] < 4.3


def test_where_no_spot_comes_it_waits_then_goes_on_demand_and_is_in_time():
    went, _, ended_h = ride([spot("cheap"), SURE], [(0, "cheap", 0)], within_h=16)
    assert [pool for _, pool in went] == ["sure"]
    assert went[0][0] > 1.0
    assert ended_h <= 16


def test_it_goes_on_demand_early_enough_to_come_back_to_spot():
    went, usd, ended_h = ride([spot("cheap"), SURE], [(0, "cheap", 0), (4, "cheap", 1)], within_h=12)
    assert [pool for _, pool in went] == ["sure", "cheap"]
    assert usd < 40
    assert ended_h <= 12


def test_what_comes_back_too_late_for_another_pause_is_left_alone():
    """After its first pause it has slack for one more, and not for one on spot and another on demand."""
    went, _, ended_h = ride([spot("cheap"), SURE], [(0, "cheap", 0), (1, "cheap", 1), (2, "cheap", 0)], within_h=10.25)
    assert [pool for _, pool in went] == ["sure"]
    assert ended_h <= 10.25


@pytest.mark.parametrize(("egress_usd", "places"), [(0.0, ["home", "away"]), (8.0, ["home", "home"])])
def test_it_carries_its_state_away_only_where_that_is_worth_it(egress_usd, places):
    changes = [(2, "home", 0), (5, "home", 1)]
    offers = [spot("home"), spot("away", "1.01", region="west"), SURE]
    went, _, _ = ride(offers, changes, within_h=24, policy=Regions(egress_usd=egress_usd))
    assert [pool for _, pool in went] == places


def test_of_equal_places_it_starts_where_it_has_a_neighbour_to_go_to():
    offers = [spot("alone", region="west"), spot("a"), spot("b"), SURE]
    went, _, _ = ride(offers, [(2, "a", 0)], within_h=15)
    assert [pool for _, pool in went] == ["a", "b"]


def test_without_a_deadline_it_takes_the_cheapest_that_there_is():
    went, _, _ = ride([spot("cheap"), spot("dear", "3"), SURE], [(0, "cheap", 0)], within_h=None)
    assert went[0] == (0.0, "dear")


def test_a_place_that_loses_nodes_often_is_left_for_one_that_keeps_them():
    """Each time it is soon back, so that waiting for it seems cheap: what its pauses cost is seen from losses alone."""
    falls = [(at / 2 + later, "flaps", nodes) for at in range(1, 40) for later, nodes in ((0.0, 0), (0.03, 1))]
    went, _, _ = ride([spot("flaps"), spot("stays", "1.1"), SURE], falls, within_h=40)
    assert went[-1][1] == "stays"
    assert 2 <= [pool for _, pool in went].count("flaps") <= 8


def test_a_negative_price_of_carriage_is_refused():
    with pytest.raises(InvalidValue):
        Regions(egress_usd=-1.0)
