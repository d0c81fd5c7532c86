"""Edits of gradients that a script makes by itself are lost: they are refused, and nothing else is."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.edits import ALWAYS, EVERY, Edits  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, flat, loss_of, network  # noqa: E402

EPOCHS = 3


def trained(touch, where="after", **more):
    """The weights of a loop that calls `touch(model)` in every turn."""
    model = network()
    with train.session(model, adam(model), data(48), global_batch=16, epochs=EPOCHS, **more) as s:
        for batch in s:
            loss = loss_of(model, batch)
            if where == "before":
                touch(model)
            s.step(loss)
            if where == "after":
                touch(model)
    return flat(model)


def halved(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 0.5


def noisy(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(torch.randn_like(parameter))


EDITS = {
    "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "norm, one by one": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False),
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.5),
    "a part": lambda model: nn.utils.clip_grad_norm_(model[3].parameters(), 1.0),
    "another in its place": halved,
    "noise": noisy,
}
HARMLESS = {
    "none": lambda model: model.zero_grad(),
    "zeros": lambda model: model.zero_grad(set_to_none=False),
    "read": lambda model: sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None),
    "copied": copy.deepcopy,
    "moved": lambda model: model.to("cpu").float(),
}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_clipping_that_was_left_in_the_loop_is_refused_with_what_to_write(edit, where):
    with pytest.raises(InvalidValue, match=r"gradients = 'edited between two steps'.*clip_norm=1\.0.*clip_value="):
        trained(edit, where)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_half_a_sum_is_not_to_be_edited_either(edit):
    with pytest.raises(InvalidValue, match="edited between the micro-batches"):
        trained(edit, micro_batch=4)


def test_half_a_sum_that_is_thrown_away_is_no_training():
    with pytest.raises(InvalidValue, match="edited between the micro-batches"):
        trained(lambda model: model.zero_grad(), micro_batch=4)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("touch", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_goes_on_to_the_same_bits(touch, where):
    assert torch.equal(trained(touch, where), trained(lambda _: None))


def test_micro_batches_without_an_edit_go_on():
    trained(lambda _: None, micro_batch=4)


def trained_by_two(touch):
    """Of two models by two optimizers, the one `touch(part)` in every turn."""
    parts = {"D": nn.Linear(FEATURES, 1), "G": nn.Linear(FEATURES, 1)}
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in parts.items()}
    with train.session(parts, optimizers, data(48), global_batch=16, epochs=EPOCHS) as s:
        for x, y in s:
            for name, part in parts.items():
                s.step(nn.functional.mse_loss(part(x), y), name)
            touch(parts["G"])


def test_one_of_several_optimizers_that_is_clipped_is_seen():
    trained_by_two(lambda part: part.zero_grad())
    with pytest.raises(InvalidValue, match="edited between two steps"):
        trained_by_two(EDITS["value"])


def test_an_edit_that_begins_late_is_found_within_some_steps():
    parameter = nn.Parameter(torch.zeros(2))
    edits, found = Edits([parameter]), None
    for step in range(10 * EVERY):
        edits.lay()
        if step > ALWAYS + EVERY:
            nn.utils.clip_grad_norm_([parameter], 1.0)
        try:
            edits.check()
        except InvalidValue:
            found = step
            break
        assert parameter.grad is None
    assert found is not None
    assert found - (ALWAYS + EVERY) <= EVERY


def test_gradients_are_the_scripts_own_again_after_the_session():
    model = network()
    with train.session(model, adam(model), data(48), global_batch=16, epochs=1) as s:
        for batch in s:
            s.step(loss_of(model, batch))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_few_and_small_ones_are_looked_at():
    large, small = nn.Parameter(torch.zeros(1 << 17)), [nn.Parameter(torch.zeros(3)) for _ in range(100)]
    edits = Edits([large, *small])
    edits.lay()
    laid = [each for each in (large, *small) if each.grad is not None]
    assert 0 < len(laid) <= 16
    assert large.grad is None
    alone = Edits([large])
    alone.lay()
    assert large.grad is not None


def test_of_each_stretch_of_the_model_its_smallest_is_looked_at():
    sizes = [5, 3, 9, 4, 2, 8]  # six parameters in each of sixteen stretches, none of them in the same order
    parameters = [nn.Parameter(torch.zeros(sizes[(at + at // 6) % 6])) for at in range(96)]
    Edits(parameters).lay()
    assert [at for at, each in enumerate(parameters) if each.grad is not None] == [
        min(range(start, start + 6), key=lambda at: parameters[at].numel()) for start in range(0, 96, 6)
    ]


def test_a_gradient_that_was_there_is_there_again_when_the_decoy_is_taken_away():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = gradient = torch.tensor([1.0, 2.0])
    edits = Edits([parameter])
    for away in (edits.lift, edits.check):
        edits.lay()
        assert parameter.grad is not gradient
        away()
        assert parameter.grad is gradient
    assert gradient.tolist() == [1.0, 2.0]


def test_half_a_sum_of_the_last_step_is_forgotten_with_it():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.zeros(2)
    edits = Edits([parameter])
    for _ in range(ALWAYS + 2 * EVERY):  # with decoys and without
        edits.lay()
        edits.check()
        parameter.grad.add_(1.0)
        edits.note()
        edits.check()
        parameter.grad.add_(1.0)  # the second micro-batch, and the update
        parameter.grad.zero_()


def test_a_long_training_in_micro_batches_goes_on():
    model = network()
    with train.session(model, adam(model), data(48), global_batch=16, micro_batch=4, epochs=ALWAYS // 3 + 3) as s:
        for batch in s:
            s.step(loss_of(model, batch))
    assert s.steps > ALWAYS + 2


def test_a_compiled_model_is_not_compiled_again_for_it():
    model, graphs = nn.Linear(FEATURES, 1), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    x = torch.randn(64, FEATURES)
    with train.session(model, adam(model), TensorDataset(x, x[:, :1]), global_batch=16, epochs=EPOCHS) as s:
        for batch, target in s:
            s.step(nn.functional.mse_loss(compiled(batch), target))
    assert len(graphs) == 1
