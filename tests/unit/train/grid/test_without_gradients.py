"""A parameter that took no part in a step has no gradient, as in one process: no grid takes that for a zero.

An optimizer moves by its momentum, and by weight decay, what has a gradient of zero; it passes by what has none, and
counts no step of it. Truth is a loop of torch's own, with nothing of ours in it but which samples are in a micro-batch.
"""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.train.checkpoint.checkpoints import newest  # noqa: E402
from sublet.train.grid.pipeline import Work, atoms  # noqa: E402
from sublet.train.grid.stages import Stages  # noqa: E402
from sublet.train.state.state import Progress, State  # noqa: E402
from sublet_lab.grid.model import BLOCKS, MICRO, SEED, SIZE, VOCAB, WIDTH, samples, score  # noqa: E402
from sublet_lab.threads_mesh import Threads  # noqa: E402
from tests.rigs.grid_worker import SAMPLES, Worker, generation  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

OPTIMIZERS = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1),
    "SGD, momentum": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1
    ),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.02),  # a counter that begins with one
    "Rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.01),  # a moment that does not begin with zero
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1),
}


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.up, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, given):
        """What is chosen goes from stage to stage with the words: for each block whether it stops, or goes aside."""
        x, chosen = given
        stops, aside = chosen[self.number].tolist()
        x = x.detach() if stops else x
        x = x + torch.tanh(self.up(x))
        return (x + self.side(x) if aside else x), chosen


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)

    def forward(self, given):
        ids, chosen = given
        return self.embed(ids), chosen


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, VOCAB) for _ in range(2))

    def forward(self, given):
        x, chosen = given
        return self.heads[int(chosen[BLOCKS, 0])](x)


class Net(Stages):
    """Two heads; blocks with a way that is not always taken; and at times nothing before some block learns."""

    def __init__(self):
        torch.manual_seed(2)
        super().__init__(Words(), [Block(number) for number in range(BLOCKS)], Last())
        self.double()


def by_turns(atom):
    """The heads take turns, two steps each, and nothing but a head learns in every third step."""
    step = atom.start // SIZE
    return batch_of(atom, head=step // 2 % 2, stop=BLOCKS // 2 if step % 3 == 2 else None)


def by_chance(seed):
    """Of a step, and then of each micro-batch."""

    def load(atom):
        step, rng = random.Random(f"{seed} {atom.start // SIZE}"), random.Random(f"{seed} at {atom.start}")
        heads = step.choice([[0], [1], [0, 1]])
        asides = [step.random() < 0.5 and rng.random() < 0.4 for _ in range(BLOCKS)]
        stop = step.choice([None, 1, 2, 3])
        stops = stop if step.random() < 0.5 or rng.random() < 0.5 else None
        return batch_of(atom, rng.choice(heads), asides, stops)

    return load


def nothing_before(model, step):
    """Whatever learns, learns all the time."""


def batch_of(atom, head=0, asides=(False,) * BLOCKS, stop=None):
    ids, targets = samples(atom)
    chosen = torch.tensor([*([number == stop, aside] for number, aside in enumerate(asides)), [head, 0]])
    return (ids, chosen), targets


def plainly(load, make, steps, clip, before=nothing_before):
    """One process of torch's own: the model, its optimizer, and losses."""
    model = Net()
    optimizer, losses = make(model), []
    for step in range(steps):
        before(model, step)
        optimizer.zero_grad()
        losses.append(0.0)
        for atom in atoms(step * SIZE, SIZE, MICRO):
            batch = load(atom)
            found = score(model(batch[0]), batch) * (atom.count / SIZE)
            found.backward()
            losses[-1] += float(found.detach())
        came = [each.grad for each in model.parameters() if each.grad is not None]
        norm = math.sqrt(math.fsum(float(each.square().sum()) for each in came))
        if clip is not None and norm > clip:
            for each in came:
                each.mul_(clip / norm)
        optimizer.step()
    return model, optimizer, losses


def assert_same_state(name, ours, its, *, loaded=False):
    """Of an optimizer: what it keeps of a parameter, if anything. Torch gives most of it another type as it loads."""
    has = [{key: value for key, value in each.items() if value is not None} for each in (ours, its)]
    assert has[0].keys() == has[1].keys(), f"{name}: {has}"
    for key, value in has[0].items():
        assert loaded or value.dtype == has[1][key].dtype
        assert torch.allclose(value.double(), has[1][key].double(), rtol=0.0, atol=1e-10), f"{key} of {name}"


def assert_as_plain(workers, load, make, steps, clip, before=nothing_before):
    """Weights and all that the optimizer keeps; and to the bit the same at all who hold it."""
    model, optimizer, losses = plainly(load, make, steps, clip, before)
    truth, seen = dict(model.named_parameters()), {}
    for worker in workers:
        assert worker.member.applied == steps
        assert [worker.told[step] for step in sorted(worker.told)] == pytest.approx(
            [losses[step] for step in sorted(worker.told)], abs=1e-10
        )
        state = worker.member.holdings.optimizer.state
        for name, weight in worker.weights().items():
            assert torch.allclose(weight, truth[name], rtol=0.0, atol=1e-10), f"{name} of {worker.name}"
            assert_same_state(name, state.get(weight, {}), optimizer.state.get(truth[name], {}))
            first = seen.setdefault(name, (weight, state.get(weight, {})))
            assert torch.equal(first[0], weight)
            assert all(
                torch.equal(value, first[1][key]) for key, value in state.get(weight, {}).items() if value is not None
            )
    assert seen.keys() == truth.keys()


@pytest.mark.parametrize("clip", [None, 0.6])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(1, 2), Grid(1, 4), Grid(2, 1), Grid(2, 2)], ids=str)
def test_heads_that_take_turns_are_trained_as_by_torch(grid, clip):
    threads, make = Threads(), OPTIMIZERS["AdamW"]
    facts = {"make": make, "net": Net, "work": Work(by_turns, score), "clip": clip}
    workers = [Worker(threads, f"w{at}", **facts) for at in range(grid.gpus)]
    assert set(generation(threads, workers, grid, 7).values()) == {"done"}
    assert_as_plain(workers, by_turns, make, 7, clip)


def test_a_zero_would_be_seen():
    """Otherwise the tests here could not tell."""
    model, optimizer, _ = plainly(by_turns, OPTIMIZERS["AdamW"], 7, None)
    kept = {name: optimizer.state.get(each) for name, each in model.named_parameters()}
    counted = {name: state["step"].item() for name, state in kept.items() if state}
    assert counted["last.heads.0.weight"] == 4
    assert counted["last.heads.1.weight"] == 3
    assert counted["first.embed.weight"] == counted["blocks.1.up.weight"] == 5
    assert counted["blocks.2.up.weight"] == 7
    assert not kept["blocks.0.side.weight"], "it never had one"


GRIDS = [Grid(1, 1), Grid(1, 2), Grid(1, 3), Grid(1, 4), Grid(2, 1), Grid(2, 2)]
WAYS = ["meet", "misses", "checkpoint"]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.sampled_from(GRIDS), st.sampled_from(WAYS), st.booleans()), min_size=1, max_size=3),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from([None, 0.4]),
)
def test_whoever_has_no_gradient_in_whatever_grid_is_trained_as_by_torch(
    tmp_path_factory, seed, stays, optimizer, clip
):
    """Grid after grid: those who were there hand over, or roll forward a step, or others go on from a checkpoint."""
    threads, make, load, directory = (
        Threads(),
        OPTIMIZERS[optimizer],
        by_chance(seed),
        tmp_path_factory.mktemp("kept"),
    )
    facts = {"make": make, "net": Net, "work": Work(load, score), "clip": clip, "directory": directory}
    workers, steps = [], 0
    for number, (grid, way, keeps) in enumerate(stays):
        steps += 3
        were = [] if way == "checkpoint" else workers
        fresh = [Worker(threads, f"{number}.{at}", **facts) for at in range(max(0, grid.gpus - len(were)))]
        there = [*were, *fresh]
        ring = (
            tuple(((at + 1) % grid.parts,) for at in range(grid.parts))
            if keeps and grid.copies == 1 < grid.parts
            else ()
        )
        if way == "misses":
            there[0]._faults = [("agreed", steps - 1, "misses")]
            generation(
                threads, there[: grid.gpus], grid, steps, there[grid.gpus :], keeps=ring, generation=2 * number + 1
            )
            assert there[0].member.pending == steps - 1 or grid.gpus == 1
        more = {"keeps": ring, "saves": [None], "generation": 2 * number + 2}
        found = generation(threads, there[: grid.gpus], grid, steps, there[grid.gpus :], **more)
        assert {found[each.name] for each in there[: grid.gpus]} == {"done"}
        workers = there[: grid.gpus]
    assert_as_plain(workers, load, make, steps, clip)
    for worker in workers:
        worker.member.vault.close()
    _assert_saved(directory, load, make, steps, clip)


def _assert_saved(directory, load, make, steps, clip):
    """A session without parts goes on from there as from one process."""
    model, progress = Net(), Progress(samples=SAMPLES, batch=SIZE)
    optimizer = make(model)
    State(model, optimizer, [], None, SEED).restore(newest(directory).state, progress)
    truth, kept, _ = plainly(load, make, steps, clip)
    for (name, ours), its in zip(model.named_parameters(), truth.parameters(), strict=True):
        assert torch.allclose(ours, its, rtol=0.0, atol=1e-10), name
        assert_same_state(name, optimizer.state.get(ours, {}), kept.state.get(its, {}), loaded=True)


def freeze_for_a_while(model, step):
    for each in (model.last.heads[0], model.blocks[0], model.blocks[2]):
        each.requires_grad_(not 2 <= step < 5)


STAYS = [
    [Grid(1, 1)],
    [Grid(1, 2), Grid(2, 1), Grid(1, 2)],
    [Grid(2, 1), Grid(1, 3), Grid(1, 1)],
]


@pytest.mark.parametrize(("way", "clip"), [("meet", None), ("checkpoint", 0.6)])
@pytest.mark.parametrize("grids", STAYS, ids=lambda grids: ", ".join(map(str, grids)))
def test_what_is_frozen_for_a_while_is_trained_as_by_torch(tmp_path, grids, clip, way):
    """Whoever joins has seen none of it; whether they meet before it, amid it or after it."""
    before = freeze_for_a_while
    threads, make, workers, steps = Threads(), OPTIMIZERS["AdamW"], [], 0
    facts = {"make": make, "net": Net, "work": Work(batch_of, score)}
    facts |= {"before": before, "clip": clip, "directory": tmp_path}
    for number, grid in enumerate(grids):
        steps += 3
        were = workers if way == "meet" else []
        there = [*were, *(Worker(threads, f"{number}.{at}", **facts) for at in range(len(were), grid.gpus))]
        workers, givers = there[: grid.gpus], there[grid.gpus :]
        found = generation(threads, workers, grid, steps, givers, saves=[None], generation=number + 1)
        assert {found[each.name] for each in workers} == {"done"}
        for worker in there if way == "checkpoint" else givers:
            worker.member.vault.close()
    assert_as_plain(workers, batch_of, make, steps, clip, before)


def test_what_was_not_begun_at_a_checkpoint_is_not_begun_after_going_back_to_it(tmp_path):
    """The second head has its first gradient in step 2; who lives has stepped it, and goes back with a newcomer."""
    threads, make = Threads(), OPTIMIZERS["AdamW"]
    facts = {"make": make, "net": Net, "work": Work(by_turns, score), "clip": None, "directory": tmp_path}
    dies, lives = (Worker(threads, name, **facts) for name in ("dies", "lives"))
    assert set(generation(threads, [dies, lives], Grid(1, 2), 2, saves=[None], generation=1).values()) == {"done"}
    assert set(generation(threads, [dies, lives], Grid(1, 2), 4, generation=2).values()) == {"done"}
    comes = Worker(threads, "comes", **facts)
    assert set(generation(threads, [comes, lives], Grid(1, 2), 3, generation=3).values()) == {"done"}
    assert lives.met.source == "checkpoint"
    lives.told.pop(3)  # which is undone
    assert_as_plain([comes, lives], by_turns, make, 3, None)
