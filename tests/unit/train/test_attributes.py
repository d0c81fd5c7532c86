"""Plain values of models and optimizers that a script changes while it trains are a part of the state: to the bit."""

from __future__ import annotations

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.train.attributes import Attributes  # noqa: E402
from sublet.train.checkpoint.snapshot import HostCopy  # noqa: E402
from sublet.train.gradients import Gradients  # noqa: E402
from sublet.train.options import Options  # noqa: E402
from sublet.train.remembered import SMALL  # noqa: E402
from sublet.train.state import Progress  # noqa: E402
from sublet.train.turns import Turn  # noqa: E402
from sublet.train.updates import Updates  # noqa: E402
from tests.rigs.last_state import LastState  # noqa: E402
from tests.rigs.little_network import FEATURES, data, flat  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

STEPS, EPOCHS = 4, 3  # an epoch of 50 samples in steps of 16


class Cut(Exception):
    """The process was killed."""


class Net(nn.Module):
    """It counts its calls, in a number and in a buffer of which no state_dict tells."""

    def __init__(self, p=0.2):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(p)
        self.last = nn.Linear(8, 1)
        self.temperature, self.calls, self.counts = 1.0, 0, ()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def anneal(self):
        self.temperature = self.temperature * 0.7

    def forward(self, x):
        if self.training and "number" in self.counts:
            self.calls += 1
        if self.training and "buffer" in self.counts:
            self.seen += 1
        out = self.last(self.drop(torch.tanh(self.norm(self.first(x))))) / self.temperature
        return out * (1.0 + 0.1 * self.calls) * (1.0 + 0.1 * self.seen)


def evaluates(model, _, epoch):
    if epoch == 0:
        model.norm.eval()


def freezes(model, _, epoch):
    if epoch == 0:
        model.first.requires_grad_(requires_grad=False)


def thaws(model, _, epoch):
    model.first.requires_grad_(requires_grad=epoch == 1)


def cools(model, *_):
    model.temperature *= 0.8


def cools_in_numpy(model, *_):
    model.temperature = np.float32(model.temperature) * np.float32(0.8)


def anneals(model, *_):
    model.anneal()


def drops_less(model, *_):
    model.drop.p *= 0.5


def by_defaults(_, optimizer, __):
    optimizer.defaults["lr"] *= 0.5
    optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"]


def by_optimizer(_, optimizer, __):
    optimizer.alpha *= 0.7


def nothing(*_):
    """The forward alone changes something."""


AFTER = (evaluates, freezes, thaws, cools, cools_in_numpy, anneals, drops_less, by_defaults, by_optimizer)
IDIOMS = {
    **{line.__name__: ((line,), ()) for line in AFTER},
    "calls": ((nothing,), ("number",)),
    "seen": ((nothing,), ("buffer",)),
    "all": ((freezes, cools, drops_less, by_defaults, by_optimizer, evaluates), ("number", "buffer")),
}


def trained(lines, counts, dies=None, *, before=False):
    """The weights; a process that dies does so before this step. Lines stand before or after the batches."""
    torch.manual_seed(2)
    model = Net()
    model.counts = counts
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    optimizer.alpha = 1.0
    with train.session(model, optimizer, data(), global_batch=16, epochs=EPOCHS) as s:
        for epoch in s.epochs():
            for line in lines if before else ():
                line(model, optimizer, epoch)
            for x, y in s:
                if s.steps == dies:
                    raise Cut
                s.step(optimizer.alpha * nn.functional.mse_loss(model(x), y))
            for line in () if before else lines:
                line(model, optimizer, epoch)
    return flat(model)


@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.parametrize("before", [False, True], ids=["after the batches", "before them"])
def test_a_start_that_goes_on_comes_to_the_same_bits(name, before, monkeypatch):
    last, idiom = LastState(monkeypatch), IDIOMS[name]
    expected = trained(*idiom, before=before)
    for dies in range(STEPS * EPOCHS) if FULL else (STEPS + 2, 2 * STEPS):
        last.forget()
        with pytest.raises(Cut):
            trained(*idiom, dies, before=before)
        assert torch.equal(trained(*idiom, before=before), expected), dies


def test_starts_that_are_all_killed_come_to_the_same_bits(monkeypatch):
    last, idiom = LastState(monkeypatch), IDIOMS["all"]
    expected = trained(*idiom)
    last.forget()
    for dies in range(STEPS * EPOCHS):
        with pytest.raises(Cut):
            trained(*idiom, dies)
    assert torch.equal(trained(*idiom), expected)


def trained_by_two(dies=None):
    """Two models and their optimizers, each with a temperature and a rate of its own."""
    torch.manual_seed(2)
    models = {"a": Net(), "b": Net()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.05) for name, model in models.items()}
    with train.session(models, optimizers, data(), global_batch=16, epochs=2) as s:
        for epoch in s.epochs():
            for x, y in s:
                if s.steps == dies:
                    raise Cut
                for name, model in models.items():
                    s.step(nn.functional.mse_loss(model(x), y), name)
            cools(models["a"])
            freezes(models["b"], None, epoch)
            by_defaults(None, optimizers["b"], epoch)
    return torch.cat([flat(model) for model in models.values()])


def test_several_models_and_optimizers_have_their_own(monkeypatch):
    last = LastState(monkeypatch)
    expected = trained_by_two()
    last.forget()
    with pytest.raises(Cut):
        trained_by_two(STEPS + 2)
    assert torch.equal(trained_by_two(), expected)


def attributes_of(model, **sgd):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **sgd)
    return Attributes(model, {"": optimizer}), optimizer


def stored(attributes):
    """As it comes from a checkpoint."""
    return HostCopy().take(attributes.state_dict()).state()


def test_only_what_has_changed_is_stored_so_an_edited_setting_stays_edited():
    model = Net(p=0.2)
    attributes, _ = attributes_of(model)
    nothing_changed = {"plain": {}, "held": {}, "others": {}, "shared": {}, "trained": {}, "buffers": {}, "made": {}}
    assert stored(attributes) == nothing_changed
    model.temperature = 0.5
    state = stored(attributes)
    assert state == nothing_changed | {"plain": {"module ": {"temperature": 0.5}}}
    edited = Net(p=0.7)
    edited.seen.fill_(3.0)
    edited.last.requires_grad_(requires_grad=False)
    again, optimizer = attributes_of(edited, momentum=0.5)
    again.load_state_dict(state)
    assert (edited.drop.p, edited.temperature, float(edited.seen)) == (0.7, 0.5, 3.0)
    assert optimizer.defaults["momentum"] == 0.5
    assert not edited.last.weight.requires_grad


SCALE, SMOOTH = 2.0, 0.1  # settings of this file: the first is asked for by a model, the other by a loss


class Scaled(Net):
    def forward(self, x):
        return SCALE * super().forward(x)


def smooth_loss(x):
    return SMOOTH * x


def test_names_of_the_script_that_are_asked_for_later_are_known_from_then_on(monkeypatch):
    attributes, _ = attributes_of(Scaled())
    attributes.also({"loss_of": smooth_loss})
    state = stored(attributes)
    assert not any(state.values())  # so one that is edited stays edited
    attributes.load_state_dict(state)
    assert SMOOTH == 0.1  # and none is taken from the script
    monkeypatch.setitem(globals(), "SMOOTH", 0.3)
    assert stored(attributes)["plain"] == {f"names of {__name__}": {"SMOOTH": 0.3}}


def test_what_a_state_does_not_have_is_as_it_was_at_first():
    model = Net()
    attributes, optimizer = attributes_of(model)
    state = stored(attributes)
    model.eval()
    model.new, model.temperature, model.cache = 3, 9.0, torch.ones(1)
    model.seen = model.seen + 1
    model.first.requires_grad_(requires_grad=False)
    optimizer.defaults["lr"] = 7.0
    attributes.load_state_dict(state)
    assert all(each.training for each in model.modules())
    assert not hasattr(model, "new")
    assert hasattr(model, "cache")  # not plain: left alone
    assert (model.temperature, float(model.seen), optimizer.defaults["lr"]) == (1.0, 0.0, 0.1)
    assert model.first.weight.requires_grad


def test_what_was_deleted_is_not_there_and_what_is_made_again_is():
    model = Net()
    attributes, _ = attributes_of(model)
    first = stored(attributes)
    del model.temperature, model.counts
    state = stored(attributes)
    again = Net()
    resumed, _ = attributes_of(again)
    resumed.load_state_dict(state)
    assert not {"temperature", "counts"} & {*vars(again)}
    assert stored(resumed) == state
    resumed.load_state_dict(first)
    assert (again.temperature, again.counts) == (1.0, ())
    model.temperature, model.counts = 1.0, ()
    assert stored(attributes) == first


def test_of_an_object_that_is_another_by_now_nothing_is_deleted():
    """Only what has its name is told of, as before."""
    model = Net()
    model.plan = types.SimpleNamespace(warm=3, cold=4)
    attributes, _ = attributes_of(model)
    model.plan = types.SimpleNamespace(cold=5)
    again = Net()
    again.plan = types.SimpleNamespace(warm=3, cold=4)
    attributes_of(again)[0].load_state_dict(stored(attributes))
    assert vars(again.plan) == {"warm": 3, "cold": 5}


def test_values_come_back_as_what_they_were():
    model, values = Net(), (True, 1, -0.0, float("inf"), "word", None, np.float32(0.1), np.int64(3), np.bool_(1))
    attributes, _ = attributes_of(model)
    for number, value in enumerate(values):
        setattr(model, f"value{number}", value)
    model.listed, model.complex = [1], np.complex64(1)
    model.seeds = {"numpy": 3, "fact": 4}  # words that a state uses itself
    model._is_full_backward_hook = True  # a flag of torch's own, of hooks that do not come back
    state = stored(attributes)
    again = Net()
    attributes_of(again)[0].load_state_dict(state)
    found = [getattr(again, f"value{number}") for number in range(len(values))]
    assert [(type(each), repr(each)) for each in found] == [(type(each), repr(each)) for each in values]
    assert (again.listed, again.seeds) == ([1], {"numpy": 3, "fact": 4})
    assert not hasattr(again, "complex")
    assert again._is_full_backward_hook is None


def test_one_list_in_several_attributes_is_one_again():
    """Made while it trains, or there at first in one of them; what only looks alike is not."""
    model, other = Net(), Net()
    for each in (model, other):
        each.last.table = {"a": 1}
    attributes, others = Attributes(model, {}), Attributes(other, {})
    model.marks = model.first.marks = model.last.marks = [1]
    model.norm.marks = [1]
    model.table = model.first.table = model.last.table
    kept, state = other.last.table, attributes.state_dict()
    others.load_state_dict(HostCopy().take(state).state())
    assert other.marks == [1]
    assert other.marks is other.first.marks is other.last.marks
    assert other.norm.marks == [1]
    assert other.norm.marks is not other.marks
    assert other.table is other.first.table is other.last.table is kept
    model.first.marks = [1, 2]  # of another worker, which is not at the same step
    state["held"] = attributes.state_dict()["held"]
    others.load_state_dict(HostCopy().take(state).state())
    assert (other.marks, other.first.marks) == ([1], [1, 2])


def test_zero_and_its_negative_one_and_true_differ():
    model = Net()
    model.zero, model.one = 0.0, 1
    attributes, _ = attributes_of(model)
    model.zero, model.one = -0.0, True
    assert repr(stored(attributes)["plain"]["module "]) == "{'zero': -0.0, 'one': True}"


@pytest.mark.parametrize("size", [3, SMALL + 1])
def test_buffers_of_any_size_and_shape_come_back(size):
    def made():
        model = nn.Module()
        model.register_buffer("bank", torch.zeros(size), persistent=False)
        model.register_buffer("none", None, persistent=False)
        model.weight = nn.Parameter(torch.zeros(1))
        return model

    for change in (lambda bank: bank.add_(1.0), lambda bank: bank + 1.0, lambda _: torch.ones(2, 2)):
        model, again = made(), made()
        attributes, _ = attributes_of(model)
        assert not stored(attributes)["buffers"]
        model.bank = change(model.bank)
        there = attributes_of(again)[0]
        state = stored(attributes)
        there.load_state_dict(state)
        assert torch.equal(again.bank, model.bank)
        again.bank.add_(5.0)  # what came is its own
        assert torch.equal(state["buffers"][".bank"], model.bank)


def test_a_state_of_an_earlier_version_leaves_them_as_they_are():
    model = Net()
    with train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), global_batch=16, epochs=1) as s:
        for x, y in s:
            s.step(nn.functional.mse_loss(model(x), y))
            model.temperature = 0.5
            tree = s._state.tree(s._progress)
            assert tree.pop("attributes")["plain"]
            s._state.restore(tree, s._progress, same_dice=True)
            assert model.temperature == 0.5


def test_what_is_frozen_in_a_group_gets_hooks_and_no_update():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    gradients = Gradients(model.parameters())
    updates = Updates([optimizer], Options(global_batch=4))
    progress = Progress(samples=4, batch=4)

    def step():
        model(torch.ones(4, 2)).mean().backward()
        updates.apply(Turn("", optimizer, gradients), progress, 4, last=True)
        gradients.clear()

    gradients.attach()
    step()
    model[0].requires_grad_(requires_grad=False)
    gradients.detach()
    gradients.attach()  # as a worker that came, or a new group
    assert not model[0].weight.requires_grad
    was = flat(model)
    step()
    assert torch.equal(flat(model)[:4], was[:4])
    assert not torch.equal(flat(model)[4:], was[4:])
    model[0].requires_grad_(requires_grad=True)
    step()
    assert not torch.equal(flat(model)[:4], was[:4])
    model[0].requires_grad_(requires_grad=False)
    was = flat(model)
    step()
    assert torch.equal(flat(model)[:4], was[:4])
