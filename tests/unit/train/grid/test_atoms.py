"""Samples that draw when they are loaded are the same at the first part and at the last."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from sublet.train.data.samples import Samples  # noqa: E402
from sublet.train.grid.pipeline import Atom, loaded  # noqa: E402


class Masked:
    """A word in seven is hidden, as a collator for BERT does it; by three generators."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        drawn = torch.rand(7), torch.tensor(random.random()), torch.tensor(numpy.random.random())
        return torch.cat([drawn[0], drawn[1].view(1), drawn[2].view(1)]) + index


def test_who_loads_a_micro_batch_again_has_what_another_has_whatever_was_drawn_before():
    samples, other = (Samples(Masked(), 3, None, None) for _ in range(2))
    first = loaded(samples, 3, 1, Atom(4, 4))
    torch.rand(5), random.random(), numpy.random.random(3)
    assert torch.equal(loaded(other, 3, 1, Atom(4, 4)), first)
    for seed, epoch, atom in ((4, 1, Atom(4, 4)), (3, 2, Atom(4, 4)), (3, 1, Atom(8, 4))):
        found = loaded(other, seed, epoch, atom)
        assert not any(torch.equal(one, two) for one, two in zip(found % 1.0, first % 1.0, strict=True))


def test_loading_takes_nothing_from_what_a_forward_draws():
    samples = Samples(Masked(), 3, None, None)
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    want = torch.rand(3), random.random(), numpy.random.random()
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    loaded(samples, 3, 0, Atom(0, 4))
    found = torch.rand(3), random.random(), numpy.random.random()
    assert torch.equal(found[0], want[0])
    assert found[1:] == want[1:]
