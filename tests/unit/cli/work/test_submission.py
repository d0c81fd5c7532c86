"""An anchor pays once what it costs between two losses is less than one of them."""

from __future__ import annotations

import pytest

from sublet.cli.work.submission import loss_usd, pays_every_h


def test_four_nodes_and_a_quarter_of_an_hour_are_worth_ten_hours_of_an_anchor():
    hours = pays_every_h(0.80, lease_s=900.0, anchor_usd_per_h=0.0208)
    assert hours == pytest.approx(9.6, abs=0.05)
    assert hours * 0.0208 == pytest.approx(loss_usd(0.80, 900.0)) == pytest.approx(0.20)


def test_an_anchor_that_costs_nothing_always_pays_and_nodes_that_do_never_need_one():
    assert pays_every_h(0.8, lease_s=900.0, anchor_usd_per_h=0.0) == float("inf")
    assert pays_every_h(0.0, lease_s=900.0, anchor_usd_per_h=0.02) == 0.0
