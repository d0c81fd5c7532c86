"""What a snapshot tells of the places where a job could be: worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.perf.speedup import Linear
from sublet.policies.regions.places import places_of
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0
NO_END = math.inf


def spot(offer_id="spot", *, gpus=4, **facts):
    told = {"pool": "p", "region": "east", "boot_s": 120.0, "hazard_per_h": 0.5}
    return an_offer(offer_id, gpus=gpus, usd_per_h=facts.pop("usd_per_h", "2"), **{**told, **facts})


def a_state(wants=8, shape=None, **facts):
    width = {"min_gpus": facts.pop("min_gpus", 1), "max_gpus": facts.pop("max_gpus", 99)}
    work = {"work": 16 * HOUR_S, "restart_s": 60.0, "speed": Linear()}
    job = a_job(gpus=wants, **width, **work)
    return JobState(job=job, seq=0, shape=shape, **{"done": 8 * HOUR_S, **facts})


def the_place(state, offers, left=NO_END, **told):
    """As the only pool is seen; `told` changes what is known of the first offer."""
    snapshot = Driver(offers).kernel.snapshot()
    promised = told.pop("promised", 0)
    states = dict(snapshot.offers)
    states[offers[0].id] = replace(states[offers[0].id], **told)
    snapshot = replace(snapshot, offers=states, promised={"p": promised})
    found = places_of(state, snapshot, {"p": left})
    assert len(found) <= 1
    return found[0] if found else None


def test_a_place_costs_its_nodes_and_takes_the_boot_the_restart_and_the_work_left():
    """Eight GPUs are two nodes of 2 USD; of 16 GPU-hours 8 are done, and the rest takes one."""
    place = the_place(a_state(), [spot()])
    assert place.shape == Shape("p", 8)
    assert (place.region, place.steady, place.usd_per_h) == ("east", False, 4.0)
    assert (place.left_h, place.pause_h) == (1.0, 180.0 / HOUR_S)
    assert (place.has_room, place.is_own, place.is_here) == (True, False, False)


def test_a_node_that_is_used_in_part_is_paid_whole():
    assert the_place(a_state(5, min_gpus=5), [spot()]).usd_per_h == 4.0
    assert the_place(a_state(4), [spot()]).usd_per_h == 2.0


def test_each_node_may_be_lost_as_often_as_is_listed_and_was_seen():
    """The listed 0.5 an hour counts as four hours: (4 x 0.5 + 4) / (4 + 8) a node and hour, and there are two nodes."""
    assert the_place(a_state(), [spot()]).lost_per_h == 1.0
    assert the_place(a_state(), [spot()], lost=4.0, held_h=8.0).lost_per_h == pytest.approx(1.0)
    assert the_place(a_state(4), [spot()], lost=0.0, held_h=12.0).lost_per_h == pytest.approx(2.0 / 16.0)


def test_on_demand_is_never_lost_and_always_up():
    place = the_place(a_state(), [spot(market=Market.ON_DEMAND, hazard_per_h=0.0)], lost=9.0)
    assert (place.steady, place.lost_per_h, place.up) == (True, 0.0, 1.0)
    assert the_place(a_state(), [spot()]).up == 0.7


@pytest.mark.parametrize(
    ("refused", "back_h"),
    [
        (0, 1.0),
        (5, 1.0),  # asked again after 1, 2, 4, 8 and 16 minutes: 31 of them
        (6, 1.0),
        (7, 63.0 / 60.0),  # and then every 16
        (9, 95.0 / 60.0),
    ],
)
def test_a_refusal_lasts_for_an_hour_and_then_for_as_long_again_as_it_has(refused, back_h):
    assert the_place(a_state(), [spot()], refused=refused).back_h == pytest.approx(back_h)


def test_of_several_offers_the_cheapest_of_which_there_is_one_counts():
    cheap, dear = spot("cheap", usd_per_h="1", zone="a", region=""), spot("dear", usd_per_h="3")
    assert the_place(a_state(), [cheap, dear]).usd_per_h == 2.0
    assert the_place(a_state(), [cheap, dear]).region == "a"  # a zone where there is no region
    assert the_place(a_state(), [cheap, dear], available=1).usd_per_h == 2.0
    assert the_place(a_state(), [cheap, dear], available=0).usd_per_h == 6.0
    alike = spot("a-twin", usd_per_h="1", region="west")
    assert the_place(a_state(), [cheap, alike]).region == "west"  # of equal ones the first by name


def test_a_job_is_as_wide_as_it_asked_for_or_as_there_is_left():
    assert the_place(a_state(), [spot()], left=8.0).shape.gpus == 8
    assert the_place(a_state(), [spot()], left=20.0).shape.gpus == 8
    assert the_place(a_state(), [spot()], left=4.0).shape.gpus == 4
    assert the_place(a_state(), [spot()], left=4.0).has_room
    short = the_place(a_state(min_gpus=8), [spot()], left=4.0)  # where it does not fit, it is seen, and has no room
    assert (short.shape.gpus, short.has_room) == (8, False)


def test_where_it_makes_progress_only_wider_than_it_asked_for_it_is_as_wide_as_that():
    class Wide(Linear):
        def rate(self, gpu, spread, done):
            return 0.0 if sum(spread) < 8 else 1.0 * sum(spread)

    state = a_state(4, max_gpus=16)
    job = replace(state.job, speed=Wide())
    assert the_place(replace(state, job=job), [spot()], left=16.0).shape.gpus == 8
    assert the_place(replace(state, job=job), [spot()], left=4.0) is None


def test_a_job_keeps_its_width_where_it_is_as_long_as_that_is_left():
    own = a_state(shape=Shape("p", 12))
    assert the_place(own, [spot()], left=12.0).shape.gpus == 12
    assert the_place(own, [spot()], left=11.0).shape.gpus == 8
    elsewhere = a_state(shape=Shape("other", 12))
    assert the_place(elsewhere, [spot()], left=12.0).shape.gpus == 8
    assert (the_place(own, [spot()], left=12.0).is_own, the_place(elsewhere, [spot()]).is_own) == (True, False)


def test_it_is_here_with_gpus_of_its_own_or_where_enough_are_ready_that_nobody_was_promised():
    own = a_state(shape=Shape("p", 8), gpus=1, phase=Phase.RUNNING)
    assert the_place(own, [spot()]).is_here
    assert not the_place(a_state(shape=Shape("p", 8)), [spot()]).is_here  # promised, and nothing has come
    assert not the_place(replace(own, shape=Shape("other", 8)), [spot()]).is_here
    new = a_state()
    assert the_place(new, [spot()], held=2).is_here
    assert the_place(new, [spot()], held=3, coming=1).is_here
    assert not the_place(new, [spot()], held=2, coming=1).is_here
    assert the_place(new, [spot()], held=3, promised=4).is_here
    assert not the_place(new, [spot()], held=3, promised=5).is_here


def test_all_pools_are_places_and_what_changes_in_the_market_is_seen():
    driver = Driver([spot("a", pool="a"), spot("b", pool="b", usd_per_h="3")])
    driver.tell(PriceChanged(0.0, "a", Price.from_usd_per_h("5")))
    driver.tell(AvailabilityChanged(0.0, "b", 0))
    places = places_of(a_state(), driver.kernel.snapshot(), {"a": NO_END, "b": 0.0})
    assert [(each.shape.pool, each.usd_per_h, each.has_room) for each in places] == [
        ("a", 10.0, True),
        ("b", 3.0, False),
    ]
    assert places[1].shape.gpus == 1  # the least that it runs on
