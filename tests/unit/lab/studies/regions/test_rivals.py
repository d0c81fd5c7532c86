"""Rivals over regions do what their papers say: worked out by hand, and once through the kernel on a made-up market."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.policies.regions.places import Place
from sublet.policies.regions.policy import Clock
from sublet_lab.studies.regions.ride import ride
from sublet_lab.studies.regions.rivals import GreedySpot, UniformProgress
from sublet_lab.studies.regions.scene import Scene, Window
from sublet_lab.studies.regions.skynomad import SkyNomad, VirtualInstance

PAUSE_H = 0.25


def place(name, usd_per_h, *, steady=False, room=True):
    return Place(
        shape=Shape(name, 1),
        region="east",
        steady=steady,
        usd_per_h=usd_per_h,
        left_h=10.0,
        pause_h=PAUSE_H,
        lost_per_h=0.0 if steady else 0.1,
        up=1.0 if steady else 0.5,
        back_h=1.0,
        has_room=room,
        is_own=False,
        is_here=False,
    )


CHEAP, DEAR = place("cheap spot", 1.0), place("dear spot", 2.0)
SURE, SURER = place("sure", 5.0, steady=True), place("surer", 6.0, steady=True)
GONE = place("cheap spot", 1.0, room=False)


def ahead_by(hours):
    """Of 24 hours of work within 40, ten have passed: at an even pace six are done."""
    return Clock(slack_h=12.0 + hours, left_h=18.0 - hours, done_h=6.0 + hours, passed_h=10.0, pause_h=PAUSE_H)


def chosen(policy, places, clock, here=None):
    return [each.shape.pool for each in policy._choose(places, here, "east", clock)]


# ---------------------------------------------------------------------- Uniform Progress


def test_who_is_behind_and_finds_no_spot_goes_on_demand_and_who_is_ahead_waits():
    assert chosen(UniformProgress(), [GONE, SURER, SURE], ahead_by(-0.1)) == ["sure"]
    assert chosen(UniformProgress(), [GONE, SURER, SURE], ahead_by(0.1)) == []
    assert chosen(GreedySpot(), [GONE, SURER, SURE], ahead_by(-0.1)) == []


@pytest.mark.parametrize("hours", [-3.0, 3.0])
def test_where_there_is_spot_it_takes_the_cheapest_and_stays(hours):
    clock = ahead_by(hours)
    assert chosen(UniformProgress(), [DEAR, CHEAP, SURE], clock) == ["cheap spot", "dear spot"]
    assert chosen(UniformProgress(), [DEAR, CHEAP, SURE], clock, here=DEAR) == ["dear spot"]


def test_on_demand_it_stays_until_it_is_two_pauses_ahead():
    """Else it would be back on demand with the first loss, for the price of two starts."""
    places = [CHEAP, SURE]
    for hours in (-1.0, 0.0, 2 * PAUSE_H - 0.01):
        assert chosen(UniformProgress(), places, ahead_by(hours), here=SURE) == ["sure"]
    assert chosen(UniformProgress(), places, ahead_by(2 * PAUSE_H + 0.01), here=SURE) == ["cheap spot"]


def test_through_the_kernel_it_is_on_demand_once_it_is_behind_while_greedy_spot_waits():
    """Spot for two hours, none for five, and then again: six hours of work within twelve."""
    hour_s, day_s = SECONDS_PER_H, 24 * SECONDS_PER_H
    supply = Steps(t_s=np.array([0.0, 2.0, 7.0]) * hour_s, value=np.array([1, 0, 1]))
    scene = Scene(
        name="made up",
        gpu="V100",
        trace=SpotTrace(
            name="made up", series={"east-1a": supply}, end_s={"east-1a": day_s}, span_s=day_s, max_available=1
        ),
        spot={"east-1a": Steps(t_s=np.zeros(1), value=np.array([1_000_000]))},
        on_demand={"east-1": 3.0},
        tick_s=600.0,
        unit_s=120.0,
        restart_s=360.0,
    )
    window = Window(scene=scene, begins_s=0.0, work_s=6 * hour_s, within_s=12 * hour_s)
    even, greedy = ride(window, UniformProgress()), ride(window, GreedySpot())
    assert even.in_time
    assert greedy.in_time
    assert even.places[:2] == ("east-1a spot", "east-1 on demand")
    assert greedy.places == ("east-1a spot", "east-1a spot")  # it waits, and spot comes back before the last call
    assert even.usd > 1.2 * greedy.usd  # what was on demand costs three times as much


# ---------------------------------------------------------------------- SkyNomad


@pytest.mark.parametrize(("done_h", "goes"), [(5.0, True), (10.0, False)])
def test_an_hour_is_worth_the_price_on_demand_times_the_pace_needed_over_the_pace_so_far(done_h, goes):
    """Ten hours are left within twenty. Who made half of its time so far needs the same pace: an hour is worth 5, less
    what a quarter of an hour of pause takes of twenty; who made all of it is worth half of that. Spot costs 3.
    """
    nomad, spot = SkyNomad(), place("spot", 3.0)
    nomad._seen["spot"] = VirtualInstance()  # never seen to end
    clock = Clock(slack_h=10.0, left_h=10.0, done_h=done_h, passed_h=10.0, pause_h=PAUSE_H)
    assert chosen(nomad, [spot, SURE], clock) == (["spot"] if goes else [])
