"""Small models of residual blocks with quirks, some of which a cut survives; and grids that train them."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional

from sublet.domain.shape import Grid
from sublet.testing.threads_mesh import Threads, ThreadsMesh
from sublet.train.following import Broken
from sublet.train.grid.atoms import Atom
from sublet.train.grid.cutting import Cut
from sublet.train.grid.dice import Dice
from sublet.train.grid.member import Member
from sublet.train.grid.proof import Proof
from sublet.train.grid.seat import Seat

WIDTH, WORDS = 6, 7  # as long as wide: what is transposed has the same shape
MICRO, SIZE, SEED = 2, 5, 5  # the last atom of a step is smaller


class Block(nn.Module):
    """`quirks` are what it does besides."""

    def __init__(self, quirks):
        super().__init__()
        self.norm, self.up, self.quirks = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), quirks
        self.drop = nn.Dropout(0.2 if "dropout" in quirks else 0.0)
        self.table, self.tables = None, {}
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x, mask=None, add=None, heard=None):
        self.calls += 1
        if "makes a table" in self.quirks and self.table is None:
            self.table = torch.cos(torch.arange(WIDTH, device=x.device) * torch.ones(WIDTH, device=x.device))
            self.tables["sin"] = self.table.sin()
        y = self.drop(torch.tanh(self.up(self.norm(x if self.table is None else x * self.table))))
        if self.tables:
            y = y * self.tables["sin"]
        if mask is not None and ("asks the mask" not in self.quirks or mask.any()):
            y = y * mask
        if "draws by Python" in self.quirks:
            y = y * random.random()
        if add is not None:
            y = y + add
        if heard is not None:
            heard.append(y)
        if "leaves it in an attribute" in self.quirks:
            self.said = y.mean()
        return x + y


class Model(nn.Module):
    """What is told from one another is by `quirks`; those of `WRONG` cannot be cut."""

    def __init__(self, blocks, quirks, *, tied=False):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(Block(quirks) for _ in range(blocks))
        self.norm, self.head, self.quirks = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False), quirks
        self.calls, self.share, self.spread = 0, 1.0, nn.Dropout(0.2 if "dropout" in quirks else 0.0)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        q, x, heard = self.quirks, self.embed(ids), []
        self.calls += 1
        if "written in place before" in q:
            x += self.place
        else:
            x = x + self.place
        x, first = self.spread(x), x
        shape = (len(ids), 1, 1)
        for number, block in enumerate(self.blocks):
            facts = {}
            if "a mask for all" in q:
                facts["mask"] = self.mask if number else self.draw(shape)
            if "a mask for each" in q:
                facts["mask"] = self.draw(shape)
            if "asks the mask" in q and "mask" not in facts:
                facts["mask"] = (ids != 3)[..., None]
            if "Python's dice outside" in q:
                facts["add"] = random.random()
            if "counts its calls" in q:
                x = x * (1.0 + 0.5 * self.calls)
            if "transposed" in q:
                x = x.transpose(1, 2)
            if "written in place between" in q:
                x += 0.1 * (ids[..., None] - 3.0)
            if "detached" in q and number == 1:
                x = x.detach()
            if "the embedding" in q and number:
                facts["add"] = first
            if "what another said" in q:
                facts["heard"] = heard
            if "left out by chance" in q and self.training and torch.rand(()) < 0.1:
                continue
            x = x + block(x, **facts) if "added outside" in q else block(x, **facts)
        if "added at the end" in q:
            x = x + first
        x = self.head(self.norm(x))
        if "leaves it in an attribute" in q:
            x = x * (1.0 + self.share * sum(block.said for block in self.blocks))
        return x * (1.0 + sum(each.mean() for each in heard))

    def draw(self, shape):
        self.mask = (torch.rand(shape) > 0.3).float()
        return self.mask


RIGHT = (
    "dropout",
    "a mask for all",
    "a mask for each",
    "makes a table",
    "asks the mask",
    "Python's dice outside",
    "counts its calls",
    "written in place before",
    "written in place between",
    "transposed",
    "detached",
)
WRONG = (
    "a penalty on all",
    "added outside",
    "the embedding",
    "what another said",
    "leaves it in an attribute",
    "left out by chance",
    "added at the end",
    "draws by Python",
)


def a_model(blocks, quirks, *, tied=False):
    torch.manual_seed(2)
    return Model(blocks, frozenset(quirks), tied=tied)


def batch_of(atom):
    numbers = range(atom.start, atom.start + atom.count)
    ids = torch.stack([(torch.arange(WIDTH + 1) * (1 + number % 3) + number) % WORDS for number in numbers])
    return ids[:, :-1], ids[:, 1:]


def loss_of(model, batch):
    loss = functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
    if "a penalty on all" in model.quirks:
        loss = loss + 1e-4 * sum(each.square().sum() for each in model.parameters())
    return loss


def learned(model):
    cut = Cut(model, "blocks")
    cut.learn(lambda: loss_of(model, batch_of(Atom(0, MICRO))))
    return cut


def proved(model, **more):
    """InvalidValue if it may not be cut."""
    cut, dice = learned(model), Dice(SEED)
    cut.watch(dice.enter, dice.leave)
    proof = Proof(cut, (Atom(0, MICRO), Atom(0, 1)), batch_of, lambda batch, _: loss_of(model, batch), **more)
    try:
        proof.prove(dice)
    finally:
        cut.close()
    return proof


def trained(make, grid, steps=2, late=(), before=lambda _model, _step: None):
    """Weights by name, of a grid that does not ask whether it may; `late` are quirks that it has from step 1 on.

    `before` each step the script does this.
    """
    threads = Threads()
    meshes, models = ThreadsMesh.all_of(threads, grid.gpus), [make() for _ in range(grid.gpus)]
    found = {}

    def live(rank):
        try:
            train(rank)
        except BaseException:
            meshes[rank].hang_up()
            raise

    def train(rank):
        model = models[rank]
        cut = learned(model)
        member = Member(model, cut, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), seed=SEED)
        seat = Seat.of(rank, grid, len(cut.blocks))
        member.meet(meshes[rank], seat)
        for step in range(steps):
            for each in (model, *cut.blocks) if late and step else ():
                each.quirks = frozenset(late)
            before(model, step)
            of_atom = lambda atom: loss_of(model, batch_of(atom))  # noqa: E731 - said once
            member.step(meshes[rank], seat, of_atom, offset=step * SIZE, size=SIZE, micro_batch=MICRO)
        cut.close()
        named = dict(model.named_parameters())
        found.update({name: named[name].detach() for u in member.holdings.arenas for name in cut.units[u].names})

    outcomes = threads.run({str(rank): lambda rank=rank: live(rank) for rank in range(grid.gpus)}).values()
    for error in sorted(filter(None, outcomes), key=lambda error: isinstance(error, Broken)):
        raise error
    return found


ALONE, IN_TWO = Grid(1, 1), Grid(1, 2)
