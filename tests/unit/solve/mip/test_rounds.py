"""A few choices go to HiGHS first, then more: whenever that ends, what is said holds and nothing was asked in vain."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sublet.errors import Infeasible
from sublet.solve.mip import moves
from sublet.solve.mip.highs import choose
from sublet.solve.mip.moves import allows, best_moves, lowest_bound, total
from tests.rigs.coupled import by_use

# J jobs, C choices, R limits


def several_pools(seed, *, jobs=4, choices=5, pools=3, whole=False):
    """Gains and uses at random, with a choice that uses nothing; whole gains are full of ties."""
    rng = np.random.default_rng(seed)
    gain = rng.integers(0, 4, (jobs, choices)).astype(float) if whole else rng.uniform(0.0, 9.0, (jobs, choices))
    use = rng.integers(0, 4, (pools, jobs, choices))
    gain[:, 0], use[:, :, 0] = 0.0, 0
    return by_use(gain, rng.integers(1, 2 * jobs, pools).tolist(), use)


def best_of_all(asked):
    """By trying everything."""
    jobs, choices = asked.gain_JC.shape
    every = (np.array(each) for each in itertools.product(range(choices), repeat=jobs))
    return max(total(asked, each) for each in every if allows(asked, each))


@pytest.fixture
def rounds(monkeypatch):
    """Each round takes a second, begins with one choice beside the best of each job, and is written down."""
    held = []

    def told(gain_JC, use_RJC, limit_R, **facts):
        held.append({"tried_JC": gain_JC > -np.inf, **facts})
        return replace(choose(gain_JC, use_RJC, limit_R, **facts), ran_s=1.0)

    monkeypatch.setattr(moves, "choose", told)
    monkeypatch.setattr(moves, "FIRST_CHOICES", 1)
    return held


@pytest.mark.parametrize("seed", range(25))
def test_however_few_are_tried_first_the_best_of_all_is_found(rounds, seed):
    asked = several_pools(seed)
    found = best_moves(asked)
    assert found.total == pytest.approx(best_of_all(asked), abs=1e-6)
    assert (found.gap, found.method) == (0.0, "mip")
    loss_JC = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R).losses()
    for before, after in itertools.pairwise([{"tried_JC": loss_JC < 0}, *rounds]):
        assert (after["tried_JC"] | ~before["tried_JC"]).all()  # nothing is forgotten
        if after["start"] is None:  # those that lose least come first
            assert after["tried_JC"].sum() >= len(asked.gain_JC) + 1
            assert loss_JC[after["tried_JC"]].max() < loss_JC[~after["tried_JC"]].min(initial=np.inf)


def test_some_of_these_take_several_rounds(rounds):
    counts = []
    for seed in range(25):
        rounds.clear()
        best_moves(several_pools(seed))
        counts.append(len(rounds))
    assert max(counts) >= 2
    assert min(counts) <= 1


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("limit_s", [1.0, 2.0])
def test_when_time_is_up_the_bound_holds_and_no_round_more_is_begun(rounds, seed, limit_s):
    asked = several_pools(seed, jobs=4)
    whole, best = len(_rounds_of(rounds, asked)), best_of_all(asked)
    rounds.clear()
    found = best_moves(asked, start=np.zeros(4, dtype=int), time_limit_s=limit_s)  # all may wait
    assert len(rounds) <= limit_s
    assert [each["time_limit_s"] for each in rounds] == [limit_s - at for at in range(len(rounds))]
    lowest = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R).bound
    assert found.total - 1e-6 <= best <= found.bound + 1e-6 <= lowest + 2e-6
    if len(rounds) < min(limit_s, whole):
        assert found.gap == 0.0


def _rounds_of(rounds, asked):
    rounds.clear()
    best_moves(asked)
    return list(rounds)


def test_who_finds_nothing_in_time_says_so(rounds, monkeypatch):
    """Where nothing was found in the first round, time alone ends it; else what is in the way is named."""
    nothing = replace(choose(np.zeros((1, 1)), np.zeros((1, 1, 1)), np.zeros(1)), column_J=None, bound=np.inf)
    monkeypatch.setattr(moves, "choose", lambda *_, **__: replace(nothing, ran_s=1.0))
    asked = several_pools(1)
    with pytest.raises(Infeasible, match="in time") as caught:
        best_moves(asked, time_limit_s=1.0)
    assert (caught.value.needed, caught.value.available) == (np.inf, 1.0)
    with pytest.raises(Infeasible, match="keep all limits"):
        best_moves(asked, time_limit_s=1e9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tolerance", [0.02, 0.2])
def test_what_is_near_enough_is_not_searched_any_further(rounds, seed, tolerance):
    asked = several_pools(seed, jobs=5)
    found = best_moves(asked, tolerance=tolerance)
    bound = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R).bound
    for each in rounds[1:]:
        assert bound - total(asked, each["start"]) > tolerance * bound if each["start"] is not None else True
    assert best_of_all(asked) - tolerance * bound <= found.total + 1e-9
    assert found.gap <= tolerance * bound + 1e-9
    assert all(each["enough"] == pytest.approx(tolerance * bound) for each in rounds)


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_nobody_moves_for_nothing(rough, tolerance):
    """A start that is as good as any other stays as it is."""
    several = 0
    for seed in range(20):
        asked = several_pools(seed, jobs=3, whole=True)
        every = map(np.array, itertools.product(range(5), repeat=3))
        best = best_of_all(asked)
        ways = [each for each in every if allows(asked, each) and total(asked, each) == best]
        several += len(ways) > 1
        for start in (ways[0], ways[-1]):
            found = best_moves(asked, start=start, tolerance=tolerance, rough=rough)
            assert found.column_J.tolist() == start.tolist()
            assert found.total == best
    assert several >= 5


def test_what_sharper_prices_say_is_rounded_too_before_highs_is_asked(monkeypatch):
    """The walk downhill alone does not prove enough for some, and for some of these prices of linear programs do."""
    ways = {"walked": 0, "sharper": 0, "asked": 0}
    for seed in range(60):
        asked, told = several_pools(seed, jobs=20, choices=8), []
        with monkeypatch.context() as patched:
            patched.setattr(moves, "choose", lambda *_a, told=told, **_f: told.append(1) or choose(*_a, **_f))
            found = best_moves(asked, tolerance=0.02, rough=True)
        ways["asked" if told else "walked" if found.method == "prices" else "sharper"] += 1
    assert ways["walked"] > ways["sharper"] > 0
    assert ways["asked"] > 0


def test_prices_are_no_sharper_than_is_asked_for(monkeypatch):
    """A linear program after another: fewer where near is enough."""
    tries = {0.0: [], 0.05: []}

    def counted(*asked, sharp, of):
        of.append(sharp)
        return lowest_bound(*asked, sharp=sharp)

    for tolerance, sharps in tries.items():
        monkeypatch.setattr(moves, "lowest_bound", lambda *asked, sharp, of=sharps: counted(*asked, sharp=sharp, of=of))
        for seed in range(20):
            best_moves(several_pools(seed), tolerance=tolerance, rough=True)
    assert 0 < len(tries[0.05]) < len(tries[0.0])
    assert max(tries[0.0]) < 1e-6 < min(tries[0.05]) <= max(tries[0.05]) < 0.05
