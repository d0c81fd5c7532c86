"""What a rival can do for as much money: the envelope of its runs, not the one run that happens to cost as much."""

from __future__ import annotations

import numpy as np
import pytest

from sublet_lab.studies.boa.envelope import Spent, mean_at


@pytest.mark.parametrize("seed", range(20))
def test_the_envelope_is_never_worse_than_any_run_or_mixture_of_two(seed):
    rng = np.random.default_rng(seed)
    runs = [Spent(*pair) for pair in rng.uniform(1.0, 10.0, size=(8, 2)).tolist()]
    for usd in rng.uniform(0.5, 12.0, size=20).tolist():
        affordable = [run.mean_s for run in runs if run.usd <= usd]
        mixed = [
            a.mean_s + (usd - a.usd) / (b.usd - a.usd) * (b.mean_s - a.mean_s)
            for a in runs
            for b in runs
            if a.usd <= usd < b.usd
        ]
        assert mean_at(runs, usd) == pytest.approx(min([*affordable, *mixed], default=min(runs).mean_s))


def test_a_bill_that_rises_as_the_aim_falls_does_not_count():
    """As of a rival that leaves GPUs idle: for 1,163 dollars it has a mean of 88 minutes, and one of 24."""
    runs = [Spent(1163, 88), Spent(1006, 61), Spent(1000, 36), Spent(1073, 29), Spent(1269, 19)]
    assert mean_at(runs, 1163) == pytest.approx(29 - 10 * 90 / 196)


def test_where_nothing_is_as_cheap_the_cheapest_counts():
    assert mean_at([Spent(1000, 36), Spent(1100, 20)], 999) == 36
