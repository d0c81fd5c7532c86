"""A sampler of the loader's own: the same order in every process, dealt to any number of workers."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from sublet import train
from sublet.errors import InvalidValue
from sublet.train.data.loading import samples_of

COUNT = 24


class Rows(Dataset):
    """Its index, beside what it draws."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index, float(torch.rand(()))


class Written(Sampler):
    """As people write them: `how` draws."""

    def __init__(self, how):
        self.how, self.epoch, self.asked = how, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.asked += 1
        return iter(self.how(self))

    def __len__(self):
        return COUNT


def by_numpy(_):
    return np.random.permutation(COUNT)  # noqa: NPY002 - as people do


def by_python(_):
    return random.sample(range(COUNT), COUNT)


def by_epoch(sampler):
    return torch.randperm(COUNT, generator=torch.Generator().manual_seed(sampler.epoch)).tolist()


WEIGHTS = torch.arange(COUNT).double() + 0.1
SAMPLERS = {
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 30),
    "weighted, a generator of its own": lambda: WeightedRandomSampler(
        WEIGHTS, 30, generator=torch.Generator().manual_seed(8)
    ),
    "subset": lambda: SubsetRandomSampler(list(range(3, 17))),
    "random, some": lambda: RandomSampler(Rows(), replacement=True, num_samples=10),
    "in order, some": lambda: SequentialSampler(range(10)),
    "numpy": lambda: Written(by_numpy),
    "python": lambda: Written(by_python),
    "epoch": lambda: Written(by_epoch),
}


def drawn(sampler, seed=5, **more):
    return samples_of(DataLoader(Rows(), batch_size=6, sampler=sampler, **more), seed, None, None, 6)


def rows_of(samples, widths, epoch=0):
    """What all ranks load in an epoch whose steps have these widths in turn."""
    offset, step, found = 0, 0, []
    while offset < samples.count:
        taken, world = min(6, samples.count - offset), widths[step % len(widths)]
        for rank in range(world):
            for piece in samples.pieces(offset, taken, rank, world, None):
                found += list(zip(*(column.tolist() for column in samples.load(epoch, piece)), strict=True))
        offset, step = offset + taken, step + 1
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_process_draws_the_same_whatever_it_drew_before(name):
    one = drawn(SAMPLERS[name]())
    orders = [one.order(epoch).tolist() for epoch in (0, 1, 0)]
    torch.rand(7), random.random(), np.random.rand(3)  # noqa: NPY002 - whatever a script does
    other = drawn(SAMPLERS[name]())
    assert [other.order(epoch).tolist() for epoch in (0, 1)] == orders[:2]
    assert orders[2] == orders[0]
    if name != "in order, some":
        assert orders[0] != orders[1]
        assert drawn(SAMPLERS[name](), seed=6).order(0).tolist() != orders[0] or name == "epoch"


def test_what_it_chooses_is_what_is_trained_on():
    assert sorted(drawn(SAMPLERS["subset"]()).order(3).tolist()) == list(range(3, 17))
    assert drawn(SAMPLERS["in order, some"]()).order(3).tolist() == list(range(10))
    often = Counter(index for epoch in range(40) for index in drawn(SAMPLERS["weighted"]()).order(epoch).tolist())
    assert often[COUNT - 1] > 3 * often[3]


def test_any_width_loads_the_same_and_a_sample_that_comes_twice_draws_twice():
    straight = rows_of(drawn(SAMPLERS["weighted"](), num_workers=1), [1])
    wider = rows_of(drawn(SAMPLERS["weighted"](), num_workers=2), [2, 1, 3])
    assert [row[0] for row in wider] == [row[0] for row in straight]
    assert [row[0] for row in straight] == drawn(SAMPLERS["weighted"]()).order(0).tolist()
    assert len({row[0] for row in straight}) < 30
    assert len({row[1] for row in straight}) == 30
    short = drawn(SAMPLERS["subset"](), drop_last=True)
    assert (short.count, len(rows_of(short, [2]))) == (12, 12)


def test_the_random_numbers_of_the_script_and_a_generator_that_others_share_are_left_alone():
    own = torch.Generator().manual_seed(8)
    torch.manual_seed(3)
    expected = torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(8))
    torch.manual_seed(3)
    drawn(WeightedRandomSampler(WEIGHTS, 30, generator=own)).order(1)
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.rand(3, generator=own), expected[1])


class ForRanks(Written):
    num_replicas = 2


@pytest.mark.parametrize(
    ("sampler", "word"),
    [
        (lambda: Written(lambda each: torch.roll(torch.arange(COUNT), each.asked).tolist()), "another order each time"),
        (lambda: Written(lambda each: range(COUNT - each.epoch)), "and then others"),
        (lambda: Written(lambda each: [0, COUNT]), "some of the numbers 0 to 23"),
        (lambda: Written(lambda each: [-1, 0]), "some of the numbers"),
        (lambda: Written(lambda each: []), "of 0 samples"),
        (lambda: ForRanks(by_epoch), "gives each rank its part"),
    ],
)
def test_what_no_session_could_deal_is_refused_in_words(sampler, word):
    with pytest.raises(InvalidValue, match=word):
        drawn(sampler())


def trained(directory, weights, until=None):
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(COUNT).float()[:, None], torch.randn(COUNT, 1))
    loader = DataLoader(data, batch_size=6, sampler=WeightedRandomSampler(weights, 30))
    model, seen = torch.nn.Linear(1, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    epochs = 3 if until is None else 2  # one that is left by `break` has ended, and goes on as a longer one
    with train.session(model, optimizer, loader, epochs=epochs, checkpoint_dir=directory) as s:
        for x, y in s:
            seen.append(x[:, 0].tolist())
            s.step(torch.nn.functional.mse_loss(model(x), y))
            if s.steps == until:
                break
    return seen


def test_a_restart_goes_on_in_the_order_that_was_begun(tmp_path):
    expected = trained(tmp_path / "calm", WEIGHTS)
    assert len(expected) == 15
    assert trained(tmp_path / "struck", WEIGHTS, until=7) + trained(tmp_path / "struck", WEIGHTS) == expected


def test_a_part_that_a_sampler_holds_out_is_what_is_evaluated():
    data = TensorDataset(torch.arange(COUNT).float()[:, None], torch.zeros(COUNT, 1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(data, batch_size=6, sampler=SubsetRandomSampler(list(range(18))))
    held_out = DataLoader(data, batch_size=6, sampler=SubsetRandomSampler(list(range(18, 24))))
    with train.session(model, optimizer, loader, epochs=1) as s:
        for x, y in s:
            s.step(torch.nn.functional.mse_loss(model(x), y))
        assert s.evaluate(lambda batch: batch[0].mean(), held_out) == pytest.approx(20.5)
        assert s.evaluate(lambda batch: batch[0].mean(), DataLoader(data, shuffle=True)) == pytest.approx(11.5)
