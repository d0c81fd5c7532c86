from __future__ import annotations

import doctest
import itertools
import math

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.perf.migration import Layers, LinearCosts, moves_from_costs
from sublet.solve import coefficients, expectation
from sublet.solve.coefficients import choose
from sublet.solve.expectation import Loss, expected_moves, keeps

SURE = 12.6  # log(3 / 1e-5): one interval in a hundred thousand is too narrow


def random_costs(rng):
    layers = Layers(tuple(rng.choice([1e8, 3e8], size=int(rng.integers(8, 20))).tolist()))
    return LinearCosts(
        layers=layers,
        join_s=float(rng.uniform(1, 9)),
        process_s=float(rng.uniform(0.1, 2)),
        member_s=float(rng.uniform(0.01, 0.5)),
        layer_s=float(rng.uniform(0.1, 1)),
        bytes_per_s=1e9,
    )


def sampled_moves(costs, source, target, loss, draws, rng):
    """The Monte-Carlo twin: seconds of one change in each draw of victims."""
    (wide, deep), (new_wide, new_deep) = source, target
    hit = wide if loss.pipelines is None else min(wide, loss.pipelines)
    reach = [*[hit] * deep, loss.instances - hit * deep]
    lost_XP = rng.multivariate_hypergeometric(reach, loss.lost, size=draws)[:, :deep]
    kept_XP = wide - lost_XP
    grow = new_wide * new_deep > wide * deep - loss.lost
    restart_s = costs.restart_s(new_wide, new_deep, grow=grow)
    if loss.lost == 0 and source == target:
        return np.zeros(draws)
    if deep == new_deep:
        stage_P = np.array([costs.transfer_s(params) for params in costs.layers.stages(deep)])
        short_XP = kept_XP < new_wide
        longest = np.where(short_XP, stage_P, 0.0).max(axis=1)
        gone = np.where(kept_XP == 0, stage_P, 0.0).sum(axis=1)
        moved = np.maximum(longest, gone) + restart_s
        return np.where(short_XP.any(axis=1), moved, costs.regroup_s(new_wide, new_deep))
    spread = max(map(costs.transfer_s, costs.layers.stages(new_deep))) if new_wide > 1 else 0.0
    rows, back = np.unique(kept_XP, axis=0, return_inverse=True)
    return restart_s + spread + np.array([last_stage_s(costs, row, deep, new_deep) for row in rows])[back.reshape(-1)]


def last_stage_s(costs, kept, deep, new_deep):
    params, was, now = costs.layers.params, costs.layers.ends(deep), costs.layers.ends(new_deep)

    def shared(stage, donor):
        return sum(params[max(now[stage], was[donor]) : min(now[stage + 1], was[donor + 1])])

    left = list(kept)
    for stage in range(new_deep - 1):
        left[max(range(deep), key=lambda donor: shared(stage, donor))] -= 1
    best = max((shared(new_deep - 1, donor) for donor in range(deep) if left[donor] > 0), default=0.0)
    return costs.transfer_s(sum(params[now[-2] :]) - best)


def expected_untouched(wide, deep, *, loss):
    """Expected number of pipelines that lose nothing: liveput where a pipeline with a hole stops as a whole."""
    wide, deep = np.asarray(wide), np.asarray(deep)
    hit = loss.hit(wide)
    spared = choose(loss.instances - deep, loss.lost) / choose(loss.instances, loss.lost)
    return wide - hit + hit * spared


@pytest.mark.parametrize("module", [expectation, coefficients])
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


def test_five_hundred_random_changes_cost_what_sampling_says():
    rng, draws = np.random.default_rng(1), 1_000
    for _ in range(50):
        costs = random_costs(rng)
        depths = rng.choice(np.arange(1, 7), size=3, replace=False).tolist()
        most = int(rng.integers(max(depths), 25))
        grids = [(0, 0), *((w, d) for d in depths for w in range(1, most // d + 1))]
        lost = int(rng.integers(0, min(most, 8) + 1))
        loss = Loss(instances=most, lost=lost)
        if rng.random() < 0.3:  # one zone, with so many whole pipelines in it
            loss = Loss(instances=most, lost=lost, pipelines=int(rng.integers(0, 3)))
        exact_CC = expected_moves(moves_from_costs(costs, grids), [loss])
        for _ in range(10):
            source, target = rng.integers(1, len(grids), size=2).tolist()
            seconds = sampled_moves(costs, grids[source], grids[target], loss, draws, rng)
            width = math.sqrt(2 * seconds.var() * SURE / draws) + 3 * 60.0 * SURE / draws
            assert abs(seconds.mean() - exact_CC[source, target]) <= width, (grids[source], grids[target], loss)


def test_small_cases_are_exact_by_enumeration():
    rng = np.random.default_rng(2)
    for _ in range(60):
        costs = random_costs(rng)
        wide, deep, spare = (int(x) for x in rng.integers([1, 2, 0], [3, 4, 3]))
        size = wide * deep + spare
        lost = int(rng.integers(1, min(size, 5)))
        grids = [(0, 0), *((w, deep) for w in (1, 2, 3))]
        exact_CC = expected_moves(moves_from_costs(costs, grids), [Loss(instances=size, lost=lost)])
        stage_P = np.array([costs.transfer_s(params) for params in costs.layers.stages(deep)])
        for target in (1, 2, 3):
            total, ways = 0.0, 0
            for victims in itertools.combinations(range(size), lost):
                kept = np.full(deep, wide)
                for node in victims:
                    if node < wide * deep:
                        kept[node % deep] -= 1
                ways += 1
                if (kept >= target).all():
                    total += costs.regroup_s(target, deep)
                    continue
                longest = stage_P[kept < target].max()
                total += max(longest, stage_P[kept == 0].sum())
                total += costs.restart_s(target, deep, grow=target * deep > wide * deep - lost)
            assert exact_CC[wide, target] == pytest.approx(total / ways, rel=1e-12)


def test_a_mixture_is_the_mean_of_its_parts():
    costs = random_costs(np.random.default_rng(3))
    moves = moves_from_costs(costs, [(0, 0), (1, 2), (2, 2), (1, 3)])
    parts = [Loss(instances=6, lost=1, chance=0.25), Loss(instances=4, lost=2, chance=0.75, pipelines=1)]
    alone = [
        expected_moves(moves, [Loss(instances=6, lost=1)]),
        expected_moves(moves, [Loss(instances=4, lost=2, pipelines=1)]),
    ]
    assert expected_moves(moves, parts) == pytest.approx(0.25 * alone[0] + 0.75 * alone[1])


def test_a_zone_that_holds_no_pipeline_costs_what_losing_spares_costs():
    costs = random_costs(np.random.default_rng(4))
    moves = moves_from_costs(costs, [(0, 0), (2, 2)])
    seconds = expected_moves(moves, [Loss(instances=5, lost=2, pipelines=0)])
    assert seconds[1, 1] == pytest.approx(costs.regroup_s(2, 2))


def test_more_losses_never_leave_more_alive():
    wide, deep = [4, 2, 8], [2, 4, 1]
    kept = [keeps(wide, deep, loss=Loss(instances=12, lost=lost)) for lost in range(9)]
    assert (np.diff(kept, axis=0) <= 1e-12).all()
    assert kept[0].sum(axis=1).tolist() == wide
    whole = [expected_untouched(wide, deep, loss=Loss(instances=12, lost=lost)) for lost in range(9)]
    assert (np.diff(whole, axis=0) <= 1e-12).all()


def test_a_single_pipeline_dies_in_proportion_to_its_share():
    for lost in range(9):
        chance = keeps([1], [8], loss=Loss(instances=10, lost=lost))[0, 0]
        assert chance == pytest.approx(math.comb(2, lost) / math.comb(10, lost))


def test_hundreds_of_instances_lose_no_precision():
    chance = keeps([64], [8], loss=Loss(instances=512, lost=40))[0]
    assert (np.diff(chance) <= 1e-12).all()
    assert chance[0] == pytest.approx(1.0)
    moves = moves_from_costs(random_costs(np.random.default_rng(5)), [(0, 0), (64, 4), (32, 8), (128, 4)])
    assert np.isfinite(expected_moves(moves, [Loss(instances=512, lost=40)])).all()


@pytest.mark.parametrize(
    "bad", [{"instances": 3, "lost": 4}, {"instances": 3, "lost": -1}, {"instances": 3, "lost": 1, "chance": 2.0}]
)
def test_losses_that_cannot_be_are_refused(bad):
    with pytest.raises(InvalidValue):
        Loss(**bad)


def test_chances_must_add_up():
    moves = moves_from_costs(random_costs(np.random.default_rng(6)), [(0, 0), (1, 2)])
    with pytest.raises(InvalidValue, match="add up to 1"):
        expected_moves(moves, [Loss(instances=3, lost=1, chance=0.5)])


def test_a_source_that_does_not_fit_has_no_way_out():
    moves = moves_from_costs(random_costs(np.random.default_rng(7)), [(0, 0), (1, 2), (2, 2)])
    seconds = expected_moves(moves, [Loss(instances=3, lost=1)])
    assert np.isinf(seconds[2]).all()
    assert np.isfinite(seconds[:2]).all()
