"""A small model with dropout, and what one process makes of it: the truth for grids (oracles E1 to E3)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from sublet.train.grid.atoms import Atom, atoms, share
from sublet.train.grid.dice import LEFT
from sublet.train.samples import mixed

__all__ = [
    "BLOCKS",
    "CLIP",
    "MICRO",
    "SEED",
    "SIZE",
    "VOCAB",
    "WIDTH",
    "Net",
    "a_net",
    "adam",
    "loss_of",
    "momentum",
    "plainly",
]

SIZE, MICRO, SEED, CLIP = 10, 2, 11, 0.6
BLOCKS, WIDTH, VOCAB = 4, 6, 9


class Block(nn.Module):
    """With a sum past it, as in most models that are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.up, self.drop = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        found: torch.Tensor = x + self.drop(torch.tanh(self.up(self.ln(x))))
        return found


class Net(nn.Module):
    """Words in, words out."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCAB, WIDTH), nn.Dropout(0.2)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the next word."""
        x = self.drop(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(self.norm(x))
        return found


def loss_of(model: nn.Module, atom: Atom) -> torch.Tensor:
    """Mean over its samples, which follow from their numbers."""
    numbers = range(atom.start, atom.start + atom.count)
    ids = torch.stack([(torch.arange(5) * (1 + number % 3) + number) % VOCAB for number in numbers])
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


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
    """Losses and weights of one process, and nothing of ours in it but the atoms and their dice.

    Gradients are summed copy by copy, as many as `copies_at` says of a step.
    """
    return _plainly(tuple(copies_at(step) for step in range(steps)), make, tied)


@functools.cache
def _plainly(
    copies_of: tuple[int, ...],
    make: Callable[[nn.Module], torch.optim.Optimizer],
    tied: bool,  # noqa: FBT001 - a part of the key
) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = a_net(tied=tied)
    optimizer, losses = make(model), []
    now = [0, 0]
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(functools.partial(_throw, now, (number + 1,)))
    model.blocks[-1].register_forward_hook(functools.partial(_throw, now, (BLOCKS + 1,)))
    model.embed.register_forward_hook(functools.partial(_throw, now, (LEFT + BLOCKS, 0)))
    for step, copies in enumerate(copies_of):
        total: list[torch.Tensor] = []
        loss = 0.0
        for copy in range(copies):
            model.zero_grad(set_to_none=False)
            said = 0.0
            for atom in share(atoms(step * SIZE, SIZE, MICRO), copy, copies):
                now[:] = step, atom.start
                _throw(now, (0,))
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


def _throw(now: list[int], place: tuple[int, ...], *_: object) -> None:
    torch.default_generator.manual_seed(mixed(SEED, *now, *place))  # torch.manual_seed asks every kind of device


def _clip(model: nn.Module, total: list[torch.Tensor]) -> None:
    """Norms by unit, in double precision, in the order of the units: before, blocks, after."""
    units = [["embed."], *([f"blocks.{number}."] for number in range(BLOCKS)), ["norm.", "head."]]
    names = [name for name, _ in model.named_parameters()]
    squares = []
    for unit in units:
        flats = [total[at] for at, name in enumerate(names) if name.startswith(tuple(unit))]
        padded = torch.cat([functional.pad(flat.flatten(), (0, -flat.numel() % 16)) for flat in flats]).double()
        squares.append(float(torch.dot(padded, padded)))
    norm = math.sqrt(math.fsum(squares))
    for parameter, gradient in zip(model.parameters(), total, strict=True):
        parameter.grad = gradient * (CLIP / norm) if norm > CLIP else gradient
