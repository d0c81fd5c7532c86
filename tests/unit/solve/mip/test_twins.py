"""The walk downhill and the rounding beside slow twins that go by the book, step by step: all of it, not its end."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.solve.mip import moves
from sublet.solve.mip.moves import bound_at, descend, lowest_bound, near

# J jobs, C choices, R limits
STEPS = 10  # of a walk: later ones may come to prices at which how a sum is rounded decides


def drawn(seed, *, jobs=4, choices=5, limits=2):
    """Whole numbers, full of ties; to wait is the first, and uses nothing."""
    rng = np.random.default_rng(seed)
    gain, use = rng.integers(0, 9, (jobs, choices)), rng.integers(0, 4, (limits, jobs, choices))
    gain[:, 0], use[:, :, 0] = 0, 0
    return gain.astype(float), use.astype(float), rng.integers(1, 2 * jobs, limits).astype(float)


# ---------------------------------------------------------------------- rounding


def rounded_by_hand(gain, loss, use, limit, most_loss):
    """One move after another: while too much is used, what loses least for what it gives back; then who gains most.

    Of equals the first job, and of its choices the first.
    """
    jobs, choices = gain.shape
    columns = [min(range(choices), key=lambda column, job=job: loss[job][column]) for job in range(jobs)]
    tried = [(job, column) for job in range(jobs) for column in range(choices) if loss[job][column] <= most_loss]

    def over(columns):
        used = [sum(use[row][job][column] for job, column in enumerate(columns)) for row in range(len(limit))]
        return sum(max(0.0, each - most) for each, most in zip(used, limit, strict=True))

    for _ in range(2 * jobs):
        best, move = -np.inf, None
        for job, column in tried:
            other = [*columns[:job], column, *columns[job + 1 :]]
            more, less = gain[job][column] - gain[job][columns[job]], over(columns) - over(other)
            if over(columns) > 0:
                score = more / max(less, 1.0) if less > 0 else -np.inf
            else:
                score = more if more > 0 and over(other) == 0 else -np.inf
            if score > best:
                best, move = score, other
        if move is None:
            break
        columns = move
    return None if over(columns) else columns


@pytest.mark.parametrize("limits", [1, 3])
@pytest.mark.parametrize("most_loss", [2.0, np.inf])
def test_rounding_moves_one_after_the_other_as_by_hand(limits, most_loss):
    """From what prices say, and from what nothing says: there many moves are needed."""
    outcomes = {"moved": 0, "stuck": 0}
    for seed in range(50):
        gain, use, limit = drawn(seed, limits=limits)
        for price in (0.0, 0.5, 2.0):
            loss = bound_at(gain, use, limit, np.full(limits, price))[0].losses()
            found = near(loss.argmin(axis=1), gain, loss, use, limit, most_loss)
            twin = rounded_by_hand(gain, loss, use, limit, most_loss)
            assert (None if found is None else found.tolist()) == twin
            outcomes["stuck" if twin is None else "moved"] += twin is None or twin != loss.argmin(axis=1).tolist()
    assert min(outcomes["moved"], outcomes["stuck"] if most_loss == 2.0 else 99) > 10


# ---------------------------------------------------------------------- the walk downhill


def walked_by_hand(gain, use, limit, *, reached, near):
    """The prices along the way, from none at all.

    Against the slope, but for prices that are 0 and would fall; as far as would reach a tenth less than the best bound
    so far, or what is known to be reachable if that is more. After two steps in a row that brought less than half of
    what was hoped for, half as much is hoped for.
    """
    price, best, hoped, in_vain, way = [0.0] * len(limit), np.inf, 0.1, 0, []
    for step in range(STEPS + 1):
        way.append(list(price))
        bound, slope = sum(p * most for p, most in zip(price, limit, strict=True)), list(limit)
        for job in range(len(gain)):
            worth = [
                gain[job][column] - sum(p * use[row][job][column] for row, p in enumerate(price))
                for column in range(len(gain[job]))
            ]
            column = worth.index(max(worth))
            bound += worth[column]
            slope = [each - use[row][job][column] for row, each in enumerate(slope)]
        brought_enough = step == 0 or bound < best - hoped / 2 * abs(best)
        in_vain = 0 if brought_enough else in_vain + 1
        best = min(best, bound)
        if in_vain == 2:
            hoped, in_vain = hoped / 2, 0
        slope = [0.0 if p <= 0 and each > 0 else each for p, each in zip(price, slope, strict=True)]
        if not any(slope) or best - reached <= near * abs(best):
            break
        length = (bound - max(reached, best - hoped * abs(best))) / sum(each**2 for each in slope)
        price = [max(0.0, p - length * each) for p, each in zip(price, slope, strict=True)]
    return way


@pytest.mark.parametrize("known", ["nothing", "something", "all but all"])
@pytest.mark.parametrize("near", [0.0, 0.03])
def test_the_walk_goes_as_by_hand_and_ends_at_the_best_of_its_prices(monkeypatch, known, near):
    monkeypatch.setattr(moves, "STEPS", STEPS)
    lengths = set()
    for seed in range(40):
        gain, use, limit = drawn(seed, jobs=5, limits=3)
        gain += np.random.default_rng(seed).uniform(0.0, 0.5, gain.shape)  # no ties: how sums are rounded decides those
        lowest = lowest_bound(gain, use, limit).bound
        reached = {"nothing": -np.inf, "something": 0.8 * lowest, "all but all": lowest}[known]
        way = walked_by_hand(gain.tolist(), use.tolist(), limit.tolist(), reached=reached, near=near)
        bounds = [bound_at(gain, use, limit, np.array(price))[0].bound for price in way]
        found = descend(gain, use, limit, reached=reached, near=near)
        assert found.bound == pytest.approx(min(bounds), rel=1e-9)
        assert found.price_R == pytest.approx(way[int(np.argmin(bounds))], rel=1e-6, abs=1e-9)
        lengths.add(len(way))
    assert len(lengths) > 1 or known == "nothing"
