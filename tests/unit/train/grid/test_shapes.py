"""What goes from part to part may have another shape each time: with each micro-batch, and in evaluations."""

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
from sublet.testing.grid.model import BLOCKS, VOCAB, WIDTH, Net, a_net  # noqa: E402
from sublet.train.grid.attention import PlainAttention  # noqa: E402
from sublet.train.grid.cutting import Ghost  # noqa: E402
from sublet.train.grid.heading import DTYPES, HEADING, Heading  # noqa: E402
from tests.rigs.grids_of import assert_same, next_word, trained, words  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

GRIDS = [Grid(1, 2), Grid(1, 3), Grid(1, 4)] if FULL else [Grid(1, 4)]
LENGTH = 5
SHORTER, LONGER = (next_word(lambda _: 2), 7), (next_word(lambda atom: 6 + atom.start), 5)  # of seven, five samples


class Plain(Net):
    """No dice: the threads of real meshes share them."""

    def __init__(self):
        super().__init__(tied=False)
        for block in self.blocks:
            block.drop.p = 0.0
        self.drop.p = 0.0


class Shortened(Plain):
    """How long a sample is, its words say, and not the shape of the batch; each block leaves out the last one too."""

    def __init__(self):
        super().__init__()
        for number, block in enumerate(self.blocks):
            self.blocks[number] = Shortening(block)

    def forward(self, ids):
        most = int((ids != 0).sum(1).max())
        x = self.embed(ids)[:, :most]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).mean(1)


class Shortening(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[:, :-1].transpose(0, 1).contiguous().transpose(0, 1)  # and in another order of memory


def first_word(longest):
    """Ends of samples are padded with zeros, as their numbers say."""

    def loss_of(model, atom):
        ids = words(atom, longest) % (VOCAB - 1) + 1
        for row in range(atom.count):
            ids[row, BLOCKS + 2 + (atom.start + row) % 4 :] = 0
        return functional.cross_entropy(model(ids), ids[:, 0])

    return loss_of


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_micro_batches_may_be_as_long_as_they_are(grid):
    """Short, long and short again, with dropout."""
    padded = next_word(lambda atom: 2 + atom.start % 5)
    alone = trained(a_net, padded, Grid(1, 1), held=[SHORTER, LONGER])
    assert_same(trained(a_net, padded, grid, held=[SHORTER, LONGER]), alone)


@pytest.mark.parametrize("real", [False, True], ids=["threads", "sockets"])
def test_an_evaluation_may_be_of_shorter_samples_and_of_longer_ones_and_of_any_number(real):
    """Over real connections too: there what is too short is read without a word, what is too long ends a process."""
    facts = {"held": [SHORTER, LONGER, SHORTER]}
    alone = trained(Plain, next_word(lambda _: LENGTH), Grid(1, 1), **facts)
    assert_same(trained(Plain, next_word(lambda _: LENGTH), Grid(1, 3), real=real, **facts), alone)
    assert alone.judged[0] == alone.judged[2] != alone.judged[1]


@pytest.mark.parametrize("real", [False, True], ids=["threads", "sockets"])
def test_a_shape_may_follow_from_the_data_alone(real):
    """And be that of a view: it is sent as it lies, and so is its gradient."""
    facts = {"held": [(first_word(12), 7)]}
    alone = trained(Shortened, first_word(9), Grid(1, 1), **facts)
    assert_same(trained(Shortened, first_word(9), Grid(1, 4), real=real, **facts), alone)


class Encoder(nn.Module):
    """Torch's own, which left to itself takes out the padding in evaluations, and hands on what has no shape at all."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.1, batch_first=True)
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.encoder = nn.TransformerEncoder(layer, BLOCKS)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=ids == 0)).mean(1)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_torchs_own_encoder_may_mask_the_padding_of_what_is_evaluated(grid):
    facts = {"held": [(first_word(9), 4), (first_word(12), 7)], "blocks": "encoder.layers"}
    plain = PlainAttention()
    plain.begin()
    try:
        alone = trained(Encoder, first_word(8), Grid(1, 1), **facts)
        assert_same(trained(Encoder, first_word(8), grid, **facts), alone)
    finally:
        plain.end()


class Sometimes(nn.Module):
    def forward(self, x):
        return x if self.training else x[:, :1]


def test_a_module_of_others_may_give_another_shape_in_evaluations():
    ghost = Ghost(Sometimes())
    given = torch.zeros(2, 3)
    assert ghost(given).shape == (2, 3)
    assert ghost.eval()(given).shape == (2, 1)
    assert ghost.train()(given).shape == (2, 3)


@st.composite
def tensors(draw):
    """In any order of memory; some dimensions expanded, or cut so that there are gaps."""
    shape = draw(st.lists(st.integers(0, 3), max_size=8))
    found = torch.arange(prod(shape)).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    for dim in range(len(shape)):
        kind = draw(st.sampled_from(["plain", "plain", "expanded", "cut"]))
        if kind == "expanded" and shape[dim] == 1:
            found = found.expand(*found.shape[:dim], 3, *found.shape[dim + 1 :])
        elif kind == "cut":
            found = found.narrow(dim, 0, shape[dim] // 2)
    return found.permute(draw(st.permutations(range(len(shape)))))


@given(tensors(), st.booleans())
def test_a_tensor_arrives_as_it_was_sent(sent, learns):
    heading = Heading.of(sent, learns=learns)
    said = heading.said()
    assert said.shape == (HEADING,)
    heard = Heading.heard(said)
    assert heard == heading
    room = heard.room(sent.device)
    letter, box = heading.memory(sent), heard.memory(room)
    assert letter.is_contiguous()
    assert letter.shape == box.shape
    assert len(letter) <= sent.numel()
    box.copy_(letter)
    assert torch.equal(room, sent)
    assert (room.dtype, heard.learns) == (sent.dtype, learns)
    if sent.numel() and sent.untyped_storage().nbytes() == len(letter) * sent.element_size():  # there are no gaps
        assert room.stride() == sent.stride()


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, dtype=torch.int64), torch.zeros([1] * 9), torch.eye(WIDTH).to_sparse()]
)
def test_what_does_not_cross_a_border_is_refused_in_words(wrong):
    with pytest.raises(InvalidValue, match="floating point numbers of at most 8 dimensions"):
        Heading.of(wrong, learns=False)
