"""Weights and tensors of other parts: what they are may be asked, and their numbers are refused, whenever that is."""

from __future__ import annotations

import contextlib
import copy
import io

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sublet.domain.shape import Grid  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.testing.threads_mesh import Threads  # noqa: E402
from sublet.train.grid.absent import Absence, Absent, present  # noqa: E402
from sublet.train.grid.atoms import Atom  # noqa: E402
from sublet.train.grid.cutting import Part  # noqa: E402
from sublet.train.grid.seat import parts_of  # noqa: E402
from tests.rigs.cut_models import ALONE, IN_TWO, RIGHT, WIDTH, a_model, batch_of, learned, proved, trained  # noqa: E402
from tests.rigs.grid_worker import Worker, generation  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

FACTS = [
    lambda w: w.shape,
    lambda w: w.size(0),
    lambda w: w.dtype,
    lambda w: w.data.dtype,
    lambda w: w.device,
    lambda w: w.requires_grad,
    lambda w: (w.ndim, w.dim(), w.numel(), len(w), w.stride(), w.element_size()),
    lambda w: w.is_floating_point() and torch.is_floating_point(w) and not w.is_cuda,
    lambda w: torch.finfo(w.dtype).min,
    lambda w: torch.zeros_like(w).sum(),
    lambda w: w.new_ones(2).sum(),
    lambda w: torch.ones(3).to(w).dtype,
    lambda w: isinstance(w, nn.Parameter) and isinstance(w, torch.Tensor),
    lambda w: w.grad,
    lambda w: hash(w) == id(w),
]
NUMBERS = [
    lambda w: w.norm(),
    lambda w: w.data.abs().max(),
    lambda w: w.detach().clone(),
    lambda w: w.tolist(),
    lambda w: float(w.sum()),
    lambda w: w + 1,
    lambda w: 1 - w,
    lambda w: w[0],
    lambda w: torch.ones_like(w).add_(w),
    lambda w: torch.stack([torch.ones_like(w), w]),
    lambda w: w.data.clamp_(-1, 1),
    lambda w: w.mul_(0.5),
    lambda w: bool((w == 0).all()),
    lambda w: w.detach().numpy(),
    copy.deepcopy,
    lambda w: torch.save({"w": w}, io.BytesIO()),
    lambda w: torch.nn.utils.parameters_to_vector([w]),
    torch.nn.init.zeros_,
    nn.Linear(2, 2).weight.data.copy_,
    lambda w: f"{w.mean():.3f}",
    lambda w: setattr(w, "data", torch.ones_like(w)),
]


def by_listing(model, name):
    return dict(model.named_parameters())[name]


def by_state(model, name):
    return model.state_dict(keep_vars=True)[name]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 4), st.data())
def test_of_a_weight_of_another_part_everything_may_be_asked_but_its_numbers(blocks, data):
    model = a_model(blocks, ())
    cut = learned(model)
    before, real = dict(model.named_parameters()), copy.deepcopy(model)
    parts = parts_of(blocks, data.draw(st.integers(2, blocks)))
    part = data.draw(st.sampled_from(parts))
    cut.become(part)
    held = {name for unit in cut.units if part.has(unit) for name in unit.names}
    name = data.draw(st.sampled_from(sorted(before)))
    ways = [by_listing, by_state, lambda *_: before[name]]
    found = data.draw(st.sampled_from(ways))(model, name)
    assert found is before[name]
    fact, number = data.draw(st.sampled_from(FACTS)), data.draw(st.sampled_from(NUMBERS))
    assert str(fact(found)) == str(fact(real.get_parameter(name)))
    if name not in held:
        with pytest.raises(InvalidValue, match=f"the numbers of {name}, for .*worker that has it.*checkpoint"):
            number(found)
        assert repr(found).endswith(f"<{name}, which is with another part of the model>")
    cut.restore()
    assert type(found) is nn.Parameter
    assert vars(found) == {}
    assert torch.equal(found, real.get_parameter(name))


def test_a_weight_within_a_list_is_refused_as_a_weight():
    model = a_model(2, ())
    a_part(model)
    ours, other = model.head.weight, model.embed.weight
    for asked in (
        lambda: torch.stack([torch.ones_like(other), other]),
        lambda: torch._foreach_norm([ours, other]),
        lambda: torch.cat(tensors=(ours, other)),
        lambda: torch._foreach_add([ours], other=[other]),
    ):
        with pytest.raises(InvalidValue, match=r"the numbers of embed\.weight, for .*weight_decay"):
            asked()


def test_a_script_that_reads_a_weight_by_attribute_is_told_which_and_a_model_can_be_printed():
    model = a_model(3, ())
    printed, cut = repr(model), learned(model)
    cut.become(parts_of(3, 3)[1])
    assert model.blocks[1].up.weight.norm() > 0
    assert repr(model) == printed
    for read, name in (
        (model.blocks[2].up.bias.sum, "blocks.2.up.bias"),
        (model.head.weight.norm, "head.weight"),
        (lambda: [each.square() for each in model.blocks.parameters()], "blocks.0.norm.weight"),
        (lambda: torch.save(model.state_dict(), io.BytesIO()), "embed.weight"),
    ):
        with pytest.raises(InvalidValue, match=f"the numbers of {name},"):
            read()
    cut.close()
    assert model.blocks[2] is cut.blocks[2]
    with pytest.raises(InvalidValue, match=r"the numbers of embed\.weight, for embedding"):
        model(batch_of(Atom(0, 2))[0])


LATE = ("a penalty on all", "added outside", "the embedding", "added at the end", "what another said")


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(2, 4), st.sampled_from([*LATE, *(each for each in RIGHT if each != "dropout")]), st.data())
def test_what_begins_with_a_later_step_is_trained_as_in_one_piece_or_refused_then(blocks, late, data):
    grid = Grid(1, data.draw(st.integers(2, blocks)))
    if late in LATE:
        with pytest.raises(InvalidValue, match="the numbers of"):
            trained(lambda: a_model(blocks, ()), grid, late={late})
        return
    whole, parts = (trained(lambda: a_model(blocks, ()), each, late={late}) for each in (ALONE, grid))
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


def test_what_a_block_leaves_in_an_attribute_is_refused_whatever_it_is_worth_and_is_as_it_was_afterwards():
    model = a_model(3, {"leaves it in an attribute", "makes a table"})
    model.share = 0.0  # until a later step
    with pytest.raises(InvalidValue, match=r"the numbers of what blocks\.0 gives, for add"):
        proved(model)
    assert all(block.table is None and not hasattr(block, "said") for block in model.blocks)
    cut = a_part(model)
    shared = model.blocks[0].drop = model.blocks[2].drop
    shared.register_forward_hook(lambda module, *_: setattr(module, "last", torch.ones(())))
    cut.become(parts_of(3, 3)[2])
    with pytest.raises(InvalidValue, match=r"the numbers of what blocks\.0 gives, for add"):
        ran(cut, model.forward)
    assert isinstance(model.blocks[0].said, Absent)
    assert type(shared.last) is torch.Tensor, "it is ours as well"
    cut.restore()
    assert [hasattr(block, "said") for block in model.blocks] == [False, False, True]


def with_weights(model):
    """A term over parameters that were listed before all else, which begins with the second call in training."""
    weights, forward, calls = list(model.parameters()), model.forward, []

    def from_then_on(ids):
        calls.append(torch.is_grad_enabled())
        made = forward(ids)
        return made + 0.1 * sum(each.square().sum() for each in weights) if sum(calls) > 3 else made

    model.forward = from_then_on
    return model


def test_a_list_of_parameters_from_before_is_refused_when_a_later_step_uses_it():
    trained(lambda: with_weights(a_model(2, ())), ALONE)
    with pytest.raises(InvalidValue, match=r"the numbers of embed\.weight, for square.*weight_decay"):
        trained(lambda: with_weights(a_model(2, ())), IN_TWO)


def a_part(model, number=1, parts=2):
    cut = learned(model)
    cut.become(parts_of(len(cut.blocks), parts)[number])
    return cut


def ran(cut, forward, came=True):
    received = torch.ones(2, WIDTH, WIDTH) if came else None
    return cut.run(lambda: forward(batch_of(Atom(0, 2))[0]), received).value


@pytest.mark.filterwarnings("ignore")  # of the compiler, about its own looks at gradients
@pytest.mark.parametrize("fullgraph", [False, True])
def test_functions_that_are_compiled_run_in_the_shadow_too(fullgraph):
    model = a_model(2, ())
    twice = torch.compile(lambda x: (x * 2.0).relu(), backend="eager", fullgraph=fullgraph)

    def forward(ids):
        x = twice(model.embed(ids))
        for block in model.blocks:
            x = block(twice(x))
        return model.head(model.norm(twice(x)))

    model.forward = forward
    cut = a_part(model)
    assert type(ran(cut, forward)) is torch.Tensor


def test_what_is_before_the_first_block_of_a_part_may_take_weights_of_others_for_their_shape():
    """`functional.embedding(ids, model.embed.weight)` is thrown away there."""
    model = a_model(2, ())

    def forward(ids, late=None):
        x = functional.embedding(ids, model.embed.weight) + model.place
        scratch, viewed, plain = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(1, 1, 1)
        scratch[:, 0] = x[:, 0]
        viewed[:, 0].copy_(x[:, 0])
        torch.atleast_3d(plain, x)  # which gives back what it gets
        assert type(plain) is torch.Tensor
        room.copy_(x)
        if x.isnan().any():
            x = x * 2
        for block in model.blocks:
            x = block(x)
        return model.head(model.norm(x)) + (
            0 if late is None else {"scratch": scratch, "room": room, "viewed": viewed}[late].sum()
        )

    model.forward, room = forward, torch.zeros(2, WIDTH, WIDTH)
    cut = a_part(model)
    assert type(ran(cut, forward)) is torch.Tensor
    assert type(room) is torch.Tensor, "it is the script's again"
    for late in ("scratch", "room", "viewed"):
        with pytest.raises(InvalidValue, match=r"the numbers of embed\.weight, for sum"):
            ran(cut, lambda ids, late=late: forward(ids, late))
    assert type(room) is torch.Tensor


def test_a_forward_that_catches_everything_is_told_when_it_is_over():
    model = a_model(2, ())
    forward, past = model.forward, []

    def catches(ids):
        made = forward(ids)
        for _ in past:
            with contextlib.suppress(Exception):
                made = made + model.embed.weight.sum()
        return made

    cut = a_part(model)
    with contextlib.suppress(InvalidValue):  # between two steps it is the script's own business
        model.embed.weight.sum()
    assert type(ran(cut, catches)) is torch.Tensor
    past.append("from now on")
    with pytest.raises(InvalidValue, match=r"the numbers of embed\.weight, for sum"):
        ran(cut, catches)
    past.clear()
    assert type(ran(cut, catches)) is torch.Tensor


def test_what_goes_past_the_blocks_is_refused_also_as_it_is():
    model = a_model(4, ())

    def forward(ids, past=None):
        x = first = model.embed(ids) + model.place
        for number, block in enumerate(model.blocks):
            x = block(first if number == past else x)
        return model.head(model.norm(x))

    model.forward = forward
    cut = a_part(model, 0)
    cut.become(parts_of(4, 2)[0])
    assert type(ran(cut, forward, came=False)) is torch.Tensor
    cut.become(Part(1, 3, first=False, last=False))
    assert type(ran(cut, forward)) is torch.Tensor
    with pytest.raises(InvalidValue, match="what embed gives as what block 3 takes"):
        ran(cut, lambda ids: forward(ids, 3))
    cut.become(parts_of(4, 2)[1])
    with pytest.raises(InvalidValue, match="what embed gives as the loss"):
        ran(cut, lambda ids: (model.embed(ids), forward(ids))[0])


def test_a_spare_has_no_weights_and_what_is_kept_for_others_is_none_of_the_scripts():
    threads = Threads()
    workers = [Worker(threads, f"w{number}") for number in range(3)]
    keeps = ((1,), (0,))
    outcomes = generation(threads, workers[:2], Grid(1, 2), 2, keeps=keeps)
    assert set(outcomes.values()) == {"done"}
    for worker in workers[:2]:
        named = dict(worker.model.named_parameters())
        ours = {name for u in worker.member._own for name in worker.cut.units[u].names}
        assert {name for name, each in named.items() if not isinstance(each, Absent)} == ours
        assert len(worker.member.holdings.arenas) == len(worker.cut.units), "it keeps all of them"
    workers[2].cut.sit_out()
    assert all(isinstance(each, Absent) for each in workers[2].model.parameters())


def test_what_a_forward_leaves_in_the_model_itself_is_known_and_no_trouble_to_a_checkpoint(tmp_path):
    threads = Threads()
    workers = [Worker(threads, f"w{number}", directory=tmp_path) for number in range(2)]
    for model in (worker.model for worker in workers):
        model.drop.register_forward_hook(lambda _drop, _args, made, model=model: setattr(model, "last", made))
    assert set(generation(threads, workers, Grid(1, 2), 3, saves=[1, None], generation=1).values()) == {"done"}
    assert workers[0].model.last.norm() > 0
    with pytest.raises(InvalidValue, match=r"the numbers of what embed gives, for norm"):
        workers[1].model.last.norm()
    for worker in workers:
        worker.member.vault.close()


def test_the_parameters_of_an_optimizer_are_not_taken_for_all_of_them():
    threads = Threads()
    workers = [Worker(threads, f"w{number}") for number in range(2)]
    assert set(generation(threads, workers, Grid(1, 2), 1).values()) == {"done"}
    for worker in workers:
        [group] = worker.member.holdings.optimizer.param_groups
        assert next(iter(group["params"])).device.type == "cpu"
        with pytest.raises(InvalidValue, match="a look at all parameters of the model"):
            sum(each.square().sum() for each in group["params"])
        assert worker.member.holdings.optimizer.state_dict()["state"]


def test_who_keeps_a_weight_may_update_it():
    weight, absence = nn.Parameter(torch.ones(2)), Absence()
    absence.only({"w": weight})
    with present([weight]):
        assert type(weight) is nn.Parameter
        weight.data.mul_(2)
    with pytest.raises(InvalidValue, match="the numbers of w, for tolist"):
        weight.tolist()
    absence.clear()
    assert weight.tolist() == [2.0, 2.0]
