"""A job that knows grids over toy markets, through the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.market.forecast import Persistence
from sublet.perf.gridded import StoragePauses
from sublet.perf.grids import SUSPENDED, spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.planning.objective import Objective
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet_lab.forecasting.parcae import ParcaeForecast
from sublet_lab.forecasting.simple import Foreknown
from sublet_lab.rides.bamboo import replay_bamboo
from sublet_lab.rides.bounds import constant, most_kept, oracle, path_value
from sublet_lab.rides.parcae import Parcae
from sublet_lab.rides.record import Record
from sublet_lab.rides.ride import Supply, Way, ride

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.8 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
WAYS = {
    "checkpoint-restart": Way(Fastest(), StoragePauses),
    "greedy-live": Way(Fastest()),
    "parcae": Way(Parcae(forecaster=Persistence())),
    "parcae, published": Way(Parcae(forecaster=ParcaeForecast(least=0, most=12))),
    "liveput": Way(Liveput()),
}


def job():
    return spot_job("toy", RATES, COSTS)


def walk(seed, ticks=80, most=12):
    rng = np.random.default_rng(seed)
    now, path = 8, []
    for _ in range(ticks):
        if rng.random() < 0.3:
            now = int(np.clip(now + rng.integers(-4, 5), 0, most))
        path.append(now)
    return tuple(path)


@pytest.mark.parametrize("name", WAYS)
def test_nobody_does_better_than_the_oracle_nor_that_better_than_ideal_nor_with_more_than_there_is(name):
    for seed in range(2):
        toy, record = job(), Record(capacity=walk(seed))
        best = ride(toy, Way(oracle(toy, record)), record)
        assert best.samples <= ride(toy, Way(Fastest(), None), record).samples
        assert best.samples == pytest.approx(path_value(Objective(toy), record), rel=1e-6)
        done = ride(toy, WAYS[name], record, checked=True)
        assert done.samples <= best.samples * (1 + 1e-9)
        config_T = done.config_T(len(record.capacity), 60.0)
        assert all(toy.use_C[config] <= now for config, now in zip(config_T, record.capacity, strict=True))
        assert done.usd <= sum(record.capacity) * 0.918 / 60 + 1e-9


def test_below_the_memory_bound_the_job_is_suspended_and_nothing_is_paid():
    done = ride(job(), Way(Liveput()), (8,) * 5 + (1,) * 5 + (8,) * 5, usd_per_h=1.0)
    assert done.config_T(15, 60.0)[5:10] == (SUSPENDED,) * 5
    assert done.suspended_s == 300.0
    assert done.usd == pytest.approx(10 / 60 * 8)
    assert done.config_T(15, 60.0)[-1] != SUSPENDED


def test_a_calm_market_is_ridden_without_a_change():
    toy = job()
    done = ride(toy, Way(Liveput()), (9,) * 60)
    assert done.changes == 1
    assert done.shapes == ((0.0, toy.fastest(9)),)


def test_with_the_truth_as_forecast_looking_far_is_the_oracle():
    toy, capacity = job(), (9, 9, 12, 12, 7, 7, 7, 10, 10, 10)
    truth = Foreknown(truth=np.array(capacity, dtype=float))
    record = Record(capacity=capacity)
    seeing = ride(toy, Way(Parcae(steps=40, forecaster=truth)), record).samples
    assert seeing == pytest.approx(ride(toy, Way(oracle(toy, record)), record).samples)


def test_parcae_does_not_see_the_tick_at_which_it_decides():
    toy, capacity = job(), (4, 12, 12, 12)
    done = ride(toy, Way(Parcae(forecaster=Persistence())), capacity)
    assert toy.use_C[done.config_T(4, 60.0)[1]] == 4  # twelve are there, and it learns of them a tick later
    assert toy.use_C[done.config_T(4, 60.0)[2]] == 12


def test_a_loss_between_ticks_is_met_when_it_happens():
    toy, capacity = job(), (12,) * 3 + (6,) * 3
    for name in ("liveput", "parcae", "greedy-live"):
        early = ride(toy, WAYS[name], Record(capacity=capacity, between=((150.0, 6),))).samples
        assert early < ride(toy, WAYS[name], Record(capacity=capacity)).samples  # half a minute less on many instances


def test_with_money_fewer_instances_are_held_the_less_a_sample_is_worth():
    toy, values = job(), (1e-7, 1.2e-5, 3e-5, 1e-2)
    usd = [ride(toy, Way(Liveput(value)), (12,) * 60, usd_per_h=1.0, boot_s=45.0).usd for value in values]
    assert usd[0] == 0.0  # it costs more than it is worth
    assert usd == sorted(usd)
    assert usd[1] < usd[-1] <= 12.0 + 1e-9


def test_what_has_come_runs_already_and_what_was_given_back_boots():
    toy = job()
    prompt = ride(toy, Way(Liveput()), (12,) * 10, boot_s=45.0)
    assert prompt.samples == pytest.approx(ride(toy, Way(Liveput()), (12,) * 10).samples)
    late = ride(toy, Way(Liveput()), Record(capacity=(12,) * 10, before=(12,)), boot_s=45.0)
    assert late.shapes[0][0] == 45.0  # they were there before it came


def test_zones_are_offers_of_one_pool_and_a_loss_in_one_is_a_loss():
    toy = job()
    zones = {"a": [(0.0, 8), (300.0, 4)], "b": [(0.0, 4), (300.0, 8)]}
    apart = ride(toy, Way(Liveput()), Supply(zones=zones, begins_s=0.0, ends_s=600.0, most=12))
    together = ride(toy, Way(Liveput()), (12,) * 10)
    assert apart.changes == together.changes + 1  # four go, four others come
    assert apart.samples < together.samples
    fewer = ride(toy, Way(Liveput()), Supply(zones=zones, begins_s=0.0, ends_s=600.0, most=6))
    assert fewer.usd <= 6 * 0.918 / 6 + 1e-9


def test_a_fall_hits_any_of_those_that_run_and_not_only_what_is_too_many():
    toy, capacity = job(), (12,) * 5 + (7,) * 5
    small = toy.at[1, 2]
    hit = [ride(toy, Way(constant(small)), capacity, seed=seed).changes > 1 for seed in range(12)]
    assert any(hit)
    assert not all(hit)  # five of twelve go: a grid of two is spared in one case of three
    spared = ride(toy, Way(constant(small)), capacity, of_running=False)
    assert spared.changes == 1


def test_constant_grids_never_keep_more_than_with_free_changes():
    toy, record = job(), Record(capacity=walk(1, ticks=30))
    most_C = most_kept(toy, record, 3e-5, 1.0)
    for config in (1, 5, 9):
        done = ride(toy, Way(constant(config)), record, usd_per_h=1.0, boot_s=45.0)
        assert 3e-5 * done.samples - done.usd <= most_C[config] + 1e-9


def test_bamboo_survives_one_loss_in_a_pipeline():
    toy = job()
    done = replay_bamboo(toy, Record(capacity=(9,) * 5 + (8,) * 5), deep=3)
    assert done.samples > 0
    assert done.config_T(10, 60.0)[0] == toy.at[3, 3]


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="capacity"):
        ride(job(), Way(Liveput()), ())
    with pytest.raises(InvalidValue, match="usd_per_sample"):
        Liveput(-1.0)
    with pytest.raises(InvalidValue, match="steps"):
        Parcae(steps=0)
    with pytest.raises(InvalidValue, match="rates"):
        spot_job("none", {}, COSTS)
