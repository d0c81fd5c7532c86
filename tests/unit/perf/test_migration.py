from __future__ import annotations

import doctest

import numpy as np
import pytest

from sublet.errors import InvalidValue, UnknownName
from sublet.perf import migration
from sublet.perf.migration import Layers, LinearCosts, Pause, calibrated, smoothed
from sublet.perf.parcae import PARCAE_MODELS, parcae_costs, parcae_rates


def test_the_examples_in_the_docstrings_hold():
    failed, tried = doctest.testmod(migration)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize(
    ("model", "params_m", "shrink_s", "grow_s", "largest_s"),
    [  # ranges over all profiled grids, as printed in notes on the original
        ("bert", 366, (1.6, 3.8), (8.7, 11.4), 2.6),
        ("resnet152", 60, (1.1, 2.2), (11.6, 13.1), 0.4),
        ("gpt-1.5b", 1640, (3.1, 5.6), (17.6, 41.0), 4.4),
        ("gpt-6.7b", 7679, (10.4, 13.4), (29.8, 41.6), 11.0),
    ],
)
def test_published_costs_have_the_published_magnitudes(model, params_m, shrink_s, grow_s, largest_s):
    costs, grids = parcae_costs(model), parcae_rates(model)
    assert sum(costs.layers.params) / 1e6 == pytest.approx(params_m, abs=1.0)
    for grow, (low, high) in ((False, shrink_s), (True, grow_s)):
        seconds = [costs.restart_s(*grid, grow=grow) for grid in grids]
        assert min(seconds) >= low - 0.15
        assert max(seconds) <= high + 0.15
    longest = max(costs.transfer_s(params) for _, deep in grids for params in costs.layers.stages(deep))
    assert longest == pytest.approx(largest_s, abs=0.11)


def test_stages_hold_all_layers_and_the_rest_goes_to_the_back():
    for model in PARCAE_MODELS:
        layers = parcae_costs(model).layers
        for deep in range(1, 33):
            ends = layers.ends(deep)
            assert ends[0] == 0
            assert ends[-1] == len(layers.params)
            assert sum(layers.stages(deep)) == pytest.approx(sum(layers.params))
    assert Layers((1.0,) * 26).ends(4) == [0, 7, 13, 20, 26]


def test_what_can_be_made_ready_is_part_of_the_restart():
    for model in PARCAE_MODELS:
        costs = parcae_costs(model)
        for grid in parcae_rates(model):
            for grow in (True, False):
                assert 0 < costs.ready_s(*grid, grow=grow) < costs.restart_s(*grid, grow=grow)


def test_transfers_beyond_the_largest_measured_grow_in_proportion():
    costs = parcae_costs("bert")
    assert costs.transfer_s(4e8) == pytest.approx(2 * costs.transfer_s(2e8))
    assert costs.transfer_s(0.0) == pytest.approx(1.42907e-4)


def test_calibration_finds_the_constants_through_noise():
    rng = np.random.default_rng(0)
    layers = Layers((1e8,) * 25)
    true = LinearCosts(layers=layers, join_s=6.6, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=0.9e9)
    seen = []
    for _ in range(200):
        wide, deep, grow = int(rng.integers(1, 9)), int(rng.integers(1, 9)), bool(rng.integers(2))
        params = float(rng.uniform(0, 3e8))
        clean = true.restart_s(wide, deep, grow=grow) + true.transfer_s(params)
        seen.append(Pause(wide=wide, deep=deep, grow=grow, params=params, seconds=clean * rng.uniform(0.97, 1.03)))
        seen.append(
            Pause(wide=wide, deep=deep, grow=False, params=0.0, seconds=true.regroup_s(wide, deep), regrouped=True)
        )
    found = calibrated(layers, seen)
    for name in ("join_s", "process_s", "member_s", "layer_s", "bytes_per_s"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.1)


def test_too_few_pauses_are_refused():
    with pytest.raises(InvalidValue, match="at least 5"):
        calibrated(Layers((1.0, 1.0)), [])


def test_smoothing_finds_the_outliers_of_the_published_table():
    found = smoothed(parcae_rates("bert"))
    grids = [outlier.grid for outlier in found.outliers]
    assert (9, 2) in grids
    assert (10, 2) not in grids
    for deep in {deep for _, deep in found.rates}:
        speeds = [found.rates[grid] for grid in sorted(found.rates) if grid[1] == deep]
        assert speeds == sorted(speeds)
    clean = smoothed(found.rates)
    assert clean.rates == pytest.approx(found.rates)
    assert not clean.outliers


def test_an_unknown_model_gets_help():
    with pytest.raises(UnknownName, match="did you mean"):
        parcae_costs("gpt-6.7")
    with pytest.raises(UnknownName):
        parcae_rates("nobody")
