"""Who keeps what before announced nodes go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.shape import Grid
from sublet.planning.seating import kept_ahead
from tests.rigs.sizes import examples


def test_the_only_copy_of_a_part_on_a_noticed_node_gets_a_keeper_on_another():
    was, nodes = {"a": (0, 0), "b": (0, 1)}, {"a": "n1", "b": "n2"}
    assert kept_ahead(was, Grid(1, 2), None, (), nodes, kept={}, doomed={"n2"}) == {"a": (1,)}
    assert kept_ahead(was, Grid(1, 2), None, (), nodes, kept={"a": (1,)}, doomed={"n2"}) == {}


def test_a_spare_keeps_the_part_whose_place_it_will_take():
    was, nodes = {"a": (0, 0), "b": (0, 1), "s": None}, {"a": "n1", "b": "n2", "s": "n3"}
    assert kept_ahead(was, Grid(1, 2), Grid(1, 2), (), nodes, kept={"s": (0,)}, doomed={"n2"}) == {"s": (1,)}
    assert kept_ahead(was, Grid(1, 2), Grid(1, 2), (), nodes, kept={}, doomed={"n2"}) == {"a": (1,)}, "it is in no mesh"


def test_whoever_takes_a_part_of_another_depth_keeps_what_that_has_of_the_old_ones():
    was, nodes = {"a": (0, 0), "b": (0, 1), "c": (0, 2)}, {"a": "n1", "b": "n2", "c": "n3"}
    found = kept_ahead(was, Grid(1, 3), Grid(1, 2), (1,) * 6, nodes, kept={}, doomed={"n3"})
    assert found == {"a": (1,), "b": (2,)}, "blocks 0 to 2 and 3 to 5 of 0-1, 2-3, 4-5"


@st.composite
def grids_with_notices(draw):
    now = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    to = draw(st.none() | st.builds(Grid, st.integers(1, 3), st.integers(1, 4)))
    names = [f"w{at:02}" for at in range(now.gpus + draw(st.integers(0, 2)))]
    was = {name: divmod(at, now.parts) if at < now.gpus else None for at, name in enumerate(names)}
    nodes = {name: f"n{draw(st.integers(0, 4))}" for name in names}
    kept = {name: tuple(draw(st.sets(st.integers(0, now.parts - 1), max_size=2))) for name in names}
    return was, now, to, nodes, kept, draw(st.sets(st.sampled_from([f"n{at}" for at in range(5)]), max_size=4))


@given(grids_with_notices())
@settings(max_examples=examples(200), deadline=None)
def test_every_part_outlives_the_noticed_nodes_and_nobody_is_told_to_keep_what_it_has(case):
    was, now, to, nodes, kept, doomed = case
    found = kept_ahead(was, now, to, (1,) * 12, nodes, kept=kept, doomed=doomed)
    held = {name: {*kept[name], *([place[1]] if place else [])} for name, place in was.items()}
    staying = {name for name in was if nodes[name] not in doomed and held[name]}
    assert set(found) <= staying
    for name, parts in found.items():
        assert not held[name] & set(parts)
    if staying:
        assert set().union(*(held[name] | set(found.get(name, ())) for name in staying)) == set(range(now.parts))
