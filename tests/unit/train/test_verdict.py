"""What has ended a training is said again by every later call: a script that swallows it has no result."""

from __future__ import annotations

import signal

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.checkpoint.checkpoints import newest  # noqa: E402
from sublet.train.verdict import Verdict  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, loss_of, network  # noqa: E402


class Broken(Dataset):
    """A sample of which cannot be read."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if index == 40:
            raise OSError("this one is unreadable")
        return torch.zeros(FEATURES), torch.zeros(1)


def clipped(model, batch, s):
    s.step(loss_of(model, batch))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def of_no_number(model, batch, s):
    s.step(model(batch[0]))


def without_graph(model, batch, s):
    s.step(loss_of(model, batch).detach())


def by_a_name(model, batch, s):
    s.step(loss_of(model, batch), "D")


REFUSED = {
    clipped: (InvalidValue, "edited between two steps"),
    of_no_number: (InvalidValue, "loss"),
    without_graph: (RuntimeError, "does not require grad"),
    by_a_name: (InvalidValue, "the session has one optimizer"),
}


@pytest.mark.parametrize("turn", REFUSED, ids=[turn.__name__ for turn in REFUSED])
def test_a_refusal_that_is_swallowed_is_said_again_by_the_loop(turn, tmp_path):
    (kind, why), model, swallowed = REFUSED[turn], network(), []
    with (  # noqa: PT012 - the loop is what is looked at
        pytest.raises(kind, match=why) as said,
        train.session(model, adam(model), data(), global_batch=16, epochs=2, checkpoint_dir=tmp_path) as s,
    ):
        for batch in s:
            try:
                turn(model, batch, s)
            except Exception as error:  # noqa: BLE001 - as scripts do
                swallowed.append(error)
    assert swallowed == [said.value]
    assert newest(tmp_path) is None


def test_every_later_call_says_it_again(tmp_path):
    model = network()
    with (  # noqa: PT012 - as above
        pytest.raises(RuntimeError, match="does not require grad") as said,
        train.session(model, adam(model), data(), global_batch=16, epochs=2, checkpoint_dir=tmp_path) as s,
    ):
        epochs = s.epochs()
        next(epochs)
        batches = iter(s)
        batch = next(batches)
        calls = [
            lambda: without_graph(model, batch, s),
            lambda: s.step(loss_of(model, batch)),
            lambda: next(batches),
            lambda: next(iter(s)),
            lambda: s.evaluate(lambda each: loss_of(model, each), data()),
            lambda: s.told_by_rank_0([1.0]),
            lambda: next(epochs),
        ]
        found = []
        for call in calls:
            with pytest.raises(RuntimeError) as again:
                call()
            found.append(again.value)
        assert len(set(map(id, found))) == 1
    assert said.value is found[0]
    assert newest(tmp_path) is None  # nothing is finished


def test_a_loop_that_fails_in_our_hands_is_no_early_stop(tmp_path):
    model, loop = network(), []
    with (  # noqa: PT012 - as above
        pytest.raises(OSError, match="unreadable"),
        train.session(model, adam(model), Broken(), global_batch=16, epochs=2, checkpoint_dir=tmp_path) as s,
    ):
        try:
            for batch in s:
                s.step(loss_of(model, batch))
        except OSError as error:
            loop.append(error)
    assert len(loop) == 1
    assert newest(tmp_path) is None


def test_an_error_of_the_scripts_own_is_its_own_business(tmp_path):
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, epochs=1, checkpoint_dir=tmp_path) as s:
        for batch in s:
            try:
                s.step({}["loss"])
            except KeyError:
                s.step(loss_of(model, batch))
        with pytest.raises(InvalidValue, match="called once, for the whole training"):  # nothing was begun by that
            next(iter(s))
    assert newest(tmp_path).step == 4


def test_the_first_counts():
    verdict = Verdict()
    verdict.check()
    assert not verdict.is_said
    for error in (ValueError("first"), ValueError("second")):
        with pytest.raises(ValueError, match="first"), verdict:
            raise error
    interrupted = Verdict()
    with pytest.raises(KeyboardInterrupt), interrupted:
        raise KeyboardInterrupt  # a key that was pressed is the user's
    interrupted.check()


def test_a_loop_of_its_own_that_was_told_to_go_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's handler stays
    model = network()
    ck = train.checkpointed(model=model, directory=tmp_path)
    ck.resume()
    ck._noticed.set()
    for step in (3, 4):
        with pytest.raises(SystemExit) as left:
            ck.tick(step)
        assert left.value.code == train.EXIT_LEFT
    assert newest(tmp_path).step == 3  # what came after the order is of nobody
