"""What a script draws in its loop is the same at all workers, whatever atoms each of them had in the step before."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402

SAMPLES, BATCH = 16, 8


class Ends(Exception):
    """As if the process were killed, after a step of which there is a checkpoint."""


def drawn():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def draws_of(micro_batch, judged=2, directory=None, ends=None, before=0):
    """What the lines of a loop draw, by place and step; a factor of the loss is of it."""
    torch.manual_seed(3)
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 1)), {}
    data = TensorDataset(torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = {"global_batch": BATCH, "micro_batch": micro_batch, "parts": train.Blocks("1"), "checkpoint_dir": directory}
    random.seed(before)
    with train.session(model, optimizer, data, **facts) as s:
        s._saver.is_due = lambda *_, **__: s.steps + 1 == ends
        for batch in s.batches(epochs=3):
            if ends and s.steps == ends:
                s._vault.until_written()
                s._vault.say(s._mesh, 0)
                s._vault.hear(s._mesh, [0], [0.0, 1.0, 0.0])
                s._vault.saver.settle()
                raise Ends
            seen["before", s.steps] = factor, *_ = drawn()
            loss_of = lambda each, factor=factor: factor * nn.functional.mse_loss(model(each[0]), each[1])  # noqa: E731
            s.step(loss_of, batch)
            seen["after", s.steps] = drawn()
            for number in range(judged):
                s.evaluate(loss_of, data)
                seen[f"judged {number}", s.steps] = drawn()
            seen["loss", s.steps] = s.loss
    return seen


def draws_alone(seen):
    return {at: draws for at, draws in seen.items() if at[0] != "loss"}


def test_draws_in_a_loop_follow_from_the_step_and_not_from_the_last_atom_nor_from_what_was_before():
    """Of a step, and of an evaluation: a worker of another copy has other atoms, and one that joins began later."""
    one = draws_alone(draws_of(8))
    assert draws_alone(draws_of(2)) == draws_alone(draws_of(4, before=5)) == one
    numbers = [number for draws in one.values() for number in draws]
    assert len(set(numbers)) == len(numbers) == 3 * 4 * 6


def test_draws_after_a_step_do_not_follow_from_how_often_was_drawn_before_it():
    """The first worker alone may draw what it shows."""
    few, many = draws_of(4, judged=0), draws_of(4, judged=2)
    assert few.items() <= many.items()


def test_draws_in_a_loop_go_on_after_a_restart(tmp_path):
    with pytest.raises(Ends):
        draws_of(4, directory=tmp_path / "cut", ends=3)
    again, whole = draws_of(4, directory=tmp_path / "cut", before=7), draws_of(4)
    assert {at: each for at, each in again.items() if at[1] >= 3} == {
        at: each for at, each in whole.items() if at[1] >= 3
    }
