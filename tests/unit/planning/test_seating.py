"""Who takes which place when a grid changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.seats import even_ends
from sublet.domain.shape import Grid
from sublet.errors import InvalidValue
from sublet.planning.seating import Seats, overlaps, seats


def blocks_of(count, parts):
    """Sets of block numbers, by hand."""
    ends = [0, *even_ends(count, parts)]
    return [set(range(ends[at], ends[at + 1])) for at in range(parts)]


@st.composite
def changes(draw, most=7, most_parts=3):
    """A grid that has lost some and got others, and the one that it becomes."""
    old = draw(st.none() | st.builds(Grid, st.integers(1, 3), st.integers(1, most_parts)))
    places = [None] * draw(st.integers(0, 4))
    kept = {}
    if old is not None:
        places += [(copy, part) for copy in range(old.copies) for part in range(old.parts) if draw(st.booleans())]
    places = places[:most] or [None]
    was = {f"w{at}": place for at, place in enumerate(places)}
    leaving = {name for name in was if draw(st.integers(0, 3)) == 0}
    leaving -= {next(iter(was))} if len(leaving) == len(was) else set()
    staying = len(was) - len(leaving)
    parts = draw(st.integers(1, min(most_parts, staying)))
    new = Grid(draw(st.integers(1, staying // parts)), parts)
    if old is not None:
        kept = {name: {draw(st.integers(0, old.parts - 1))} for name in was if draw(st.integers(0, 4)) == 0}
    sizes = draw(st.lists(st.integers(1, 9), min_size=most_parts, max_size=6))
    nodes = {name: f"n{draw(st.integers(0, 3))}" for name in was}
    steady = {name for name in was if draw(st.integers(0, 3)) == 0}
    return was, old, new, sizes, nodes, {"kept": kept, "leaving": leaving, "steady": steady}


def lacking(case):
    """Bytes that a worker would have to receive in a part, from sets of blocks."""
    was, old, new, sizes, _, more = case
    wanted = blocks_of(len(sizes), new.parts)
    having = defaultdict(set)
    if old is not None:
        before = blocks_of(len(sizes), old.parts)
        for name, place in was.items():
            for part in {*more["kept"].get(name, ())} | ({place[1]} if place else set()):
                having[name] |= before[part]
    return lambda name, part: sum(sizes[each] for each in wanted[part] - having[name])


def on_demand(members, steady):
    """How many of copy 0 are."""
    return sum(name in steady for name, place in members.items() if place[0] == 0)


@given(changes(most=5))
def test_no_other_way_to_seat_them_moves_less(case):
    was, _, new, _, _, more = case
    lacks, found = lacking(case), seats(*case[:5], **more)
    places = [(copy, part) for copy in range(new.copies) for part in range(new.parts)]
    names = [name for name in was if name not in more["leaving"]]
    best = min(
        (-on_demand(members, more["steady"]), sum(lacks(name, place[1]) for name, place in members.items()))
        for order in permutations(names, new.gpus)
        for members in [dict(zip(order, places, strict=True))]
    )
    moved = sum(lacks(name, place[1]) for name, place in found.members.items())
    assert (-on_demand(found.members, more["steady"]), moved) == best


@given(changes())
def test_every_place_is_taken_once_and_everybody_is_somewhere(case):
    was, _, new, _, _, more = case
    found = seats(*case[:5], **more)
    assert sorted(found.members.values()) == [(copy, part) for copy in range(new.copies) for part in range(new.parts)]
    staying = {*found.members, *found.keepers, *found.spares}
    assert staying == was.keys() - more["leaving"]
    assert not {*found.spares} & {*found.members, *found.keepers}
    order = found.meeting(new.parts)
    assert len(order) == len(set(order))
    assert [found.members.get(name) for name in order[: new.gpus]] == sorted(found.members.values())
    assert set(order) == {*found.members, *found.keepers, *found.givers}


@given(changes())
def test_whoever_holds_anything_is_at_the_meeting(case):
    was, old, new, _, _, more = case
    found = seats(*case[:5], **more)
    holds = {name for name, place in was.items() if old is not None and (place or more["kept"].get(name))}
    assert holds <= set(found.meeting(new.parts))
    assert {*found.givers} <= holds


@given(changes())
def test_every_part_is_on_two_nodes_where_there_are_two(case):
    was, _, new, _, nodes, more = case
    found = seats(*case[:5], **more)
    there = {nodes[name] for name in was if name not in more["leaving"]}
    for part in range(new.parts):
        on = {nodes[name] for name, place in found.members.items() if place[1] == part}
        kept_on = {nodes[name] for name, parts in found.keepers.items() if part in parts}
        assert not on & kept_on, "what is kept on the node of the only copy is lost with it"
        assert len(on | kept_on) >= min(2, len(there))
        assert len(kept_on) == (1 if len(on) == 1 and len(there) > 1 else 0)


@given(changes())
def test_no_exchange_that_moves_nothing_more_would_set_copies_further_apart(case):
    was, _, _, _, nodes, more = case
    lacks, found = lacking(case), seats(*case[:5], **more)

    def together(members):
        return sum(n - 1 for n in Counter((nodes[name], place[1]) for name, place in members.items()).values())

    def moved(members):
        return sum(lacks(name, place[1]) for name, place in members.items())

    names = [name for name in was if name not in more["leaving"]]
    for one, other in combinations(names, 2):
        exchange = {one: other, other: one}
        members = {exchange.get(name, name): place for name, place in found.members.items()}
        if on_demand(members, more["steady"]) >= on_demand(found.members, more["steady"]):
            assert together(members) >= together(found.members) or moved(members) > moved(found.members)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.integers(2, 3))
def test_of_a_first_grid_no_two_copies_of_a_part_share_a_node_if_that_can_be(gpus, parts):
    gpus = [min(each, parts) for each in gpus]
    copies = sum(gpus) // parts
    if copies == 0 or sum(gpus) != copies * parts or copies > len(gpus):
        return
    nodes = {f"n{node}.{at}": f"n{node}" for node, count in enumerate(gpus) for at in range(count)}
    found = seats(dict.fromkeys(nodes), None, Grid(copies, parts), (), nodes)
    assert max(Counter((nodes[name], place[1]) for name, place in found.members.items()).values()) == 1


def test_survivors_stay_and_a_spare_takes_the_place_that_is_empty():
    was = {"a": (0, 0), "b": (0, 1), "d": (1, 1), "spare": None}
    found = seats(was, Grid(2, 2), Grid(2, 2), (), {name: name for name in was})
    assert found == Seats(
        members={"a": (0, 0), "b": (0, 1), "spare": (1, 0), "d": (1, 1)}, keepers={}, givers=(), spares=()
    )


def test_without_a_spare_the_copy_that_is_whole_goes_on_and_who_is_over_keeps():
    was = {"a": (0, 0), "b": (0, 1), "d": (1, 1)}
    found = seats(was, Grid(2, 2), Grid(1, 2), (), {name: name for name in was})
    assert found.members == {"a": (0, 0), "b": (0, 1)}
    assert found.keepers == {"d": (0, 1)}, "it has part 1 already, and is in no place that trains"


def test_whoever_kept_a_part_takes_the_place_of_the_only_one_that_had_it():
    was = {"b": (0, 1), "c": (0, 2), "new": None}
    nodes = {"b": "1", "c": "2", "new": "3"}
    found = seats(was, Grid(1, 3), Grid(1, 3), (1, 1, 1), nodes, kept={"new": {0}})
    assert found.members == {"new": (0, 0), "b": (0, 1), "c": (0, 2)}


def test_a_spare_that_keeps_a_part_goes_on_with_it():
    was = {"a": (0, 0), "b": (0, 1), "s": None, "t": None}
    found = seats(was, Grid(1, 2), Grid(1, 2), (), {name: name for name in was}, kept={"t": {0}})
    assert found.keepers == {"t": (0,), "s": (1,)}
    assert found.spares == ()


def test_too_few_are_refused():
    with pytest.raises(InvalidValue, match="at least the 4 of a grid of 2 x 2"):
        seats({"a": None}, None, Grid(2, 2), (), {"a": "n"})


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 5), st.integers(1, 5))
def test_overlaps_of_two_depths_add_up_to_their_parts(sizes, old, new):
    found = overlaps(sizes, old, new)
    assert found.shape == (old, new)
    if len(sizes) >= max(old, new):
        assert found.sum() == sum(sizes)
        assert found.tolist() == [
            [sum(sizes[each] for each in one & other) for other in blocks_of(len(sizes), new)]
            for one in blocks_of(len(sizes), old)
        ]
    else:
        assert len(set(found.sum(axis=0))) == len(set(found.sum(axis=1))) == 1, "all are alike"
