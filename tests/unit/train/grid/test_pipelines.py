"""Atoms and the order in which parts work on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet.train.grid.atoms import atoms, share
from sublet.train.grid.schedule import pipeline_s, schedule

FEW = st.integers(1, 6)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 9), st.integers(1, 7))
def test_every_sample_is_in_one_atom_of_one_copy(offset, size, micro_batch, copies):
    found = atoms(offset, size, micro_batch)
    shares = [share(found, copy, copies) for copy in range(copies)]
    assert [atom for each in shares for atom in each] == list(found)
    assert [atom.start + at for atom in found for at in range(atom.count)] == list(range(offset, offset + size))
    assert all(1 <= atom.count <= micro_batch for atom in found)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(InvalidValue, match="micro_batch"):
        atoms(0, 4, 0)


@given(FEW, st.integers(0, 12))
def test_a_part_passes_each_atom_forward_and_then_backward_and_holds_no_more_than_it_must(parts, count):
    for part in range(parts):
        held, most, given_back = set(), 0, []
        for work in schedule(part, parts, count):
            if work.forward:
                assert work.atom not in held
                held.add(work.atom)
                most = max(most, len(held))
            else:
                held.remove(work.atom)
                given_back.append(work.atom)
        assert not held
        assert given_back == list(range(count))
        assert most <= parts - part


@given(FEW, st.integers(1, 12), st.data())
def test_a_pipeline_ends_and_takes_what_events_say(parts, count, data):
    seconds = st.lists(st.integers(1, 9), min_size=parts, max_size=parts)
    forward, backward = data.draw(seconds), data.draw(seconds)
    assert pipeline_s(forward, backward, count) == pytest.approx(_by_events(forward, backward, count))


def test_equal_parts_take_atoms_and_parts_less_one():
    """The usual formula of a pipeline's bubble."""
    assert pipeline_s([1.0] * 4, [2.0] * 4, 10) == pytest.approx(3.0 * (10 + 4 - 1))
    assert pipeline_s([1.0], [2.0], 10) == pytest.approx(30.0)
    assert pipeline_s([1.0] * 2, [2.0] * 2, 1, border_s=0.5) == pytest.approx(3.0 * 2 + 2 * 0.5)


def _by_events(forward, backward, count):
    """A clock that ticks: each part takes its next pass as soon as it may."""
    parts, now = len(forward), 0
    orders = [list(schedule(part, parts, count)) for part in range(parts)]
    busy, done = [None] * parts, set()  # done: (part, atom, forward)
    while any(orders) or any(busy):
        for part in range(parts):
            if busy[part] and busy[part][0] == now:
                done.add(busy[part][1])
                busy[part] = None
        for part in range(parts):
            if busy[part] or not orders[part]:
                continue
            work = orders[part][0]
            needs = (
                (part - 1, work.atom, True)
                if work.forward
                else (part + 1, work.atom, False)
                if part < parts - 1
                else (part, work.atom, True)
            )
            if (work.forward and part == 0) or needs in done:
                orders[part].pop(0)
                takes = (forward if work.forward else backward)[part]
                busy[part] = (now + takes, (part, work.atom, work.forward))
        now += 1
        assert now < 10_000, "nobody can go on"
    return now - 1
