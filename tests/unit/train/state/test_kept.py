"""What a script remembers from one epoch to the next is part of the state."""

from __future__ import annotations

import collections
import copy
import math
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import BadInput, InvalidValue  # noqa: E402
from sublet.train.state.kept import Own  # noqa: E402
from tests.rigs.last_state import LastState  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402

LOSSES = [5.0, 2.0, 4.0, 3.0, 1.0, 6.0]


class Left(Exception):
    """The process was killed."""


class Counter:
    """State of the script's own beside it."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def best_of(place, *, dies_after=None, extra=None):
    """The epochs at which the best was saved, by a process that may die after one."""
    model, saved = network(), []
    with train.session(
        model, adam(model), data(), global_batch=16, epochs=len(LOSSES), checkpoint_dir=place, extra_state=extra
    ) as s:
        kept = s.keep(best=math.inf, history=[], shape=torch.zeros(2))
        for epoch in s.epochs():
            for batch in s:
                s.step(loss_of(model, batch))
            kept.history.append(LOSSES[epoch])
            kept.shape += 1
            if extra is not None:
                extra.count += 1
            if LOSSES[epoch] < kept.best:
                kept.best = np.float64(LOSSES[epoch])
                saved.append(epoch)
            if epoch == dies_after:
                s._strategy.writing.tick(1e9, s._strategy.members.group, asked=True, agreed=False)
                raise Left
    return saved, kept


@pytest.mark.parametrize("extra", [None, Counter], ids=["alone", "beside a state"])
def test_a_worse_model_is_not_written_over_the_best_after_a_restart(tmp_path, extra):
    calm, kept = best_of(tmp_path / "calm")
    assert (calm, kept.best, kept.history) == ([0, 1, 4], 1.0, LOSSES)
    own = None if extra is None else extra()
    with pytest.raises(Left):
        best_of(tmp_path / "struck", dies_after=2, extra=own)
    own = None if extra is None else extra()
    saved, found = best_of(tmp_path / "struck", extra=own)
    assert (saved[-1], found.best, found.history[-1]) == (4, 1.0, 6.0)
    assert 3 not in saved  # 3.0 is worse than the 2.0 of before
    assert found.history == LOSSES
    assert found.shape.tolist() == [6.0, 6.0]
    assert own is None or own.count == len(LOSSES)


def test_what_is_kept_is_named_once_before_the_loop():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, epochs=1) as s:
        with pytest.raises(InvalidValue, match="nothing"):
            s.keep()
        kept = s.keep(best=1)
        with pytest.raises(InvalidValue, match="a second call"):
            s.keep(more=1)
        with pytest.raises(InvalidValue, match="'bset' is not allowed; it must be one of best"):
            kept.bset = 2
        for batch in s:
            s.step(loss_of(model, batch))
    assert repr(kept) == "Kept(best=1)"


@pytest.mark.parametrize("loop", ["epochs", "batches"])
def test_nothing_is_kept_that_comes_after_the_state(loop):
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, epochs=1) as s:
        for _ in s.epochs() if loop == "epochs" else s:
            with pytest.raises(InvalidValue, match=r"a call after the loop began.*before the loop"):
                s.keep(best=1)
            break
    ck = train.checkpointed(model=model)
    ck.resume()
    with pytest.raises(InvalidValue, match="a call after the loop began"):
        ck.keep(best=1)


def test_a_state_from_before_anything_was_kept_is_taken_over():
    counter, own = Counter(), Own(Counter())
    counter.count = 7
    kept = own.keep({"best": 3.0})
    own.load_state_dict(counter.state_dict())
    assert (own.extra.count, kept.best) == (7, 3.0)
    other = Own(Counter())
    other.load_state_dict(own.state_dict())  # and one of a script that keeps nothing any more
    assert other.extra.count == 7


def test_a_state_is_a_copy():
    own = Own()
    kept = own.keep({"history": [1], "by_name": {"a": (1, 2)}})
    state = own.state_dict()
    kept.history.append(2)
    own.load_state_dict(state)
    assert (kept.history, kept.by_name) == ([1], {"a": (1, 2)})
    kept.history.append(3)
    own.load_state_dict(state)
    assert kept.history == [1]


def test_a_loop_of_its_own_keeps_too(tmp_path):
    def start(until):
        model = network()
        ck = train.checkpointed(model=model, directory=tmp_path)
        kept = ck.keep(best=math.inf)
        begins = ck.resume()
        for step in range(begins, until):
            kept.best = min(kept.best, LOSSES[step])
            ck._noticed.set()
            ck.tick(step + 1)
        return begins, kept.best

    for _ in range(2):
        with pytest.raises(SystemExit):
            start(6)
    assert start(2) == (2, 2.0)


# ------------------------------------------------------------------------- what is set aside, averaged, remembered


class Remembers:
    """A script that keeps one of each; all that it comes to."""

    def __init__(self, dies=None):
        self.model, torch_seed = network(), 7
        self.rng = torch.Generator().manual_seed(torch_seed)
        self.target, self.average = copy.deepcopy(self.model), AveragedModel(self.model)
        self.by_hand = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.last, self.sums = [], np.zeros(2)
        self.noise = np.random.default_rng(5)
        with train.session(self.model, adam(self.model), data(), global_batch=16, epochs=3) as s:
            self.kept = s.keep(
                target=self.target,
                average=self.average,
                by_hand=self.by_hand,
                best=self.model.state_dict(),
                best_loss=math.inf,
                last=self.last,
                table={0: 0.0, 1: 0.0},
                noise=self.noise,
                pair=(0, torch.zeros(2)),
                sums=self.sums,
                rng=self.rng,
            )
            for epoch in s.epochs():
                for batch in s:
                    if s.steps == dies:
                        raise Left
                    self.turn(batch, s)
                self.target.load_state_dict(self.model.state_dict())
                self.last.append((epoch, torch.tensor(self.noise.random())))

    def turn(self, batch, s):
        noise = torch.randn(batch[1].shape, generator=self.rng)
        loss = loss_of(self.model, [batch[0], batch[1] + 0.1 * noise + 0.1 * self.target(batch[0]).detach()])
        s.step(loss)
        self.average.update_parameters(self.model)
        with torch.no_grad():
            for mean, parameter in zip(self.by_hand, self.model.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
        value = float(loss.detach())
        if value < self.kept.best_loss:
            self.kept.best_loss, self.kept.best = value, self.model.state_dict()
        self.last.append((s.steps, loss.detach()))
        self.kept.table[s.steps % 2] += value
        self.kept.pair = (s.steps, self.kept.pair[1] + loss.detach())
        self.sums += value

    def found(self):
        kept = self.kept
        tensors = [flat(self.model), flat(self.target), flat(self.average), *self.by_hand, *kept.best.values()]
        tensors += [loss for _, loss in self.last] + [kept.pair[1], self.rng.get_state(), torch.from_numpy(self.sums)]
        plain = [
            kept.best_loss,
            [step for step, _ in self.last],
            kept.pair[0],
            kept.table,
            int(self.average.n_averaged),
        ]
        return tensors, [*plain, kept.table, type(kept.pair), type(self.last[0])]


def test_whatever_is_kept_is_right_after_a_restart_at_any_step(monkeypatch):
    last = LastState(monkeypatch)
    tensors, plain = Remembers().found()
    assert not torch.equal(tensors[0], tensors[2])  # an average is no copy
    for dies in range(12):
        last.forget()
        with pytest.raises(Left):
            Remembers(dies)
        again, plain_again = Remembers().found()
        assert plain_again == plain, dies
        assert all(torch.equal(a, b) for a, b in zip(again, tensors, strict=True)), dies


def test_what_is_assigned_is_copied_and_what_keep_was_given_is_the_scripts_own():
    model, own = nn.Linear(2, 2), None
    own = Own(None, [model])
    mine, history = torch.zeros(2), [1]
    kept = own.keep({"weights": model.state_dict(), "mine": mine, "history": history, "best": None})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept.best = [model.weight, history]
    with torch.no_grad():
        model.weight.add_(1.0)
    history.append(2)
    kept.mine += 1
    assert torch.equal(kept.weights["weight"], before["weight"])  # what lies in the memory of the model is copied
    assert torch.equal(kept.best[0], before["weight"])
    assert not kept.best[0].requires_grad
    assert (kept.best[1], kept.history, kept.mine is mine, mine.tolist()) == ([1], [1, 2], True, [1.0, 1.0])
    state = own.state_dict()
    mine.add_(5.0)
    history.clear()
    kept.weights["weight"].zero_()
    own.load_state_dict(state)
    assert (kept.mine is mine, mine.tolist(), kept.history is history, history) == (True, [1.0, 1.0], True, [1, 2])
    assert torch.equal(kept.weights["weight"], before["weight"])


def test_the_state_of_a_tensor_is_a_copy_too():
    own = Own()
    kept = own.keep({"mean": torch.zeros(2), "by_name": {"w": torch.zeros(2)}})
    state = own.state_dict()
    kept.mean += 1
    kept.by_name["w"] += 1
    own.load_state_dict(state)
    assert (kept.mean.tolist(), kept.by_name["w"].tolist()) == ([0.0, 0.0], [0.0, 0.0])


def test_an_object_with_a_state_takes_over_that_of_another():
    model = nn.Linear(2, 2)
    target = copy.deepcopy(model)
    kept = Own(None, [model]).keep({"target": target})
    with torch.no_grad():
        model.weight.add_(1.0)
    kept.target = model
    assert kept.target is target
    with torch.no_grad():
        model.weight.add_(1.0)
    assert torch.equal(target.weight + 1.0, model.weight)
    with pytest.raises(InvalidValue, match=r"kept\.target = 'a OrderedDict'.*a Linear, whose state it then has"):
        kept.target = model.state_dict()
    with pytest.raises(InvalidValue, match=r"kept\.target = 'a Alike'.*a Linear, whose state it then has"):
        kept.target = Alike(*model.weight.shape[::-1])  # its state would fit: what it does would be lost


class Alike(nn.Linear):
    """Another kind with the same state."""


class Plain:
    """Nothing that could be saved."""


class OddState(Plain):
    def state_dict(self):
        return {"odd": Plain()}

    def load_state_dict(self, state):
        pass


class Row(NamedTuple):
    a: int
    b: int


REFUSED = {
    "an object": (Plain(), r"kept\.value = 'a .*Plain'.*state_dict\(\)"),
    "in a list": ([1, [Plain()]], r"kept\.value\[1\]\[0\]"),
    "in a dict": ({"x": {2: Plain()}}, r"kept\.value\['x'\]\[2\]"),
    "with a state, in a list": ([nn.Linear(1, 1)], r"by a name of its own"),
    "a class": (nn.Linear, "state_dict"),
    "a named tuple": (Row(1, 2), "Row"),
    "another container": (collections.Counter("ab"), "Counter.*a list, tuple or dict"),
    "a key of its own": ({(1, 2): 3}, "a .*dict"),
    "an array of text": (np.array(["a"]), "of numbers"),
    "a state that is none": (OddState(), r"make it one of these in your state_dict"),
    "bytes": (b"x", "a number, text"),
}


@pytest.mark.parametrize(("value", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_kept_is_refused_where_it_is_said(value, why):
    with pytest.raises(InvalidValue, match=why):
        Own().keep({"value": value})
    kept = Own().keep({"value": None})
    with pytest.raises(InvalidValue):
        kept.value = value


def test_what_has_no_end_and_what_is_trained_are_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(InvalidValue, match="does it contain itself"):
        Own().keep({"value": endless})
    model = nn.Linear(1, 1)
    for same in (model, nn.Sequential(model)):
        with pytest.raises(InvalidValue, match=r"copy\.deepcopy\(model\)"):
            Own(None, [model]).keep({"value": same})


def test_what_was_something_else_when_it_was_saved_is_refused():
    plain, other = Own(), Own()
    plain.keep({"mean": 3.0})
    other.keep({"mean": nn.Linear(1, 1)})
    for saved, taker in ((plain, other), (other, plain)):
        with pytest.raises(BadInput, match="object with a state"):
            taker.load_kept(saved.state_of_kept())
