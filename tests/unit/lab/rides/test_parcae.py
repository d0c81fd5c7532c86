"""`parcae` looks ahead at its ticks alone, and before it sees what the tick brings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.errors import InvalidValue
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rides.parcae import Parcae

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
PROFILE = spot_job("toy", {(wide, 2): 10.0 * wide**0.9 for wide in range(1, 7)}, COSTS)


class Noted:
    """What is there stays; and what it was asked with."""

    def __init__(self):
        self.asked = []

    def forecast(self, history, steps):
        self.asked.append((history.tolist(), steps))
        return np.full(steps, history[-1])


def ridden(*changes):
    """A job of two stages from 0 s on; the policy is asked at every change."""
    noted = Noted()
    policy, driver = Parcae(forecaster=noted), Driver([an_offer("o", gpus=1, pool="p")])
    job = a_job(
        "g",
        work=math.inf,
        speed=Gridded(PROFILE),
        pauses=LivePauses(PROFILE),
        survives=True,
        gpus=2,
        min_gpus=2,
        max_gpus=12,
    )
    for at, (at_s, nodes) in enumerate(changes):
        driver.tell(AvailabilityChanged(at_s, "o", nodes))
        if at == 0:
            driver.submit(job)
        driver.settle(policy)
    return noted.asked, driver.kernel.jobs["g"].shape


def test_at_its_first_tick_it_knows_what_there_is_and_later_only_what_there_was():
    asked, _ = ridden((0.0, 8))
    assert asked[-1] == ([8.0], 12)
    asked, _ = ridden((0.0, 8), (60.0, 4))
    assert asked[-1] == ([8.0], 12)  # four have come to be gone, and it has not looked yet
    asked, _ = ridden((0.0, 8), (60.0, 4), (120.0, 6))
    assert asked[-1] == ([8.0, 4.0], 12)


def test_between_two_ticks_it_does_not_look_and_a_grid_that_no_longer_fits_is_cut():
    asked, shape = ridden((0.0, 8), (90.0, 5))
    assert [history for history, _ in asked] == [[8.0]] * len(asked)
    assert (shape.gpus, shape.grid.copies) == (5, 2)


def test_what_is_forecast_below_the_least_is_read_as_the_least():
    _, shape = ridden((0.0, 8), (60.0, 8), (120.0, 1), (180.0, 8))
    assert (shape.gpus, shape.grid.copies) == (8, 1)  # it had seen one instance, and plans for two


def test_one_step_ahead_is_the_least():
    assert Parcae(steps=1).steps == 1
    with pytest.raises(InvalidValue, match="steps"):
        Parcae(steps=0)
