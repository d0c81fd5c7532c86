"""What crosses a border lies in memory as it does in one process, forth and back: kernels add in the order of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.testing.grid.model import BLOCKS  # noqa: E402
from sublet.train.grid.returning import Returning  # noqa: E402
from tests.rigs.grids_of import assert_same, trained  # noqa: E402

WIDTH, PATCHES, KINDS, SIDE = 32, 16, 5, 8
GRIDS = [Grid(1, 2), Grid(1, 3)]


class Mix(nn.Module):
    """Of an MLP-Mixer: over patches, and over channels."""

    def __init__(self):
        super().__init__()
        self.ln, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.patches = nn.Sequential(nn.Linear(PATCHES, 24), nn.GELU(), nn.Linear(24, PATCHES))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, x):
        x = x + self.patches(self.ln(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, WIDTH, 2, 2), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, KINDS))
        self.blocks = nn.Sequential(*(Mix() for _ in range(BLOCKS)))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(16, track_running_stats=False)

    def forward(self, x):
        return x + self.two(functional.relu(self.norm(self.one(x))))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, KINDS)
        self.blocks = nn.ModuleList(Residual() for _ in range(BLOCKS))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Turned(nn.Module):
    """Takes and gives rows, but the gradient of what it takes lies in columns."""

    def __init__(self):
        super().__init__()
        self.patches, self.channels = nn.Linear(PATCHES, PATCHES), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.channels(torch.tanh(self.patches(x.mT.contiguous()).mT))


class Turning(Mixer):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Turned() for _ in range(BLOCKS)))


def kind_of(model, atom):
    dice = torch.Generator().manual_seed(atom.start)
    images = torch.randn(atom.count, 3, SIDE, SIDE, generator=dice)
    return functional.cross_entropy(model(images), torch.arange(atom.start, atom.start + atom.count) % KINDS)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("make", [Mixer, ConvNet, Turning])
def test_what_is_not_in_rows_is_trained_as_by_one_process_to_the_bit(make, grid):
    facts = {"steps": 8, "held": [(kind_of, 7)]}
    assert_same(trained(make, kind_of, grid, **facts), trained(make, kind_of, Grid(1, 1), **facts))


def sums(x):
    return x.sum(1)


def in_columns(x):
    return x.t().contiguous().tanh()


def twice(x):
    return torch.cat((x.t().contiguous().exp(), x.t() * 2))


@pytest.mark.parametrize("way", [sums, in_columns, twice])
@pytest.mark.parametrize("turned", [False, True])
def test_a_gradient_comes_back_as_it_would_within_one_graph(way, turned):
    leaf = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    leaf = (leaf.t().contiguous().t() if turned else leaf).requires_grad_()
    within = []
    inner = leaf * 1.0
    inner.grad_fn.register_prehook(lambda gradients: within.append(gradients[0]))
    way(inner).sum().backward()

    came = inner.detach().requires_grad_()
    returning = Returning(came)
    way(came).sum().backward()
    assert torch.equal(returning.gradient, within[0])
    assert returning.gradient.stride() == within[0].stride()


def test_a_gradient_is_what_the_hooks_of_a_script_made_of_it_and_the_sum_of_all_passes():
    came = torch.ones(3, requires_grad=True)
    returning = Returning(came)
    assert returning.gradient is None
    came.register_hook(lambda gradient: gradient * 2)
    for _ in range(2):
        (came * 3).sum().backward()
    assert returning.gradient.tolist() == [12.0] * 3
