"""What goes from part to part may have another shape each time, and be several tensors of many types."""

from __future__ import annotations

from math import prod

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.pipeline import Borders, Work  # noqa: E402
from sublet.train.grid.stages import Stages  # noqa: E402
from sublet_lab.grid.model import BLOCKS, VOCAB, WIDTH, a_net, samples, score  # noqa: E402
from sublet_lab.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from tests.rigs.grids_of import assert_same, next_word, trained  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

GRIDS = [Grid(1, 2), Grid(1, 3), Grid(1, 4)] if FULL else [Grid(1, 4)]
LENGTH = 5
SHORTER, LONGER = (next_word(lambda _: 2), 7), (next_word(lambda atom: 6 + atom.start), 5)  # of seven, five samples
CPU = torch.device("cpu")
REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*REAL, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64]


class Shortest(nn.Module):
    """How long a sample is, its words say, and not the shape of the batch."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return self.inner(ids)[:, : int((ids != 0).sum(1).max())]


class Shortening(nn.Module):
    """Leaves out the last one, and gives what does not lie row by row."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[:, :-1].transpose(0, 1).contiguous().transpose(0, 1)


def shortened():
    model = a_net()
    return Stages(Shortest(model.first), map(Shortening, model.blocks), model.last)


def first_word(longest):
    """Ends of samples are padded with zeros, as their numbers say."""

    def load(atom):
        ids = samples(atom, longest)[0] % (VOCAB - 1) + 1
        for row in range(atom.count):
            ids[row, BLOCKS + 2 + (atom.start + row) % 4 :] = 0
        return ids, ids[:, 0]

    return Work(load, lambda output, batch: functional.cross_entropy(output.mean(1), batch[1]))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_micro_batches_may_be_as_long_as_they_are(grid):
    """Short, long and short again."""
    padded = next_word(lambda atom: 2 + atom.start % 5)
    alone = trained(a_net, padded, Grid(1, 1), held=[SHORTER, LONGER])
    assert_same(trained(a_net, padded, grid, held=[SHORTER, LONGER]), alone)


@pytest.mark.parametrize("real", [False, True], ids=["threads", "sockets"])
def test_an_evaluation_may_be_of_shorter_samples_and_of_longer_ones_and_of_any_number(real):
    """Over real connections too: there what is too short is read without a word, what is too long ends a process."""
    facts = {"held": [SHORTER, LONGER, SHORTER]}
    alone = trained(a_net, next_word(lambda _: LENGTH), Grid(1, 1), **facts)
    assert_same(trained(a_net, next_word(lambda _: LENGTH), Grid(1, 3), real=real, **facts), alone)
    assert alone.judged[0] == alone.judged[2] != alone.judged[1]


@pytest.mark.parametrize("real", [False, True], ids=["threads", "sockets"])
def test_a_shape_may_follow_from_the_data_alone(real):
    """And be that of a view."""
    facts = {"held": [(first_word(12), 7)]}
    alone = trained(shortened, first_word(9), Grid(1, 1), **facts)
    cut = trained(shortened, first_word(9), Grid(1, 4), real=real, **facts)
    assert cut.losses == pytest.approx(alone.losses, rel=1e-6)
    assert cut.judged == pytest.approx(alone.judged, rel=1e-6)
    for name, weight in alone.weights.items():
        assert torch.allclose(weight, cut.weights[name], rtol=1e-4, atol=1e-6), name


class Begins(nn.Module):
    """Beside what it computes it hands on a mask, numbers of words and what it began with, which learns as well."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        x = self.inner(ids)
        return x, ids > 2, ids, x * 2.0


class Goes(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, given):
        x, mask, ids, begun = given
        x += 0.5  # into what came, as layers with inplace=True do
        return self.inner(x).masked_fill(mask.unsqueeze(-1), 0.1), mask, ids, begun


class Ends(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, given):
        x, _, ids, begun = given
        return self.inner(x + begun + ids.unsqueeze(-1).to(x.dtype))


def forked():
    model = a_net()
    return Stages(Begins(model.first), map(Goes, model.blocks), Ends(model.last))


@pytest.mark.parametrize("real", [False, True], ids=["threads", "sockets"])
def test_a_tuple_of_tensors_of_many_types_goes_from_stage_to_stage(real):
    facts = {"held": [SHORTER]}
    alone = trained(forked, Work(samples, score), Grid(1, 1), **facts)
    assert_same(trained(forked, Work(samples, score), Grid(1, 4), real=real, **facts), alone)


def test_a_sequence_is_cut_between_any_two_of_its_modules():
    def sequence():
        model = a_net()
        return nn.Sequential(model.first, *model.blocks[:2], model.last)  # four of them, as the net has blocks

    alone = trained(sequence, Work(samples, score), Grid(1, 1), clip_norm=0.5)
    for grid in (Grid(1, 2), Grid(1, 4)):
        assert_same(trained(sequence, Work(samples, score), grid, clip_norm=0.5), alone)


@st.composite
def tensors(draw):
    """In any order of memory; some dimensions expanded, or cut so that there are gaps."""
    shape = draw(st.lists(st.integers(0, 3), max_size=8))
    kinds = st.one_of(st.sampled_from(DTYPES), st.sampled_from(REAL))  # most often of floating point
    found = torch.arange(prod(shape)).reshape(shape).to(draw(kinds))
    for dim in range(len(shape)):
        kind = draw(st.sampled_from(["plain", "plain", "expanded", "cut"]))
        if kind == "expanded" and shape[dim] == 1:
            found = found.expand(*found.shape[:dim], 3, *found.shape[dim + 1 :])
        elif kind == "cut":
            found = found.narrow(dim, 0, shape[dim] // 2)
    found = found.permute(draw(st.permutations(range(len(shape)))))
    return found.requires_grad_() if found.is_floating_point() and draw(st.integers(0, 3)) else found


@given(st.lists(tensors(), min_size=1, max_size=8), st.booleans())
def test_what_is_given_arrives_and_gradients_of_what_learns_come_back(given_tensors, alone):
    sent = given_tensors[0] if alone else tuple(given_tensors)
    threads = Threads()
    meshes = ThreadsMesh.all_of(threads, 2)
    found = {}

    def gives():
        borders = Borders(CPU)
        borders.give(meshes[0], sent, 1, 7, "block 0")
        meshes[0].settle()
        found["learned"] = borders.learned(meshes[0], sent, 1, 9)

    def takes():
        borders = Borders(CPU)
        came = borders.take(meshes[1], 0, 7)
        found["came"] = came.value
        learning = [each for each in as_tuple(came.value) if each.requires_grad]
        if told := come_to(learning):
            torch.autograd.backward([each for _, each in told], [torch.full_like(each, at) for at, each in told])
        borders.give_back(meshes[1], came, 0, 9)
        meshes[1].settle()

    threads.run({"gives": gives, "takes": takes})
    assert isinstance(found["came"], tuple) != alone
    assert [each.requires_grad for each in as_tuple(found["came"])] == [each.requires_grad for each in as_tuple(sent)]
    for one, other in zip(as_tuple(sent), as_tuple(found["came"]), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    told = come_to([each for each in as_tuple(sent) if each.requires_grad])
    assert [id(each) for each, _ in found["learned"]] == [id(each) for _, each in told]
    for (at, each), (_, gradient) in zip(told, found["learned"], strict=True):
        assert torch.equal(gradient, torch.full_like(each, at))


def come_to(learning):
    """Of these each has a gradient of its own, but for the second, which has none."""
    return [(at + 2.0, each) for at, each in enumerate(learning) if at != 1]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros([1] * 9),
        torch.eye(WIDTH).to_sparse(),
        (torch.zeros(1),) * 9,
        (),
        [torch.zeros(1)],
        (torch.zeros(1), 3),
        None,
    ],
)
def test_what_does_not_cross_a_border_is_refused_in_words(wrong):
    with pytest.raises(InvalidValue, match=r"stages = 'block 3 that gives .* of which each gives"):
        Borders(CPU).give(ThreadsMesh.all_of(Threads(), 1)[0], wrong, 0, 7, "block 3")
