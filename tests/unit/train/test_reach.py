"""What datasets, hooks, functions and modules remember is a part of the state, or is refused: to the bit."""

from __future__ import annotations

import enum
import functools
import itertools
import random
import threading
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR, SequentialLR  # noqa: E402
from torch.utils.data import DataLoader, Dataset, Subset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.attributes import Attributes  # noqa: E402
from sublet.train.checkpoint.snapshot import HostCopy  # noqa: E402
from sublet.train.reach import places_of  # noqa: E402
from sublet.train.remembered import LONG, LONGEST, SMALL, kind_of  # noqa: E402
from tests.rigs.last_state import LastState  # noqa: E402
from tests.rigs.little_network import FEATURES, data, flat  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

STEPS, EPOCHS = 4, 3  # an epoch of 50 samples in steps of 16
SEEN = {"n": 0}
COUNT = 0
TRACE: list[int] = []


class Cut(Exception):
    """The process was killed."""


class Samples(Dataset):
    """It counts what it gave, in whatever it was told to."""

    made = 0

    def __init__(self, by):
        self.inner, self.by = data(), by
        self.calls, self.given, self.bank = 0, [], torch.zeros(())
        self.numpy, self.python = np.random.default_rng(3), random.Random(3)
        self.legacy, self.torch = np.random.RandomState(3), torch.Generator().manual_seed(3)
        self.opened, self.file = False, None

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        global COUNT  # noqa: PLW0603 - as people do
        x, y = self.inner[index]
        match self.by:
            case "calls":
                self.calls += 1
                x = x * (1 + self.calls / 100)
            case "given":
                self.given.append(index)
                x = x * (1 + len(self.given) / 100)
            case "bank":
                self.bank = self.bank + 0.01
                x = x * (1 + self.bank)
            case "dice":
                draws = self.numpy.random(), self.python.random(), self.legacy.rand()
                x = x * (1 + sum(draws)) + torch.rand((), generator=self.torch)
            case "class":
                type(self).made += 1
                x = x * (1 + type(self).made / 100)
            case "name":
                COUNT += 1
                x = x * (1 + COUNT / 100)
            case "opened":
                if not self.opened:
                    self.file, self.opened = threading.Lock(), True  # in place of a file: no state holds it
                with self.file:
                    x = x * 2
        return x, y


class Net(nn.Module):
    """With a cache, and with a buffer, that it makes at its first call."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.length, self.cache = nn.Linear(FEATURES, 8), nn.Linear(8, 1), 0, None
        self.drop, self.history, self.recent = nn.Dropout(0.2), [], None

    def forward(self, x):
        if self.length != len(x):
            self.length, self.cache = len(x), torch.linspace(0.5, 1.5, len(x)).unsqueeze(1)
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.linspace(0.9, 1.1, 8))
        self.recent = torch.tanh(self.first(x)) * self.mask
        self.history.append(float(x.mean()))
        return self.last(self.drop(self.recent)) * self.cache * (1.0 + len(self.history) / 100)


def hook_with_a_list(calls):
    def hook(module, given, out):
        calls.append(1)
        return out * min(1.0, len(calls) / 8)

    return hook


def counted(function):
    """A number in a closure, one in an attribute, and one in what it is by default."""
    n = 0

    def rate(epoch, calls=[]):  # noqa: B006 - as people do
        nonlocal n
        n += 1
        rate.t += 1
        calls.append(epoch)
        return function(n, rate.t, len(calls))

    rate.t = 0
    return rate


class Rate:
    """A function with a number of its own."""

    def __init__(self):
        self.n = 0

    def __call__(self, epoch):
        self.n += 1
        return 0.9**self.n


def collate(items, factor=1.0):
    SEEN["n"] += 1
    x, y = map(torch.stack, zip(*items, strict=True))
    return x * (1 + factor * SEEN["n"] / 50), y


def nothing(*_):
    """All is as ever."""


def by_hook(model, _):
    model.first.register_forward_hook(hook_with_a_list([]))


def by_weight(model, _):
    calls = []

    def shrinks(gradient):
        calls.append(1)
        return gradient * 0.95 ** len(calls)

    def lets_go(weight):
        lets_go.n = getattr(lets_go, "n", 0) + 1
        weight.grad.mul_(0.9**lets_go.n)

    model.first.weight.register_hook(shrinks)
    model.last.weight.register_post_accumulate_grad_hook(lets_go)


def by_rate(_, optimizer):
    return LambdaLR(optimizer, counted(lambda *numbers: 0.98 ** sum(numbers)))


def by_object(_, optimizer):
    first, second = LambdaLR(optimizer, Rate()), LambdaLR(optimizer, counted(lambda *numbers: 0.99 ** sum(numbers)))
    return SequentialLR(optimizer, [first, second], milestones=[1])


IDIOMS = {
    **{by: (by, None, nothing) for by in ("calls", "given", "bank", "dice", "class", "name", "opened")},
    "collate": ("", collate, nothing),
    "partial": ("", functools.partial(collate, factor=2.0), nothing),
    "hook": ("", None, by_hook),
    "weight": ("", None, by_weight),
    "rate": ("", None, by_rate),
    "object": ("", None, by_object),
}


def trained(by, gathers, sets_up, dies=None):
    """The weights; a process that dies does so before this step."""
    global COUNT
    torch.manual_seed(2)
    COUNT, SEEN["n"], Samples.made = 0, 0, 0
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = sets_up(model, optimizer)
    loader = DataLoader(Subset(Samples(by), range(50)), batch_size=16, collate_fn=gathers)
    with train.session(model, optimizer, loader, epochs=EPOCHS) as s:
        for _ in s.epochs():
            for x, y in s:
                if s.steps == dies:
                    raise Cut
                s.step(nn.functional.mse_loss(model(x), y))
            if scheduler is not None:
                scheduler.step()
    return flat(model)


@pytest.mark.parametrize("name", IDIOMS if FULL else ["dice", "hook", "object", "opened", "partial", "weight"])
def test_a_start_that_goes_on_comes_to_the_same_bits(name, monkeypatch):
    last, idiom = LastState(monkeypatch), IDIOMS[name]
    expected = trained(*idiom)
    for dies in range(STEPS * EPOCHS) if FULL else (2 * STEPS + 1,):
        last.forget()
        with pytest.raises(Cut):
            trained(*idiom, dies)
        assert torch.equal(trained(*idiom), expected), dies


@pytest.mark.parametrize("by", ["calls", "given", "bank", "class", "name"])
def test_what_a_dataset_counts_comes_back(by):
    global COUNT  # noqa: PLW0603 - as above
    was, model = Samples(by), nn.Linear(1, 1)
    attributes = Attributes(model, {}, {"dataset": Subset(was, range(50))})
    expected = [was[index][0] for index in (1, 1, 1)][2]
    state = HostCopy().take(attributes.state_dict()).state()
    counts, COUNT, Samples.made = (COUNT, Samples.made), 0, 0
    again = Samples(by)
    Attributes(model, {}, {"dataset": Subset(again, range(50))}).load_state_dict(state)
    assert (COUNT, Samples.made, again.calls, again.given) == (*counts, was.calls, was.given)
    assert not torch.equal(again[1][0], expected)
    COUNT = Samples.made = 0


def changed(change):
    """A training of which a line is run after the first epoch."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dataset = Samples("")
    dataset.transform = torch.tanh
    with train.session(model, optimizer, dataset, global_batch=16, epochs=2) as s:
        for _ in s.epochs():
            for x, y in s:
                s.step(nn.functional.mse_loss(model(x), y))
            change(model, optimizer, dataset)


REFUSED = {
    r"model\.last\.weight .*reset_parameters": lambda m, *_: setattr(m, "last", nn.Linear(8, 1)),
    r"model\.drop .* a Dropout was": lambda m, *_: setattr(m, "drop", nn.Identity()),
    r"model\.drop .*gone": lambda m, *_: setattr(m, "drop", None),
    r"model\.extra\.weight": lambda m, *_: m.add_module("extra", nn.Linear(1, 1)),
    "1 groups|2 groups": lambda m, o, _: o.add_param_group({"params": [torch.zeros(1, requires_grad=True)]}),
    r"hooks of model\.first": lambda m, *_: by_hook(m, None),
    r"transform .*sin.* in the place of .*tanh": lambda m, o, d: setattr(d, "transform", torch.sin),
    r"forward": lambda m, *_: setattr(m, "forward", m.last.forward),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_was_replaced_is_refused_by_its_name(said):
    with pytest.raises(InvalidValue, match=said):
        changed(REFUSED[said])


FINE = {
    "dropout": lambda m, *_: setattr(m, "drop", nn.Dropout(0.1)),
    "weights": lambda m, *_: m.last.reset_parameters(),
    "parameterless": lambda m, *_: setattr(m, "act", nn.Softmax(0)),
    "removed hook": lambda m, *_: m.register_forward_hook(nothing).remove(),
    "same code": lambda m, o, d: setattr(d, "transform", torch.tanh),
}


@pytest.mark.parametrize("name", FINE)
def test_what_does_no_harm_is_not_refused(name):
    changed(FINE[name])


def test_a_module_of_the_same_kind_keeps_its_values():
    model = Net()
    attributes = Attributes(model, {})
    model.drop = nn.Dropout(0.7)
    state = HostCopy().take(attributes.state_dict()).state()
    again = Net()
    Attributes(again, {}).load_state_dict(state)
    assert again.drop.p == 0.7


def test_a_buffer_that_a_model_made_for_itself_is_there_again():
    model, again = Net(), Net()
    attributes, there = Attributes(model, {}), Attributes(again, {})
    model(torch.zeros(2, FEATURES))
    state = HostCopy().take({"model": model.state_dict(), "attributes": attributes.state_dict()}).state()
    there.prepare(state["attributes"])
    again.load_state_dict(state["model"])
    there.load_state_dict(state["attributes"])
    assert torch.equal(again.mask, model.mask)
    assert torch.equal(again.cache, model.cache)
    assert again.length == 2


def test_what_is_too_long_is_said_once_and_left_alone(capsys):
    model = nn.Linear(1, 1)
    model.seen = list(range(LONGEST + 1))
    attributes = Attributes(model, {})
    model.seen.append(0)
    for _ in range(2):
        state = attributes.state_dict()
    assert not state["held"]
    assert capsys.readouterr().err.count("module.seen changes while it trains") == 1
    attributes.load_state_dict(state)
    assert len(model.seen) == LONGEST + 2


def test_large_tensors_in_a_tuple_are_looked_at_one_by_one():
    x, y = torch.zeros(SMALL + 1), torch.zeros(4)
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, SMALL), y)
    attributes = Attributes(nn.Linear(1, 1), {}, {"dataset": dataset})
    y[2] = 1.0
    state = HostCopy().take(attributes.state_dict()).state()
    assert [*state["held"]] == ["dataset.tensors"]
    y.zero_()
    attributes.load_state_dict(state)
    assert y[2] == 1.0
    assert kind_of(x.numpy()) == LONG


def test_what_was_another_object_is_not_written_into_the_one_that_is_there():
    """`x` may be all samples when the session begins, and a batch when a state is taken."""
    model, samples, seen = nn.Linear(1, 1), torch.arange(4.0), [1]
    model.x, model.seen = samples, seen
    attributes = Attributes(model, {})
    model.x, model.seen = torch.ones(4), [1, 2]
    state = HostCopy().take(attributes.state_dict()).state()
    again = nn.Linear(1, 1)
    again.x, again.seen = samples, seen
    there = Attributes(again, {})
    there.load_state_dict(state)
    assert (again.x.tolist(), again.seen) == ([1.0] * 4, [1, 2])
    assert (samples.tolist(), seen) == ([0.0, 1.0, 2.0, 3.0], [1])
    there.load_state_dict({**state, "held": {}})
    assert again.x is samples
    assert again.seen is seen
    assert (samples.tolist(), seen) == ([0.0, 1.0, 2.0, 3.0], [1])


@pytest.mark.parametrize("bound", [True, False], ids=["another list", "the same list"])
def test_a_list_of_the_file_that_was_longer_where_it_was_saved_is_that_long_again(bound):
    global TRACE  # noqa: PLW0603 - as people do
    model = nn.Linear(4, 1)
    model.register_forward_hook(lambda module, given, out: out * (1 + len(TRACE)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    TRACE = []
    kept = Attributes(model, {"": optimizer})
    if bound:
        TRACE = [1, 2]
    else:
        TRACE.extend([1, 2])
    state = HostCopy().take(kept.state_dict()).state()
    TRACE = []
    Attributes(model, {"": optimizer}).load_state_dict(state)
    assert TRACE == [1, 2]


def test_dice_that_are_made_later_are_said_once(capsys):
    model = nn.Linear(1, 1)
    model.dice = None
    attributes = Attributes(model, {})
    model.dice = np.random.default_rng(1)
    for _ in range(2):
        assert not attributes.state_dict()["held"]
    assert capsys.readouterr().err.count("module.dice is made while it trains") == 1


class Stage(enum.Enum):
    """Of a training."""

    EARLY = 1
    LATE = 2


class Pair(NamedTuple):
    """Two numbers."""

    a: float
    b: float


class Slotted:
    """It has no other attributes."""

    __slots__ = ("n", "unset")

    def __init__(self):
        self.n = 0


class Empty(Dataset):
    """A setting that only its class has, at first."""

    scale = 1.0

    def __init__(self):
        self.aside = Slotted()

    def __getitem__(self, index):
        return Stage, Pair, index * self.scale


def test_words_slots_and_what_is_set_on_an_object_later_come_back():
    def made():
        model, dataset = nn.Linear(1, 1), Empty()
        model.stage, model.pair, model.kind, model.plain = Stage.EARLY, Pair(1.0, 2.0), torch.float32, nn.Identity()
        del dataset.__dict__["aside"]
        dataset.held = [Slotted(), nn.ReLU()]
        return model, dataset, Attributes(model, {}, {"dataset": dataset, "again": Empty()})

    model, dataset, attributes = made()
    model.stage, model.pair, model.kind, model.plain.more = Stage.LATE, Pair(3.0, 4.0), torch.bfloat16, 7
    dataset.scale, dataset.held[0].n = 0.5, 5
    state = HostCopy().take(attributes.state_dict()).state()
    model, dataset, again = made()
    again.load_state_dict(state)
    assert (model.stage, model.pair, model.kind, model.plain.more) == (Stage.LATE, Pair(3.0, 4.0), torch.bfloat16, 7)
    assert type(model.pair) is Pair
    assert (dataset.scale, Empty.scale, dataset.held[0].n) == (0.5, 1.0, 5)
    again.load_state_dict(made()[2].state_dict())
    assert (model.stage, model.pair, model.kind, dataset.held[0].n) == (Stage.EARLY, Pair(1.0, 2.0), torch.float32, 0)


def test_an_iterator_is_named_when_the_session_begins(capsys):
    model = nn.Linear(1, 1)
    model.turns = itertools.count()
    Attributes(model, {})
    assert "module.turns is an iterator" in capsys.readouterr().err


def test_parts_of_a_model_in_lists_are_not_kept_twice():
    model = nn.LSTM(2, 2)
    model.weights = [model.weight_ih_l0.data]
    attributes = Attributes(model, {})
    with torch.no_grad():
        model.weight_ih_l0.zero_()
    assert not attributes.state_dict()["held"]


def test_libraries_are_not_looked_into():
    names = [place.name for place in places_of([("dataset", pytest), ("json", __import__("json").JSONDecoder())])]
    assert not names
