"""The market of the cloud on this machine, from a file."""

from __future__ import annotations

from itertools import islice

import pytest

from sublet.errors import InvalidValue
from sublet.market.traces import load_trace
from sublet.runtime.providers.local.build import local_offers, local_supply, strike_from_text
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.settings import Settings

MORE = 20  # changes are not asked of a market: one that has none must say so


def supply(tmp_path, *rows, **settings):
    path = tmp_path / "market.csv"
    path.write_text("\n".join(["t_s,zone,available", *rows]) + "\n")
    traces = [load_trace(path, polarity="availability", repeat=True)]
    settings = Settings(state_dir=str(tmp_path), market=(str(path),), **settings)
    changes = local_supply(settings, traces, local_offers(settings, traces))
    return [(change.at_s, change.nodes) for change in islice(changes, MORE)]


@pytest.mark.parametrize(
    ("rows", "share", "nodes"),
    [
        (("0,a,4", "600,a,4"), 1.0, 4),  # it never changes
        (("0,a,4", "300,a,5", "600,a,4"), 0.5, 2),  # our share of it does not
        (("0,a,4", "0,b,1", "600,a,4"), 1.0, 5),
    ],
)
def test_a_supply_that_never_changes_is_told_once(tmp_path, rows, share, nodes):
    assert supply(tmp_path, *rows, market_share=share) == [(0.0, nodes)]
    assert supply(tmp_path, *rows, market_share=share, market_start_s=1_000.0) == [(0.0, nodes)]


def test_a_supply_that_changes_starts_again_for_ever(tmp_path):
    found = supply(tmp_path, "0,a,4", "290,a,2", "590,a,4", "600,a,2", market_start_s=450.0)
    assert found[:5] == [(0.0, 2), (140.0, 4), (440.0, 2), (740.0, 4), (1_040.0, 2)]
    assert len(found) == MORE


def test_what_changes_once_in_a_round_is_not_taken_for_still(tmp_path):
    found = supply(tmp_path, "0,a,4", "0,b,0", "500,a,4", "550,a,0", "600,a,0", market_share=0.25)
    assert found[:4] == [(0.0, 1), (550.0, 0), (600.0, 1), (1_150.0, 0)]


def test_a_change_that_our_share_does_not_feel_is_not_the_end(tmp_path):
    found = supply(tmp_path, "0,a,8", "550,a,9", "580,a,4", "600,a,4", market_share=0.25)
    assert found[:4] == [(0.0, 2), (580.0, 1), (600.0, 2), (1_180.0, 1)]


def test_offers_say_the_notice_that_their_nodes_get(tmp_path):
    """Else a kernel takes each loss for one without, and waits with growing as if work were made again."""
    spot, on_demand = local_offers(Settings(state_dir=str(tmp_path), notice_s=90.0), [])
    assert (spot.notice_s, on_demand.notice_s) == (90.0, 0.0)


def test_a_strike_is_spelled_by_seconds_or_by_a_share_of_the_work():
    assert strike_from_text("600:kill:2") == Strike(at_s=600.0, verb="kill", nodes=2)
    assert strike_from_text("60%:notice:1") == Strike(share=0.6, verb="notice", nodes=1)
    for wrong in ("100%:kill:1", "-1%:kill:1", "%:kill:1", "6%0:kill:1", "nan%:kill:1"):
        with pytest.raises(InvalidValue):
            strike_from_text(wrong)
