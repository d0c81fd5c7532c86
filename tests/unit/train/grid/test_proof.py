"""A model that would be trained otherwise in parts than in one piece is refused at once; any other is not."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.testing.threads_mesh import Threads, ThreadsMesh  # noqa: E402
from sublet.train.grid.atoms import Atom  # noqa: E402
from sublet.train.grid.compared import Comparison, Whole  # noqa: E402
from sublet.train.grid.dice import Dice  # noqa: E402
from sublet.train.grid.proof import Proof, Short  # noqa: E402
from sublet.train.grid.proving import Proving  # noqa: E402
from sublet.train.grid.room import room_bytes  # noqa: E402
from sublet.train.grid.seat import parts_of  # noqa: E402
from sublet.train.link import ControllerLink  # noqa: E402
from sublet.train.samples import Samples  # noqa: E402
from sublet.train.state import Progress, host_draw, random_state  # noqa: E402
from tests.rigs.cut_models import (  # noqa: E402
    ALONE,
    IN_TWO,
    RIGHT,
    SEED,
    WRONG,
    a_model,
    batch_of,
    learned,
    loss_of,
    proved,
    trained,
)
from tests.rigs.sizes import examples  # noqa: E402


def is_refused(model):
    try:
        proved(model)
    except InvalidValue:
        return True
    return False


def assert_as_in_one_piece(blocks, quirks, grid):
    whole, parts = (trained(lambda: a_model(blocks, quirks), each) for each in (ALONE, grid))
    assert whole.keys() == parts.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name


@settings(max_examples=examples(48), deadline=None)
@given(st.integers(2, 4), st.sets(st.sampled_from(RIGHT), max_size=3), st.sampled_from([None, *WRONG]), st.data())
def test_what_is_accepted_is_trained_in_parts_as_in_one_piece_to_the_bit_and_what_is_not_is_refused(
    blocks, right, wrong, data
):
    quirks = right | {wrong} if wrong else right
    assert is_refused(a_model(blocks, quirks)) == (wrong is not None)
    if wrong is None:
        assert_as_in_one_piece(blocks, quirks, Grid(1, data.draw(st.integers(2, blocks))))


@pytest.mark.parametrize("quirk", RIGHT)
def test_what_is_done_around_the_blocks_may_be_cut(quirk):
    proved(a_model(3, {quirk}))
    assert_as_in_one_piece(3, {quirk}, IN_TWO)


@pytest.mark.parametrize(
    ("quirk", "match"),
    [
        ("a penalty on all", r"the numbers of embed\.weight, for square.*weight_decay"),
        ("added outside", r"the numbers of what blocks\.0 gives, for add.*into the blocks"),
        ("the embedding", r"the numbers of what embed gives, for add.*into the blocks"),
        ("what another said", r"the numbers of what blocks\.0 gives, for mean"),
        ("leaves it in an attribute", r"the numbers of what blocks\.0 gives, for add"),
        ("left out by chance", r"block \d that is left out.*LayerDrop.*returns what it got"),
        ("added at the end", r"the numbers of what embed gives, for add"),
        ("draws by Python", r"a loss of .*: block 2 gets another tensor.*torch's own dice"),
        ("one weight for two", r"a gradient of blocks\.\d\.up\.weight of length"),
        ("kept for another", r"a forward that fails in the part of block 1, AttributeError"),
        ("written into what it gets", r"in-place operation.*x = x \+ y in place of x \+= y"),
    ],
)
def test_what_differs_is_refused_with_what_it_is_and_the_way_out(quirk, match):
    assert quirk in {*WRONG, "one weight for two", "kept for another", "written into what it gets"}
    with pytest.raises(InvalidValue, match=match):
        proved(MADE.get(quirk, lambda: a_model(3, {quirk}))())


class Keeps(nn.Module):
    """The first leaves something in what all share."""

    def __init__(self, inner, shared):
        super().__init__()
        self.inner, self.shared = inner, [shared]

    def forward(self, x):
        if not hasattr(self.shared[0], "kept"):
            self.shared[0].kept = x.mean() if self.inner.is_first else self.missing
        return self.inner(x) * (1.0 + self.shared[0].kept)


def one_that_keeps():
    model = a_model(3, ())
    for number, block in enumerate(model.blocks):
        block.is_first = number == 0
        model.blocks[number] = Keeps(block, model)
    return model


class Writes(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x += 0.1
        return self.inner(x)


def one_that_writes():
    model = a_model(3, ())
    for number, block in enumerate(model.blocks):
        model.blocks[number] = Writes(block)
    return model


def one_weight_for_two():
    """Gradients that a part has of what it does not hold are lost; a view of it is not known for one."""
    model = a_model(3, ())
    first, forward = model.blocks[0].up.weight.view(-1), model.forward
    model.forward = lambda ids: forward(ids) * first.square().sum()
    return model


MADE = {
    "one weight for two": one_weight_for_two,
    "kept for another": one_that_keeps,
    "written into what it gets": one_that_writes,
}


def test_a_difference_that_may_be_rounding_is_one_only_where_the_whole_model_rounds_otherwise_each_time():
    model = a_model(3, ())
    drift = iter(range(1, 100))
    model.head.register_forward_hook(lambda _module, _args, out: out * (1.0 + 1e-7 * next(drift)))
    proved(model)  # no two runs of it are equal
    model = a_model(3, ())
    forward, views = model.forward, [each.view(-1) for each in model.parameters()]
    model.forward = lambda ids: forward(ids) * (1.0 + 1e-8 * sum(each.square().sum() for each in views))
    with pytest.raises(InvalidValue, match="in its last digits"):
        proved(model)


def test_a_gradient_that_is_off_by_less_than_rounding_is_seen_where_it_is_none_of_it():
    model = a_model(3, ())
    weight, forward = model.blocks[0].up.weight.view(-1), model.forward
    model.forward = lambda ids: forward(ids) + weight.sum()  # the same for all words: the loss is as it was
    with pytest.raises(InvalidValue, match=r"a gradient of blocks\.0\.up\.weight that is another in its last digits"):
        proved(model)


@pytest.mark.parametrize(
    "term",
    [
        lambda model, was: sum((now - old).square().sum() for now, old in zip(model.weights, was, strict=True)),
        lambda model, _: sum(block.up.bias.square().sum() for block in model.blocks),  # which begin at zero
        lambda model, was: model.blocks[0].gate * sum(each.square().sum() for each in was),  # and so does this
    ],
    ids=["a distance from where it began", "a penalty on what is zero", "a gate that is shut"],
)
def test_what_is_nothing_at_the_weights_that_training_begins_with_is_seen(term):
    model = a_model(3, ())
    for block in model.blocks:
        nn.init.zeros_(block.up.bias)
    model.blocks[0].gate = nn.Parameter(torch.zeros(()))
    weights = list(model.blocks[0].parameters())
    model.weights, forward = weights, model.forward
    was = [each.detach().clone() for each in weights]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model.forward = lambda ids: forward(ids) * (1.0 + 0.01 * term(model, was))
    with pytest.raises(InvalidValue, match="parts"):
        proved(model)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_part_that_comes_to_no_number_beside_a_whole_that_does_is_refused():
    whole = Whole(torch.tensor(1.0), {}, {}, 1e-7)
    with pytest.raises(InvalidValue, match="a loss of nan in parts, 1 in one piece"):
        Comparison(whole).judge_loss(torch.tensor(math.nan))


def test_a_loss_that_is_off_in_its_last_digits_is_refused_where_the_whole_model_repeats_it():
    whole, off = Whole(torch.tensor(1.0), {}, {}, 1e-7), torch.tensor(1.0 + 2e-7)
    found = Comparison(whole)
    found.judge_loss(off)
    found.check_repeats(Whole(off, {}, {}, 1e-7))
    with pytest.raises(InvalidValue, match="a loss that is another in its last digits"):
        found.check_repeats(Whole(torch.tensor(1.0), {}, {}, 1e-7))


class Words(nn.Module):
    """With a weight of its own, and a table that is read again behind the blocks."""

    def __init__(self, words, width):
        super().__init__()
        self.table, self.scale = nn.Embedding(words, width), nn.Parameter(torch.ones(width))

    def forward(self, ids):
        return self.table(ids) * self.scale


def test_a_module_within_another_is_held_where_either_runs():
    model = a_model(3, ())
    model.embed = Words(*model.embed.weight.shape)

    def forward(ids):
        x = model.embed(ids)
        for block in model.blocks:
            x = block(x)
        return model.norm(x) @ model.embed.table.weight.T

    model.forward = forward
    proved(model)
    kinds = {name: unit.kind for unit in learned(model).units for name in unit.names}
    assert (kinds["embed.table.weight"], kinds["embed.scale"], kinds["norm.weight"]) == ("tied", "before", "after")


def test_a_loss_that_is_another_each_time_says_so():
    model, times = a_model(3, ()), iter(range(100))
    forward = model.forward
    model.forward = lambda ids: forward(ids) * (1 + next(times))
    with pytest.raises(InvalidValue, match=r"loss = '.* when it is computed again'.*s\.steps"):
        proved(model)


def test_gradients_of_rows_are_compared_too():
    model = a_model(3, ())
    model.embed.sparse = True
    proved(model)
    model.quirks = frozenset({"a penalty on all"})
    with pytest.raises(InvalidValue, match="weight_decay"):
        proved(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_parts_share_may_be_rounded_otherwise(dtype):
    proved(a_model(4, {"dropout"}, tied=True).to(dtype))
    shared = a_model(4, {"dropout"}).to(dtype)
    shared.blocks[3].up = shared.blocks[1].up
    proved(shared)


def test_parts_within_autocast_are_compared_by_its_digits():
    model = a_model(3, (), tied=True)
    forward = model.forward

    def in_half(ids):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(ids).float()

    model.forward = in_half
    proved(model)


def test_activations_may_be_computed_again():
    model = a_model(3, {"dropout"})

    def forward(ids):
        x = model.embed(ids)
        for block in model.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return model.head(model.norm(x))

    model.forward = forward
    proved(model)


def test_nothing_of_it_is_left():
    """Neither in the model, nor in the dice, nor in gradients that the script has made before."""
    model = a_model(3, {"makes a table", "a mask for all", "dropout"}).train()
    model.generator = torch.Generator().manual_seed(4)
    model.embed.register_forward_hook(lambda *_: model.generator.manual_seed(7) and None)
    model.head.weight.grad = gradient = torch.ones_like(model.head.weight)
    before, was = copy.deepcopy(model.state_dict()), vars(model.blocks[0]).copy()
    calls = [block.calls for block in model.blocks]
    drawn = random_state()
    own = model.generator.get_state().tolist()
    proved(model)
    for name, was_drawn in drawn.items():
        now = random_state()[name]
        assert all(map(is_same, was_drawn, now)), name
    assert own == model.generator.get_state().tolist()
    assert model.head.weight.grad is gradient
    assert all(each.grad is None for name, each in model.named_parameters() if name != "head.weight")
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert [block.calls for block in model.blocks] == calls
    assert all(block.calls == 0 and block.table is None and not block.tables for block in model.blocks)
    assert vars(model.blocks[0]).keys() == was.keys()
    assert not hasattr(model, "mask")
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.blocks)


def is_same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_table_that_a_block_makes_of_nothing_is_not_kept():
    """A part runs blocks of others without numbers, and gets some of them later."""
    model = a_model(3, {"makes a table"})
    cut = learned(model)
    assert all(block.table is None and not block.tables for block in model.blocks)
    cut.become(cut_in_two(cut)[1])
    cut.run(lambda: loss_of(model, batch_of(Atom(0, 2))), torch.zeros(2, 6, 6))
    cut.restore()
    assert [block.table is None for block in model.blocks] == [True, False, False]


def cut_in_two(cut):
    return parts_of(len(cut.blocks), 2)


def test_samples_that_are_others_each_time_are_refused():
    model, drawn = a_model(2, ()), iter(range(100))
    cut, dice = learned(model), Dice(SEED)

    def load(_):
        return batch_of(Atom(next(drawn), 2))

    with pytest.raises(InvalidValue, match=r"dataset = 'samples that are others"):
        Proof(cut, (Atom(0, 2),), load, lambda batch, _: loss_of(model, batch)).prove(dice)
    Proof(cut, (Atom(0, 2),), lambda _: augmented(), lambda batch, _: loss_of(model, batch)).prove(dice)


def augmented():
    """By the dice that everybody has."""
    return batch_of(Atom(int(10 * sum(host_draw())), 2))


def a_mark():
    return "of this model"


UNTOLD = (ControllerLink("w"), Progress(samples=8, batch=4), a_mark)


def test_what_does_not_fit_is_tried_with_a_sample_and_then_said(capfd):
    model, tried = a_model(2, ()), []

    def short(batch):
        tried.append(len(batch[0]))
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError
        return loss_of(model, batch)

    link, cut = ControllerLink("w"), learned(model)
    samples = Samples(Pairs(), 0, None, None, shuffled=False)
    progress = Progress(samples=8, batch=4)
    proving = Proving(cut, (Atom(0, 2), Atom(0, 1)), samples, lambda batch, _: short(batch), link, progress, a_mark)
    [mesh] = ThreadsMesh.all_of(Threads(), 1)
    assert not proving(mesh, Dice(SEED))
    assert not progress.proved
    assert tried[:2] == [2, 1]
    assert "was not tried: it does not fit uncut" in capfd.readouterr().err
    with pytest.raises(Short):
        proved(model, room=lambda: 10.0)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        ids, after = batch_of(Atom(number, 1))
        return ids[0], after[0]


def test_where_there_is_no_room_it_is_looked_at_without_numbers(monkeypatch):
    model = a_model(2, {"added outside"})
    cut = learned(model)
    monkeypatch.setattr("sublet.train.grid.proving.room_bytes", lambda _: 0.0)
    samples = Samples(Pairs(), 0, None, None, shuffled=False)
    proving = Proving(cut, (Atom(0, 2),), samples, lambda batch, _: loss_of(model, batch), *UNTOLD)
    [mesh] = ThreadsMesh.all_of(Threads(), 1)
    with pytest.raises(InvalidValue, match="into the blocks"):
        proving(mesh, Dice(SEED))


def test_one_proves_and_all_hear_of_it():
    threads, ran = Threads(), []
    meshes = ThreadsMesh.all_of(threads, 3)
    samples = Samples(Pairs(), 0, None, None, shuffled=False)

    def proving(rank):
        model = a_model(2, {"a penalty on all"})

        def counted(batch, _):
            ran.append(rank)
            return loss_of(model, batch)

        cut, dice = learned(model), Dice(SEED)
        Proving(cut, (Atom(0, 2),), samples, counted, *UNTOLD)(meshes[rank], dice)

    outcomes = threads.run({str(rank): lambda rank=rank: proving(rank) for rank in range(3)})
    assert {*ran} == {0}
    assert len({str(error) for error in outcomes.values()}) == 1
    assert all(isinstance(error, InvalidValue) and "weight_decay" in str(error) for error in outcomes.values())


def test_a_host_says_what_room_it_has(tmp_path):
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  9 kB\nMemAvailable:    7 kB\n", encoding="ascii")
    assert room_bytes(torch.device("cpu"), told) == 7 * 1024
    assert room_bytes(torch.device("cpu"), tmp_path / "none") == float("inf")
