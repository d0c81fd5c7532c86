"""Members whose rates are not the same are told so when they agree on a step, all of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import RanksDiffer  # noqa: E402
from sublet.train.grid.alike import Alike  # noqa: E402
from sublet.train.numerics.drift import EVERY  # noqa: E402
from sublet_lab.grid.model import WORK, a_net, adam  # noqa: E402
from tests.rigs.grids_of import trained  # noqa: E402


def rated(rate):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, momentum=0.5)


def heard(rates, step=EVERY, spares=0):
    said = [Alike(rated(rate)).say(step, trains=True) for rate in rates]
    said += [Alike(rated(7.0)).say(step, trains=False)] * spares
    Alike(rated(rates[0])).hear([sum(words) for words in zip(*said, strict=True)], step)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.1 + 1e-12]), min_size=1, max_size=8), st.integers(0, 2))
def test_all_are_told_where_one_differs_and_nobody_else(rates, spares):
    if len(set(rates)) == 1:
        heard(rates, spares=spares)
    else:
        with pytest.raises(RanksDiffer, match="learning rate"):
            heard(rates, spares=spares)


def test_between_two_looks_nothing_is_said_of_rates():
    heard([0.1, 0.2], step=EVERY + 1)


def test_who_counts_another_step_than_it_has_applied_makes_none():
    alike = Alike(rated(0.1))
    alike.check_step(3, 3)
    for counted in (2, 4):
        with pytest.raises(RanksDiffer, match=f"{counted} in place of 3"):
            alike.check_step(counted, 3)


@pytest.mark.parametrize("grid", [Grid(2, 1), Grid(1, 2)])
def test_a_rate_that_one_worker_has_for_itself_ends_the_training(grid):
    made = []

    def another(model):
        made.append(adam(model))
        made[-1].param_groups[0]["lr"] *= len(made)
        return made[-1]

    with pytest.raises(RanksDiffer, match="no result"):
        trained(a_net, WORK, grid, optimizer=another)
