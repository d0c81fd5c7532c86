"""The study of live grids, but for its processes: what is compared, and how it is judged."""

from __future__ import annotations

import pytest

from sublet.demo.grid.moves import Move
from sublet_lab.gridded.study import _seconds, ordered_alike


@pytest.mark.parametrize(
    ("ways", "alike"),
    [
        ([(10.0, 11.0), (8.0, 8.5)], True),
        ([(8.0, 11.0), (10.0, 8.5)], False),
        ([(8.0, 10.2), (10.0, 10.0)], True),  # foretold to be alike: neither order is wrong
        ([(10.0, 11.0), (8.0, 8.5), (9.0, 5.0)], False),
    ],
)
def test_ways_that_are_foretold_to_be_apart_are_in_the_same_order_live(ways, alike):
    assert ordered_alike(ways) is alike


def test_changes_of_each_kind_are_told_beside_what_was_published():
    moves = [
        Move(kind="between", was=(2, 2), now=(2, 2), at_s=1.0, decided_s=decided_s, paused_s=0.5)
        for decided_s in (1.0, 2.0, 6.0)
    ]
    within, between, depth, restart = _seconds(moves).rows
    assert between[:4] == ["between", "3", "2.00 (6.00)", "0.50 (0.50)"]
    assert within[1] == depth[1] == "0"
    assert within[4] == "0.8-2.9"  # of GPT-1.5B, in its published code: a change within stages
    assert between[4] == depth[4]
    assert float(restart[4].partition("-")[0]) > 14.0  # it saves and loads, which takes 14 s there
