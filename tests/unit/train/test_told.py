"""What rank 0 has measured is what all go on with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.rigs.scenario import world


def test_all_are_told_what_rank_0_has(tmp_path):
    told = world("together", tmp_path, module="tests.rigs.telling")["told"]
    assert told == [[rank, [[0.1, 1e-30], [7.0]]] for rank in (0, 1)]
