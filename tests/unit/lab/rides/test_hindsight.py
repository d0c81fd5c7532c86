"""Bounds in hindsight beside every path that there is."""

from __future__ import annotations

from itertools import product

import pytest

from sublet.perf.grids import SUSPENDED, spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.planning.objective import Objective, SpotPrices
from sublet.policies.liveput.policy import Liveput
from sublet_lab.rides.hindsight import Hindsight
from sublet_lab.rides.record import Record
from sublet_lab.rides.ride import Way, ride

COSTS = LinearCosts(layers=Layers((1e8,) * 5), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
TOY = spot_job("toy", {(1, 2): 5.0, (2, 2): 8.0, (1, 4): 7.0}, COSTS)
CAPACITIES = [(4, 4, 2, 4, 4), (2, 4, 3, 4, 1), (4, 0, 4, 4, 4)]


def hindsight(capacity):
    return Hindsight(job=TOY, record=Record(capacity=capacity), usd_per_h=1.0, boot_s=10.0)


def every_path(capacity):
    """(samples, dollars) of each; a state is a grid alone, or with all instances."""
    one = Objective(TOY, SpotPrices(usd_per_sample=1.0, usd_per_h=1.0, boot_s=10.0))
    for path in product(range(len(one.rate_S)), repeat=len(capacity)):
        state, left_s, was, samples, usd = SUSPENDED, 0.0, 0, 0.0, 0.0
        for to, now in zip(path, capacity, strict=True):
            if one.pauses_s(was, now)[state, to] > TOY.step_s:  # it does not fit
                break
            earned, paid, left_s = one.advance(state, left_s, to, was, now)
            state, was, samples, usd = to, now, samples + earned, usd + paid
        else:
            yield samples, usd


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_best_path_and_the_bounds_are_those_of_every_path(capacity):
    found, known = hindsight(capacity), list(every_path(capacity))
    for worth in (1e-4, 2e-4, 1e-3):
        best = found.best(worth)
        assert best.kept_usd == pytest.approx(max(worth * samples - usd for samples, usd in known))
        cheapest = min(usd for samples, usd in known if samples >= best.samples * (1 - 1e-9))
        assert best.usd(worth) == pytest.approx(cheapest)
    most = max(samples for samples, _ in known)
    for share in (0.3, 0.7, 1.0):
        cheapest = min(usd for samples, usd in known if samples >= share * most * (1 - 1e-9))
        bound, free = found.least_usd(share * most), found.least_usd_were_changes_free(share * most)
        assert 0 < free <= bound * (1 + 1e-9)
        assert bound <= cheapest * (1 + 1e-9)
    assert found.most_per_usd() == pytest.approx(max(samples / usd for samples, usd in known if usd), rel=1e-5)


@pytest.mark.parametrize("worth", [1e-4, 3e-4, 1e-3])
def test_no_ride_is_cheaper_than_where_changes_are_free(worth):
    capacity = CAPACITIES[0] * 6
    done = ride(TOY, Way(Liveput(worth)), capacity, usd_per_h=1.0, boot_s=10.0)
    assert done.usd >= hindsight(capacity).least_usd_were_changes_free(done.samples) * (1 - 1e-9)
