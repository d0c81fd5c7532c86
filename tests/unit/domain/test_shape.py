"""Shapes, and the spread over as few nodes as possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.shape import Shape, packed


@pytest.mark.parametrize(
    ("gpus", "size", "spread"),
    [(10, 4, (4, 4, 2)), (4, 4, (4,)), (3, 8, (3,)), (8, 1, (1,) * 8), (0, 4, ())],
)
def test_full_nodes_come_first(gpus, size, spread):
    assert packed(gpus, size) == spread


@given(st.integers(0, 200), st.integers(1, 16))
def test_a_packed_spread_has_every_gpu_and_no_node_too_many(gpus, size):
    spread = packed(gpus, size)
    assert sum(spread) == gpus
    assert all(0 < share <= size for share in spread)
    assert len(spread) == -(-gpus // size)


def test_a_shape_prints_as_people_say_it_and_equals_its_twin():
    assert str(Shape("T4x4:spot", 6)) == "6 x T4x4:spot"
    assert Shape("p", 2) == Shape("p", 2) != Shape("p", 2, batch=32)
    assert len({Shape("p", 2), Shape("p", 2), Shape("q", 2)}) == 2
