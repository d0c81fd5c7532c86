"""Parts of which nothing is trained: they train around it as one process does, and send no gradients to nobody."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.train.grid.pipeline import BACKWARD, FORWARD  # noqa: E402
from sublet.train.grid.stages import Stages  # noqa: E402
from sublet_lab.grid.model import a_net, adam, momentum  # noqa: E402
from sublet_lab.threads_mesh import Threads  # noqa: E402
from tests.rigs.grid_worker import Worker, generation  # noqa: E402
from tests.rigs.grids_of import assert_same, next_word, trained  # noqa: E402

TRUNK, MIDDLE = ("first", "blocks.0", "blocks.1"), ("blocks.1", "blocks.2")
LOSS = next_word(lambda _: 4)
ATOMS = 5  # of a step


def freeze(model, names):
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


def of_what_learns(model):
    """As scripts that fine-tune have it."""
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.05, weight_decay=0.1)


def rates_from_the_start(model):
    """It keeps sums before its first step."""
    return torch.optim.Adagrad(model.parameters(), lr=0.1)


class Stopped(nn.Module):
    """Nothing before it learns."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.detach())


def stopped_at(number):
    model = a_net()
    model.blocks[number] = Stopped(model.blocks[number])
    return model


class Quiet(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.no_grad():
            return self.inner(x)


def quiet_trunk():
    model = a_net()
    return Stages(Quiet(model.first), [*map(Quiet, model.blocks[:2]), *model.blocks[2:]], model.last)


MODELS = {
    "trunk": lambda: freeze(a_net(), TRUNK),
    "middle": lambda: freeze(a_net(), MIDDLE),
    "all but the head": lambda: freeze(a_net(), (*TRUNK, *MIDDLE, "blocks.3", "last.norm")),
    "trunk without gradients": quiet_trunk,
    "stopped in a block": lambda: stopped_at(2),
}


@pytest.mark.parametrize("grid", [Grid(1, 2), Grid(1, 4)], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_frozen_is_trained_around_as_by_one_process(model, grid):
    alone = trained(MODELS[model], LOSS, Grid(1, 1), clip_norm=0.6, held=[(LOSS, 4)])
    assert_same(trained(MODELS[model], LOSS, grid, clip_norm=0.6, held=[(LOSS, 4)]), alone)


def letters(found, tag):
    """Borders over which there were some of this kind, and how many over each."""
    count = dict[tuple[int, int], int]()
    for giver, taker, each in found.tags:
        if tag <= each < tag + ATOMS:
            count[giver, taker] = count.get((giver, taker), 0) + 1
    return count


def test_nobody_is_sent_a_gradient_that_it_does_not_need():
    found = trained(MODELS["trunk"], LOSS, Grid(1, 4))
    assert letters(found, FORWARD) == {(0, 1): ATOMS, (1, 2): ATOMS, (2, 3): ATOMS}
    assert letters(found, BACKWARD) == {(3, 2): ATOMS}
    found = trained(MODELS["middle"], LOSS, Grid(1, 4))
    assert letters(found, BACKWARD) == {(3, 2): ATOMS, (2, 1): ATOMS, (1, 0): ATOMS}


@pytest.mark.parametrize("optimizer", [adam, of_what_learns, momentum, rates_from_the_start])
def test_who_trains_nothing_counts_steps_all_the_same_and_those_who_come_later_go_on_from_there(optimizer):
    """The first worker has frozen units alone, is asked for all that a newcomer must know, and trains some later."""
    grids = [Grid(1, 2), Grid(1, 4), Grid(1, 3), Grid(1, 2)]
    alone = trained(MODELS["trunk"], LOSS, *[Grid(1, 1)] * len(grids), optimizer=optimizer, clip_norm=0.6)
    assert_same(trained(MODELS["trunk"], LOSS, *grids, optimizer=optimizer, clip_norm=0.6), alone)


def test_a_checkpoint_of_a_grid_whose_first_part_is_frozen_has_all_of_the_optimizer(tmp_path):
    found = {}
    for number, grid in enumerate((Grid(1, 2), Grid(1, 3))):
        threads = Threads()
        workers = [Worker(threads, f"{number}.{each}", directory=tmp_path, frozen=TRUNK) for each in range(grid.gpus)]
        outcomes = generation(threads, workers, grid, 2 * number + 2, saves=[None], generation=number + 1)
        assert set(outcomes.values()) == {"done"}
        assert {worker.met.source for worker in workers} == {"checkpoint" if number else "fresh"}
        for worker in workers:
            worker.member.vault.close()
            found |= worker.weights()
    threads = Threads()
    one = Worker(threads, "one", frozen=TRUNK)
    generation(threads, [one], Grid(1, 1), 4)
    assert found.keys() == one.weights().keys()
    for name, weight in one.weights().items():
        assert torch.equal(weight, found[name]), name


@pytest.mark.parametrize("optimizer", [adam, of_what_learns])
def test_of_what_is_frozen_for_good_nothing_is_kept_but_weights(optimizer):
    """Though an optimizer has it: its layout, so its size, is that of a model whose optimizer has not."""
    worker = Worker(Threads(), "one", make=optimizer, frozen=("blocks.1",))
    for number, unit in enumerate(worker.staged.units):
        moments = worker.member.holdings.layout(number, stepped=True).moments
        assert bool(moments) != unit.names[0].startswith("blocks.1."), unit.names
