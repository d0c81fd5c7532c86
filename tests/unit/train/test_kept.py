"""What a script remembers from one epoch to the next is part of the state."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.kept import Own  # noqa: E402
from tests.rigs.little_network import adam, data, loss_of, network  # noqa: E402

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
                s._writing.tick(1e9, s._members.group, asked=True, agreed=False)
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
        with pytest.raises(InvalidValue, match="too late"):
            s.keep(more=1)
        with pytest.raises(InvalidValue, match="'bset' is not allowed; it must be one of best"):
            kept.bset = 2
        for batch in s:
            s.step(loss_of(model, batch))
    assert repr(kept) == "Kept(best=1)"


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
    assert (kept.history, kept.by_name) == ([1], {"a": [1, 2]})
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
