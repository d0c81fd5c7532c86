"""Shares: every sample once, whatever the widths on the way."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from sublet.errors import InvalidValue
from sublet.train.data.samples import MicroBatch, Samples, cut_up, mixed, moved


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
            assert pieces  # whoever is given nothing is not in the script's loop
            for piece in pieces:
                assert 1 <= piece.count <= (micro or batch)
                assert piece.spare == (rank * size // world == (rank + 1) * size // world)
                if piece.spare:
                    assert offset <= piece.start < offset + size
                    continue
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


def test_numbers_are_mixed_as_splitmix64_does():
    assert mixed(0) == 0xE220A8397B1DCDAF >> 1  # the published first output for the seeds 0 and 1234567
    assert mixed(1234567) == 6457827717110365317 >> 1
    assert mixed(-1) == mixed(2**64 - 1) == mixed(2**65 - 1)
    assert len({mixed(1, 2), mixed(2, 1), mixed(1), mixed(1, 2, 0)}) == 4


def test_an_order_is_kept_for_its_epoch_and_is_the_datasets_own_where_nothing_is_shuffled():
    samples = Samples(range(40), 1, None, None)
    assert samples.order(5) is samples.order(5)
    first = samples.order(5).tolist()
    samples.order(6)
    assert samples.order(5).tolist() == first
    assert Samples(range(4), 1, None, None, shuffled=False).order(9).tolist() == [0, 1, 2, 3]


def test_a_share_is_cut_into_parts_as_large_as_each_other():
    assert list(cut_up(3, 3, 2)) == []
    assert list(cut_up(3, 10, None)) == [MicroBatch(start=3, count=7, first=True, last=True)]
    pieces = list(cut_up(3, 10, 3))
    assert [(piece.start, piece.count) for piece in pieces] == [(3, 2), (5, 2), (7, 3)]
    assert [(piece.first, piece.last) for piece in pieces] == [(True, False), (False, False), (False, True)]
    assert Samples(range(9), 1, None, None).holders(3, 5) == 3


def test_rows_of_tensors_samples_one_by_one_and_samples_at_once_are_the_same_batch():
    class AtOnce(list):
        """Samples are asked for together."""

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    rows = torch.arange(24.0).reshape(12, 2)
    piece = MicroBatch(start=4, count=3, first=True, last=True)
    batches = [
        Samples(data, 7, None, None).load(2, piece)
        for data in (TensorDataset(rows), AtOnce((row,) for row in rows), [(row,) for row in rows])
    ]
    order = Samples(range(12), 7, None, None).order(2)[4:7]
    for (batch,) in batches:
        assert torch.equal(batch, rows[order])
    summed = Samples([1.0, 2.0], 7, sum, None).load(0, MicroBatch(start=0, count=2, first=True, last=True))
    assert summed == 3.0


def test_a_dataset_without_samples_or_length_is_refused():
    for nothing in (iter(()), [], {1, 2}):
        with pytest.raises(InvalidValue, match="dataset"):
            Samples(nothing, 1, None, None)


def test_what_a_batch_holds_is_moved_in_whatever_it_lies():
    one = torch.ones(2)
    there = moved({"a": [one, (one, "text")], "b": 3}, torch.device("meta"))
    assert there["a"][0].device.type == there["a"][1][0].device.type == "meta"
    assert (there["a"][1][1], there["b"]) == ("text", 3)
