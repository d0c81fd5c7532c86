"""Losses ahead are chosen on one set and met by another: none of the hours of either is in both."""

from __future__ import annotations

from itertools import combinations

import pytest

from sublet_lab.studies.liveput import losses


def overlap(one, other):
    return one.trace == other.trace and min(one.last, other.last) > max(one.first, other.first)


def test_no_hour_is_in_two_stretches():
    for one, other in combinations((*losses.TUNING, *losses.HELD_OUT), 2):
        assert not overlap(one, other), (one.name, other.name)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_what_was_chosen_is_met_by_hours_that_it_was_not_chosen_on(monkeypatch, quick):
    """A stretch is two instances here, and a ride as many samples as there are: which hours are ridden is all that is
    asked.
    """
    monkeypatch.setattr(losses._Stretch, "capacity", lambda _: (2, 2))
    monkeypatch.setattr(losses, "_samples", lambda _model, capacity, _step_s, _losses: float(sum(capacity)))
    tuning, held_out = losses.losses_findings(quick, lambda _: None).tables
    by_name = {each.name: each for each in (*losses.TUNING, *losses.HELD_OUT)}
    seen = [stretch for name, stretch in by_name.items() if any(column.endswith(name) for column in tuning.columns)]
    met = [by_name[row[1]] for row in held_out.rows]
    assert len(seen) == (1 if quick else 3)
    assert len(met) == (1 if quick else 2 * 6)
    assert not any(overlap(one, other) for one in seen for other in met)
