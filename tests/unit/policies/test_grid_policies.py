"""`fastest` and `liveput` with jobs that know grids, alone and beside others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed
from sublet.domain.plan import Phase
from sublet.domain.shape import Grid, Shape
from sublet.market.losses import LossesAhead
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.planning.lookahead import Step, capacity_by_tick, capacity_changes, steps_ahead
from sublet.planning.objective import Objective, SpotPrices
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.8 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
PROFILE = spot_job("toy", RATES, COSTS)


def gridded(job_id="g", most=12, **facts):
    pauses = LivePauses(PROFILE)
    speed = Gridded(PROFILE)
    return a_job(
        job_id, work=math.inf, speed=speed, pauses=pauses, survives=True, gpus=2, min_gpus=2, max_gpus=most, **facts
    )


def driven(policy, jobs, supply=9):
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    driver.tell(AvailabilityChanged(0.0, "o", supply))
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def shape(driver, job_id="g"):
    return driver.kernel.jobs[job_id].shape


def test_the_fastest_grid_that_fits_and_the_rest_are_spares():
    driver = driven(Fastest(), [gridded()])
    best = max((grid for grid in RATES if grid[0] * grid[1] <= 9), key=RATES.get)
    assert shape(driver) == Shape("p", 9, grid=Grid(*best))
    assert driver.kernel.jobs["g"].phase is Phase.RUNNING


def test_jobs_with_and_without_grids_share_what_there_is_in_order_of_arrival():
    for policy in (Fastest(), Liveput()):
        driver = driven(policy, [gridded(most=6), a_job("w", gpus=2, max_gpus=9), gridded("last")])
        assert (shape(driver).gpus, shape(driver, "w").gpus) == (6, 3)
        assert shape(driver, "last") is None


def test_where_a_change_costs_more_than_it_brings_liveput_keeps_its_grid_and_fastest_does_not():
    dear = spot_job("dear", RATES, replace(COSTS, process_s=500.0))
    kept = {}
    for policy in (Fastest(), Liveput()):
        driver = driven(policy, [replace(gridded(), speed=Gridded(dear), pauses=LivePauses(dear))], supply=8)
        before = shape(driver).grid
        driver.tell(AvailabilityChanged(600.0, "o", 9))
        driver.settle(policy)
        assert shape(driver).gpus == 9
        kept[type(policy)] = shape(driver).grid == before
    assert kept == {Fastest: False, Liveput: True}


def test_liveput_asks_to_be_asked_again_once_it_has_been_calm():
    driver = driven(Liveput(), [gridded()])
    plan = Liveput().decide(driver.kernel.snapshot())
    assert plan.ask_again_s == 600.0  # ten ticks after the last change


def test_what_is_announced_to_fall_is_no_longer_counted_on():
    driver = driven(Liveput(), [gridded()])
    driver.tell(NodeNoticed(30.0, "n1", 150.0))
    snapshot = driver.kernel.snapshot()
    assert Liveput().decide(snapshot).shapes["g"].gpus == 8
    changes = capacity_changes(snapshot.pools["p"], snapshot, 8, 12)
    assert changes == [(0.0, 9)]
    assert capacity_by_tick(changes, 8, 30.0, 60.0).tolist() == [9.0, 8.0]


@pytest.mark.parametrize("policy", [Fastest(), Liveput()], ids=["fastest", "liveput"])
def test_who_will_have_too_few_to_train_at_all_trains_until_they_are_taken(policy):
    driver = driven(policy, [gridded()], supply=2)
    driver.tell(NodeNoticed(30.0, "n1", 150.0))
    assert driver.kernel.snapshot().falling == {"g": 1}
    driver.settle(policy)
    assert driver.kernel.jobs["g"].phase is Phase.RUNNING
    driver.tell(AvailabilityChanged(150.0, "o", 1))
    driver.tell(NodeLost(150.0, "n1"))
    driver.settle(policy)
    assert (shape(driver), driver.kernel.jobs["g"].phase) == (None, Phase.WAITING)


def test_who_was_to_have_too_few_and_finds_others_in_time_goes_on_there():
    driver = driven(Fastest(), [gridded()], supply=2)
    driver.tell(NodeNoticed(30.0, "n1", 150.0))
    driver.settle(Fastest())
    driver.tell(AvailabilityChanged(60.0, "o", 3))
    driver.settle(Fastest())
    for event in (AvailabilityChanged(150.0, "o", 2), NodeLost(150.0, "n1")):
        driver.tell(event)
        driver.settle(Fastest())
    state = driver.kernel.jobs["g"]
    assert (state.phase, state.gpus) == (Phase.RUNNING, 2)


def test_who_needs_time_to_save_leaves_at_the_notice_where_too_few_will_be_left():
    driver = driven(Fastest(), [gridded(lead_s=5.0)], supply=2)
    driver.tell(NodeNoticed(30.0, "n1", 150.0))
    driver.settle(Fastest())
    assert shape(driver) is None


def test_history_is_what_the_pool_had_for_this_job():
    driver = driven(Fastest(), [])
    for at_s, nodes in ((90.0, 30), (150.0, 7)):
        driver.tell(AvailabilityChanged(at_s, "o", nodes))
    snapshot = driver.kernel.snapshot()
    changes = capacity_changes(snapshot.pools["p"], snapshot, 5, 12)  # others have two
    assert changes == [(0.0, 7), (90.0, 12), (150.0, 5)]
    assert capacity_by_tick(changes, 5, 180.0, 60.0).tolist() == [7.0, 7.0, 12.0, 5.0]


def test_where_nothing_is_known_of_supply_it_has_always_been_as_now():
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    driver.submit(gridded())
    driver.settle(Liveput())
    assert shape(driver).gpus == 12


def test_losses_that_may_come_cost_what_going_on_after_them_takes():
    plain, paid = Objective(PROFILE), Objective(PROFILE, SpotPrices(usd_per_sample=2.0, usd_per_h=0.0))
    risk = plain.risk_S(9, ((2, 0.5), (9, 0.1)))
    for config, (wide, deep) in enumerate(PROFILE.grids):
        after_s = [PROFILE.pauses_s(9, left)[config, PROFILE.cut(config, left)] for left in (7, 0)]
        fits = wide * deep <= 9
        pause_s = 0.5 * after_s[0] + 0.1 * after_s[1] if fits else 0.0
        assert risk[config] == pytest.approx(PROFILE.rate_C[config] * pause_s)
    assert paid.risk_S(9, ((2, 0.5), (9, 0.1))) == pytest.approx([2.0 * each for each in (*risk, *risk)])
    assert not plain.risk_S(9, ()).any()


def test_they_are_paid_for_at_each_step_beside_the_rent():
    risky, safe = Step(9, 60.0, falls=((3, 0.2),)), Step(9, 60.0)
    for money in (None, SpotPrices(usd_per_sample=1.0, usd_per_h=3.6)):
        objective = Objective(PROFILE, money)
        rent = 0.0 if money is None else objective.pay_HS([9, 9], [60.0, 60.0])
        pay = steps_ahead(objective, 9, [risky, safe]).pay_HC - rent
        assert pay[0] == pytest.approx(objective.risk_S(9, ((3, 0.2),)))
        assert pay[1] == pytest.approx(0.0)
        assert pay[0].max() > 1.0


def test_where_falls_are_likely_liveput_goes_to_what_survives_them():
    dear = spot_job("dear", RATES, replace(COSTS, join_s=55.0, process_s=5.5))
    job = replace(gridded(), speed=Gridded(dear), pauses=LivePauses(dear))
    spares = []
    for losses in (None, LossesAhead(excess=0.9, half_life_ticks=50.0)):
        policy = Liveput(losses=losses)
        driver = driven(policy, [job], supply=12)
        driver.tell(AvailabilityChanged(60.0, "o", 11))
        driver.settle(policy)
        spares.append(shape(driver).spares)
    assert spares == [1, 7]
