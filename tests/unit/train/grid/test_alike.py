"""Members whose rates are not the same are told so when they agree on a step, all of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import RanksDiffer  # noqa: E402
from sublet.train.numerics.drift import EVERY, rates_heard, rates_said  # noqa: E402
from sublet_lab.grid.model import WORK, a_net, adam  # noqa: E402
from tests.rigs.grids_of import trained  # noqa: E402


def rated(rate):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, momentum=0.5)


def heard(rates, step=EVERY, spares=0):
    said = [rates_said(rated(rate), step, trains=True) for rate in rates]
    said += [rates_said(rated(7.0), step, trains=False)] * spares
    rates_heard([sum(words) for words in zip(*said, strict=True)], step)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.1 + 1e-12]), min_size=1, max_size=8), st.integers(0, 2))
def test_all_are_told_where_one_differs_and_nobody_else(rates, spares):
    if len(set(rates)) == 1:
        heard(rates, spares=spares)
    else:
        with pytest.raises(RanksDiffer, match="learning rate"):
            heard(rates, spares=spares)


def test_between_two_looks_nothing_is_said_of_rates():
    heard([0.1, 0.2], step=EVERY + 1)


@pytest.mark.parametrize("grid", [Grid(2, 1), Grid(1, 2)])
def test_a_rate_that_one_worker_has_for_itself_ends_the_training(grid):
    made = []

    def another(model):
        made.append(adam(model))
        made[-1].param_groups[0]["lr"] *= len(made)
        return made[-1]

    with pytest.raises(RanksDiffer, match="no result"):
        trained(a_net, WORK, grid, optimizer=another)
