"""Who sits where in a grid."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.seats import has_all_parts, is_spare, seats
from sublet.domain.shape import Grid


@st.composite
def placed(draw):
    """A placement of at least a grid's GPUs, and its nodes on demand."""
    shares = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    parts = draw(st.integers(1, sum(shares)))
    grid = Grid(draw(st.integers(1, sum(shares) // parts)), parts)
    placement = tuple((f"n{at}", gpus) for at, gpus in enumerate(shares))
    return placement, grid, {node for node, _ in placement if draw(st.booleans())}


@given(placed())
def test_every_place_is_taken_once_and_every_gpu_takes_at_most_one(case):
    placement, grid, steady = case
    found = seats(placement, grid, steady)
    assert {node: len(places) for node, places in found.items()} == dict(placement)
    taken = [place for places in found.values() for place in places if place is not None]
    assert sorted(taken) == [(copy, part) for copy in range(grid.copies) for part in range(grid.parts)]


@given(placed())
def test_as_many_parts_are_on_demand_as_there_are_gpus_on_demand(case):
    placement, grid, steady = case
    found = seats(placement, grid, steady)
    parts = {place[1] for node in steady for place in found[node] if place is not None}
    assert len(parts) == min(grid.parts, sum(gpus for node, gpus in placement if node in steady))
    assert has_all_parts({node: found[node] for node in steady}, grid) == (len(parts) == grid.parts)


@given(placed())
def test_when_spares_go_nobody_else_moves(case):
    placement, grid, steady = case
    found = seats(placement, grid, steady)
    left = tuple(share for share in placement if not is_spare(found[share[0]]))
    assert seats(left, grid, steady) == {node: found[node] for node, _ in left}


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_copies_of_a_part_are_on_different_nodes_where_a_node_holds_no_more_than_a_copy(copies, parts, more):
    size = max(1, parts - more)
    placement = tuple((f"n{at}", size) for at in range(-(-copies * parts // size)))
    found = seats(placement, Grid(copies, parts), set())
    for places in found.values():
        here = Counter(place[1] for place in places if place is not None)
        assert max(here.values(), default=0) <= 1
