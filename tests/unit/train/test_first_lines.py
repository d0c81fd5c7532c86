"""Lines of an epoch before its batches run again in a start that goes on amid it, and count once: to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.train.state import Progress  # noqa: E402
from tests.rigs.last_state import LastState  # noqa: E402
from tests.rigs.little_network import data, flat, loss_of, network  # noqa: E402

STEPS, EPOCHS = 4, 3  # an epoch of 50 samples in steps of 16


class Cut(Exception):
    """The process was killed."""


@pytest.fixture
def last(monkeypatch):
    return LastState(monkeypatch)


def by_rate(_, optimizer, __, ___):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def by_kept(_, __, kept, ___):
    kept.tau *= 0.7


def by_seed(_, __, ___, epoch):
    torch.manual_seed(epoch)
    random.seed(epoch)
    np.random.seed(epoch)  # noqa: NPY002 - the global one, which scripts seed


def by_draws(*_):
    torch.rand(3), random.random(), np.random.random()  # noqa: NPY002 - as above


def by_weights(model, *_):
    with torch.no_grad():
        model[0].weight.mul_(0.9)


def by_moments(_, optimizer, __, ___):
    optimizer.state.clear()


def by_evaluating(model, _, kept, __):
    with torch.no_grad():
        kept.tau = float(loss_of(model, data().tensors))


LINES = {line.__name__: line for line in (by_rate, by_kept, by_seed, by_draws, by_weights, by_moments, by_evaluating)}


def trained(lines, dies=None):
    """The weights; a process that dies does so where it is said, at the step that is said."""
    model = network()
    by_seed(None, None, None, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rates = optimizer.param_groups[0]  # a script may hold it from before the loop
    with train.session(model, optimizer, data(), global_batch=16, epochs=EPOCHS) as s:
        kept = s.keep(tau=1.0)
        for epoch in s.epochs():
            for line in lines:
                line(model, optimizer, kept, epoch)
            if dies == ("lines", s.steps):
                raise Cut
            for batch in s:
                if dies == ("batches", s.steps):
                    raise Cut
                noise = 1.0 + 0.1 * (random.random() + float(np.random.random()))  # noqa: NPY002 - as above
                rates["lr"] *= 0.99
                s.step(noise * kept.tau * loss_of(model, batch))
            if dies == ("after", s.steps):
                raise Cut
    return flat(model)


PLACES = [
    place
    for first in range(0, STEPS * EPOCHS, STEPS)
    for place in (("lines", first), *(("batches", first + at) for at in range(STEPS)), ("after", first + STEPS))
]


AT_ITS_EDGES = [("lines", STEPS), ("batches", STEPS), ("batches", STEPS + 1)]


@pytest.mark.parametrize(
    ("lines", "places"),
    [*(([line], AT_ITS_EDGES) for line in LINES.values()), (LINES.values(), PLACES)],
    ids=[*LINES, "all, anywhere"],
)
def test_a_start_that_goes_on_amid_an_epoch_comes_to_the_same_bits(lines, places, last):
    expected = trained(lines)
    for dies in places:
        last.forget()
        with pytest.raises(Cut):
            trained(lines, dies)
        assert torch.equal(trained(lines), expected), dies


def test_starts_that_are_all_killed_come_to_the_same_bits(last):
    lines = list(LINES.values())
    expected = trained(lines)
    last.forget()
    for dies in PLACES:
        with pytest.raises(Cut):
            trained(lines, dies)
    assert torch.equal(trained(lines), expected)


def test_nothing_is_put_back_where_the_lines_run_for_the_first_time():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.session(model, optimizer, data(), global_batch=16, epochs=2) as s:
        for epoch in s.epochs():
            assert s._first_lines.run_first
            assert not s._first_lines.run_again
            optimizer.param_groups[0]["lr"] = 0.2 + epoch
            for batch in s:
                assert optimizer.param_groups[0]["lr"] == 0.2 + epoch
                s.step(loss_of(model, batch))


def test_a_state_of_an_earlier_version_says_by_its_place_whether_they_ran():
    model = network()
    with train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), global_batch=16, epochs=2) as s:
        s._progress.begun = True
        tree = s._state.tree(s._progress)
        assert tree["progress"].pop("begun")
        s._state.restore(tree, s._progress, same_dice=True)
        assert not s._progress.begun
        s._first_lines.begin()
        assert not s._first_lines.run_again
        tree["progress"]["offset"] = 16
        s._state.restore(tree, s._progress, same_dice=True)
        s._first_lines.begin()
        assert s._first_lines.run_again


def test_an_epoch_that_is_over_has_not_begun():
    progress = Progress(samples=32, batch=16, begun=True)
    progress.advance()
    assert progress.begun
    progress.advance()
    assert (progress.epoch, progress.begun) == (1, False)


def test_groups_that_a_script_holds_are_those_of_the_optimizer_after_a_state_has_come():
    model = nn.Linear(2, 1)
    several = {"a": torch.optim.SGD([model.weight], lr=0.1), "b": torch.optim.Adam([model.bias], lr=0.2)}
    held = [optimizer.param_groups for optimizer in several.values()]
    one = [groups[0] for groups in held]
    with train.session({"m": model}, several, data(16), global_batch=16, epochs=1) as s:
        tree = s._state.tree(s._progress)
        tree["optimizer"]["a"]["param_groups"][0]["lr"] = 0.7
        s._state.restore(tree, s._progress, same_dice=True)
    assert all(optimizer.param_groups is groups for optimizer, groups in zip(several.values(), held, strict=True))
    assert all(groups[0] is group for groups, group in zip(held, one, strict=True))
    assert [group["lr"] for group in one] == [0.7, 0.2]
