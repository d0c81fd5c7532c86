"""Shares: every sample once, whatever the widths on the way."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from sublet.train.samples import Samples, mixed


@given(
    count=st.integers(1, 60),
    batch=st.integers(1, 70),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    micro=st.none() | st.integers(1, 8),
)
def test_any_sequence_of_widths_sees_every_sample_once(count, batch, widths, micro):
    samples = Samples(range(count), 4, None, None)
    order, seen, offset, step = samples.order(3).tolist(), [], 0, 0
    while offset < count:
        size, world = min(batch, count - offset), widths[step % len(widths)]
        for rank in range(world):
            pieces = list(samples.pieces(offset, size, rank, world, micro))
            assert [piece.first for piece in pieces] == [index == 0 for index in range(len(pieces))]
            assert [piece.last for piece in pieces] == [index == len(pieces) - 1 for index in range(len(pieces))]
            for piece in pieces:
                assert 1 <= piece.count <= (micro or batch)
                seen += order[piece.start : piece.start + piece.count]
        offset, step = offset + size, step + 1
    assert sorted(seen) == list(range(count))


def test_the_order_follows_from_seed_and_epoch_alone():
    one, other = Samples(range(100), 1, None, None), Samples(range(100), 1, None, None)
    assert one.order(2).tolist() == other.order(2).tolist()
    assert one.order(2).tolist() != one.order(3).tolist()
    assert one.order(2).tolist() != Samples(range(100), 2, None, None).order(2).tolist()


def test_seeds_of_neighbours_are_far_apart():
    seeds = {mixed(seed, step, rank) for seed in range(5) for step in range(5) for rank in range(5)}
    assert len(seeds) == 125
    assert all(0 <= seed < 2**63 for seed in seeds)
