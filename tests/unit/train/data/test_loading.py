"""A DataLoader in place of a dataset: the same samples, loaded by its workers, whatever changes on the way."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    TensorDataset,
)

from sublet import train
from sublet.errors import InvalidValue
from sublet.train.data.loading import LOOKS, LoaderSamples, Seeded, samples_of
from sublet.train.data.samples import Samples
from sublet.train.numerics.seeds import reseed_host


class Noisy(Dataset):
    """Every sample is its index, beside what it draws."""

    def __init__(self, count=20):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002 - as datasets do


def loaded(loader, seed=5, batch=6):
    return samples_of(loader, seed, None, None, batch)


def epoch_of(samples, widths, *, epoch=0, size=6, micro_batch=None):
    """What all ranks load in an epoch whose steps have these widths in turn."""
    offset, step, found = 0, 0, []
    while offset < samples.count:
        taken, world = min(size, samples.count - offset), widths[step % len(widths)]
        for rank in range(world):
            for piece in samples.pieces(offset, taken, rank, world, micro_batch):
                found += list(zip(*(column.tolist() for column in samples.load(epoch, piece)), strict=True))
        offset, step = offset + taken, step + 1
    return found


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_workers_load_what_the_dataset_would_give_in_the_sessions_order(micro_batch):
    one, plain = loaded(DataLoader(Noisy(), batch_size=6, shuffle=True, num_workers=2)), Samples(Noisy(), 5, None, None)
    for epoch in (0, 1):
        found = [row[0] for row in epoch_of(one, [1], epoch=epoch, micro_batch=micro_batch)]
        assert found == plain.order(epoch).tolist()
        assert found != list(range(20))


def test_what_a_sample_draws_depends_on_no_number_of_workers_and_is_another_in_each_micro_batch_and_epoch():
    def drawn(workers, epoch=0):
        loader = DataLoader(Noisy(), batch_size=6, shuffle=True, num_workers=workers)
        return epoch_of(loaded(loader), [2, 1, 3], epoch=epoch)

    straight = drawn(1)
    assert drawn(2) == straight
    for column in (1, 2, 3):
        assert len({row[column] for row in straight}) == 20
        assert {row[column] for row in drawn(1, epoch=1)}.isdisjoint(row[column] for row in straight)


class Rare(Dataset):
    """Draws for some samples alone, from one generator or another; it counts what is loaded, in all workers."""

    def __init__(self, count=48, every=7):
        self.count, self.every = count, every
        self.loads = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.loads += 1
        if not self.every or index % self.every != 6:
            return index, 0.0
        return index, (lambda: float(torch.rand(())), random.random, np.random.rand)[index // self.every % 3]()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_sample_that_draws_and_all_after_it_are_seeded_by_their_places(workers):
    samples = loaded(DataLoader(Rare(), batch_size=6, shuffle=True, num_workers=workers))
    expected, dataset = [], Rare()
    for place, index in enumerate(Samples(Rare(), 5, None, None).order(0).tolist()):
        reseed_host(5, 0, place)
        expected.append(pytest.approx(dataset[index]))
    assert epoch_of(samples, [1, 2]) == expected


@pytest.mark.parametrize("collate", [torch.utils.data.default_collate, lambda samples: list(map(float, samples))])
def test_a_dataset_that_draws_late_is_loaded_once_until_it_does_and_seeded_by_place_from_then_on(collate):
    loaded, late = [], 2 * LOOKS + 1

    class Late:
        def __getitem__(self, index):
            loaded.append(index)
            return random.random() if index >= late else float(index)

    seeded = Seeded(Late(), 7, collate, torch.zeros((), dtype=torch.uint8))
    given = [float(seeded.__getitems__([(0, index, [index])])[0]) for index in range(late + 2)]
    assert given[:late] == list(map(float, range(late)))
    assert loaded == [*range(late), late, late, late + 1]
    for place in (late, late + 1):
        reseed_host(7, 0, place)
        assert given[place] == random.random()


@pytest.mark.parametrize(("every", "most"), [(0, 48), (1, 48 + 2 * 6), (7, 48 + 2 * 6)])
def test_only_one_micro_batch_of_each_worker_is_loaded_twice_where_a_dataset_draws(every, most):
    dataset = Rare(every=every)
    loader = DataLoader(dataset, batch_size=6, num_workers=2)
    samples = loaded(loader)
    for epoch in range(3):
        dataset.loads.zero_()
        epoch_of(samples, [1], epoch=epoch)
        assert dataset.loads <= (most if not epoch else 48)


def test_a_step_that_is_taken_again_gives_the_same_samples():
    samples = loaded(DataLoader(Noisy(), batch_size=6, num_workers=1, shuffle=True))
    (piece,) = samples.pieces(6, 6, 0, 1, None)
    first = samples.load(0, piece)
    samples.load(0, next(samples.pieces(12, 6, 0, 1, None)))
    (piece,) = samples.pieces(6, 6, 0, 1, None)
    assert all(torch.equal(a, b) for a, b in zip(first, samples.load(0, piece), strict=True))


def test_who_begins_amid_a_step_is_given_its_micro_batch_and_none_before_it():
    samples = loaded(DataLoader(Noisy(), batch_size=6, num_workers=1, shuffle=True))
    order = Samples(Noisy(), 5, None, None).order(0).tolist()
    _, *left = samples.pieces(6, 6, 0, 1, 2)
    found = [samples.load(0, piece)[0].tolist() for piece in left]
    assert found == [order[8:10], order[10:12]]


def test_a_loader_leaves_the_random_numbers_of_the_script_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    epoch_of(loaded(DataLoader(Noisy(), batch_size=6, num_workers=1)), [2, 1])
    assert torch.equal(torch.rand(3), expected)


class Scaled(Dataset):
    """With a setting that a script changes between two epochs."""

    scale = 1.0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index * self.scale, index


@pytest.mark.parametrize(("stay", "sums"), [(False, [66.0, 330.0, 330.0]), (True, [66.0, 66.0, 66.0])])
def test_workers_have_the_dataset_as_it_is_at_the_beginning_of_an_epoch_unless_they_stay(stay, sums):
    dataset = Scaled()
    samples = loaded(DataLoader(dataset, batch_size=6, num_workers=1, persistent_workers=stay))
    found = []
    for epoch in range(3):
        dataset.scale = (1.0, 5.0, 5.0)[epoch]
        found.append(epoch_of(samples, [1, 1], epoch=epoch))
    assert [sum(value for value, _ in each) for each in found] == sums


def test_what_collate_draws_is_seeded_by_the_micro_batch():
    quiet = list(range(24))

    def drawn(workers):
        samples = loaded(DataLoader(quiet, batch_size=6, num_workers=workers, collate_fn=masked))
        return [samples.load(0, next(samples.pieces(offset, 6, 0, 1, None))) for offset in range(0, 24, 6)]

    assert drawn(1) == drawn(2)
    assert len(set(drawn(1))) == 4


def masked(samples):
    return random.random()


def test_the_order_and_the_end_are_those_that_the_loader_says():
    assert [row[0] for row in epoch_of(loaded(DataLoader(Noisy(), batch_size=6)), [2])] == list(range(20))
    short = loaded(DataLoader(Noisy(), batch_size=6, shuffle=True, drop_last=True))
    kept = [{row[0] for row in epoch_of(short, [1], epoch=epoch)} for epoch in (0, 1)]
    assert short.count == len(kept[0]) == len(kept[1]) == 18
    assert kept[0] != kept[1]
    sampler = DistributedSampler(Noisy(), num_replicas=2, rank=1, shuffle=False)
    assert [row[0] for row in epoch_of(loaded(DataLoader(Noisy(), 6, sampler=sampler)), [2])] == list(range(20))


def test_collate_of_the_loader_is_taken_and_one_of_the_session_goes_before_it():
    loader = DataLoader(list(range(6)), batch_size=6, collate_fn=sum, num_workers=1)
    samples = loaded(loader)
    assert samples.load(0, next(samples.pieces(0, 6, 0, 1, None))) == 15
    samples = samples_of(loader, 5, len, None, 6)
    assert samples.load(0, next(samples.pieces(0, 6, 0, 1, None))) == 6


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        (lambda: DataLoader(Noisy(), batch_sampler=[[0, 1], [2]]), "batch_sampler=list"),
        (lambda: DataLoader(Noisy(), batch_size=None), "batch_sampler=NoneType"),
        (lambda: DataLoader(Noisy(4), batch_size=6, drop_last=True), "at least one batch of 6"),
    ],
)
def test_what_only_its_batches_know_is_refused_in_words(loader, word):
    with pytest.raises(InvalidValue, match=word):
        loaded(loader())


def trained(data, **more):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.session(model, optimizer, data, epochs=2, seed=9, **more) as s:
        for x, y in s.batches():
            s.step(torch.nn.functional.mse_loss(model(x), y))
    return [parameter.detach() for parameter in model.parameters()], s


def test_a_session_with_a_loader_trains_bitwise_as_with_its_dataset():
    data = TensorDataset(torch.randn(50, 4), torch.randn(50, 1))
    plain, _ = trained(data, global_batch=8)
    by_loader, s = trained(DataLoader(data, batch_size=8, shuffle=True, num_workers=2))
    assert s.global_batch == 8
    assert isinstance(s._strategy.steps._samples, LoaderSamples)
    assert all(torch.equal(a, b) for a, b in zip(plain, by_loader, strict=True))


def test_a_dataset_alone_needs_the_batch():
    with pytest.raises(TypeError, match="global_batch"):
        trained(Noisy())


def test_after_a_change_what_is_asked_for_is_planned_once(monkeypatch):
    planned, plan = [], LoaderSamples._plan
    monkeypatch.setattr(
        LoaderSamples, "_plan", lambda self, epoch, first: planned.append(first) or plan(self, epoch, first)
    )
    rows = torch.arange(48.0)
    samples = samples_of(DataLoader(TensorDataset(rows), batch_size=4, num_workers=1), 7, None, None, 4)
    got = []
    for step, world in enumerate((1, 1, 2, 2, 2, 1, 1)):
        for piece in samples.pieces(4 * step, 4, 0, world, None):
            got += samples.load(0, piece)[0].tolist()
    assert got == [*range(8), 8, 9, 12, 13, 16, 17, *range(20, 28)]
    assert len(planned) == 3  # at first, and where the width changed
