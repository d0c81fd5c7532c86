"""A small model in stages, and what one process makes of it: the truth for grids (oracles E1 to E3)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sublet.train.grid.pipeline import Atom, Work, atoms, share
from sublet.train.grid.stages import Stages

SIZE, MICRO, SEED, CLIP = 10, 2, 11, 0.6
BLOCKS, WIDTH, VOCAB = 4, 6, 9


class Block(nn.Module):
    """With a sum past it, as in most models that are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the same shape."""
        found: torch.Tensor = x + torch.tanh(self.up(self.ln(x)))
        return found


class Last(nn.Module):
    """Scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of each."""
        found: torch.Tensor = self.head(self.norm(x))
        return found


class Net(Stages):
    """Words in, words out."""

    def __init__(self, *, tied: bool) -> None:
        first, last = nn.Embedding(VOCAB, WIDTH), Last()
        super().__init__(first, [Block() for _ in range(BLOCKS)], last)
        if tied:
            last.head.weight = first.weight


def samples(atom: Atom, length: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and those behind them, which follow from the numbers of the samples."""
    numbers = range(atom.start, atom.start + atom.count)
    ids = torch.stack([(torch.arange(length + 1) * (1 + number % 3) + number) % VOCAB for number in numbers])
    return ids[:, :-1], ids[:, 1:]


def score(output: torch.Tensor, batch: Any) -> torch.Tensor:
    """The mean over a micro-batch."""
    return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


WORK = Work(samples, score)


def loss_of(model: nn.Module, atom: Atom) -> torch.Tensor:
    """In one piece."""
    batch = samples(atom)
    return score(model(batch[0]), batch)


def a_net(*, tied: bool = False) -> Net:
    """The same each time; tied in double precision."""
    torch.manual_seed(2)
    return Net(tied=tied).double() if tied else Net(tied=False)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """With two moments and a counter."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """With one moment."""
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def plainly(
    copies_at: Callable[[int], int],
    steps: int,
    make: Callable[[nn.Module], torch.optim.Optimizer] = adam,
    *,
    tied: bool = False,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of one process, and nothing of ours in it but the atoms.

    Gradients are summed copy by copy, as many as `copies_at` says of a step.
    """
    return _plainly(tuple(copies_at(step) for step in range(steps)), make, tied)


@functools.cache
def _plainly(
    copies_of: tuple[int, ...],
    make: Callable[[nn.Module], torch.optim.Optimizer],
    tied: bool,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = a_net(tied=tied)
    optimizer, losses = make(model), []
    for step, copies in enumerate(copies_of):
        total: list[torch.Tensor] = []
        loss = 0.0
        for copy in range(copies):
            model.zero_grad(set_to_none=False)
            said = 0.0
            for atom in share(atoms(step * SIZE, SIZE, MICRO), copy, copies):
                found = loss_of(model, atom)
                torch.autograd.backward(found, torch.tensor(atom.count / SIZE, dtype=found.dtype))
                said += float(found.detach()) * (atom.count / SIZE)
            loss += said
            mine = [_gradient(each).clone() for each in model.parameters()]
            total = [a + b for a, b in zip(total, mine, strict=True)] if total else mine
        _clip(model, total)
        optimizer.step()
        losses.append(loss)
    return losses, {name: each.detach() for name, each in model.named_parameters()}


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _clip(model: nn.Module, total: list[torch.Tensor]) -> None:
    """Norms by unit, in double precision, in the order of the units: before, blocks, after."""
    units = [["first."], *([f"blocks.{number}."] for number in range(BLOCKS)), ["last."]]
    names = [name for name, _ in model.named_parameters()]
    squares = []
    for unit in units:
        flats = [total[at] for at, name in enumerate(names) if name.startswith(tuple(unit))]
        padded = torch.cat([functional.pad(flat.flatten(), (0, -flat.numel() % 16)) for flat in flats]).double()
        squares.append(float(torch.dot(padded, padded)))
    norm = math.sqrt(math.fsum(squares))
    for parameter, gradient in zip(model.parameters(), total, strict=True):
        parameter.grad = gradient * (CLIP / norm) if norm > CLIP else gradient
