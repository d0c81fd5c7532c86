"""Shapes, and the spread over as few nodes as possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.shape import Grid, Shape, first_gpus, packed


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


def test_what_is_in_no_copy_is_spare():
    assert Shape("p", 9, grid=Grid(2, 4)).spares == 1
    assert Shape("p", 9).spares == 0
    assert (Grid(2, 4).gpus, str(Grid(2, 4))) == (8, "2 x 4")


def test_other_spares_are_no_other_way_to_train():
    shape = Shape("p", 9, grid=Grid(2, 4))
    assert shape.trains_like(Shape("p", 8, grid=Grid(2, 4)))
    for other in (None, Shape("p", 9), Shape("q", 9, grid=Grid(2, 4)), Shape("p", 9, grid=Grid(4, 2))):
        assert not shape.trains_like(other)
    assert not shape.trains_like(Shape("p", 9, grid=Grid(2, 4), batch=8))
    assert not Shape("p", 2).trains_like(Shape("p", 3))  # without a grid every GPU trains


@given(st.lists(st.integers(1, 8), max_size=6), st.integers(0, 60))
def test_the_first_gpus_of_a_placement_keep_its_order(shares, gpus):
    placement = tuple((f"n{at}", share) for at, share in enumerate(shares))
    kept = first_gpus(placement, gpus)
    assert sum(share for _, share in kept) == min(gpus, sum(shares))
    assert [node for node, _ in kept] == [node for node, _ in placement][: len(kept)]
    assert all(0 < share <= shares[at] for at, (_, share) in enumerate(kept))


def test_a_shape_says_what_of_it_is_on_demand_how_it_is_cut_and_its_batch():
    assert str(Shape("p", 8)) == "8 x p"
    assert str(Shape("p", 8, steady=2)) == "8 x p, 2 on demand"
    assert str(Shape("p", 9, steady=2, grid=Grid(4, 2))) == "9 x p, 2 on demand, 4 x 2"
    assert str(Shape("p", 9, grid=Grid(4, 2), batch=96)) == "9 x p, 4 x 2, batch 96"
