"""Grids in the kernel: the samples that a driver of its own made before, and what notices cost on top.

All thirty rides: `python -m tests.rigs.rides` (15 s).
"""

from __future__ import annotations

import random

import pytest

from tests.rigs.rides import ALONE, RIDES, in_the_kernel

SAMPLE = random.Random(16).sample([ride for ride in RIDES if ride[2] != "full"], 6)
FULL = ("liveput", "bert", "full")


@pytest.mark.parametrize("ride", [*SAMPLE, FULL], ids=" ".join)
def test_a_ride_in_the_kernel_makes_the_samples_of_a_ride_alone(ride):
    ours, (samples, usd, changes) = in_the_kernel(*ride), ALONE[ride]
    assert ours.samples == pytest.approx(samples, rel=1e-6)
    assert ours.usd == pytest.approx(usd, rel=1e-6)
    assert ours.changes == changes  # spares that come are no resizes


def test_all_laws_hold_on_a_ride_and_stories_cost_nothing():
    assert in_the_kernel("liveput", "gpt-1.5b", "lh", checked=True).samples == pytest.approx(99_660.865)


@pytest.mark.parametrize(("notice_s", "rents", "losses"), [(30.0, 177, 0), (120.0, 179, 7)])
def test_with_notices_nobody_rents_in_circles(notice_s, rents, losses):
    """Before falls were kept: 511 rents, 167 refusals, and 2 % fewer samples than without notices."""
    warned = in_the_kernel(*FULL, notice_s=notice_s)
    assert (warned.rents, warned.run.record.refusals, warned.run.metrics.losses) == (rents, 0, losses)
