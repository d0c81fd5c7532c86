"""Evaluations in which somebody is lost, at those who are left."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.train.following import Broken  # noqa: E402
from sublet.train.grid.session import GridSession  # noqa: E402
from sublet.wire.exits import EXIT_LOST  # noqa: E402

WIDTH = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.up(x))


def a_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, WIDTH), nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 1))


def data(count=16):
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator))


def loss_on(model):
    return lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1])


def judged(monkeypatch, breaks, settle, *, behind):
    """What two evaluations after the last step come to, of which the first breaks so often."""
    model, found, left = a_net(), [], [breaks]
    monkeypatch.setattr(GridSession, "_following", lambda *_: None)
    monkeypatch.setattr(GridSession, "_settle_in", lambda s, _: settle(s, model))

    def evaluate(s):
        judge = s._member.judge

        def broken(*each, **more):
            assert not model.training
            left[0] -= 1
            if left[0] >= 0:
                raise Broken("gone")
            return judge(*each, **more)

        s._member.judge = broken
        found.extend([s.evaluate(loss_on(model), data()), s.evaluate(loss_on(model), data(4))])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.session(model, optimizer, data(), global_batch=8, micro_batch=4, parts=train.Blocks("1")) as s:
        for batch in s.batches(epochs=1):
            s.step(loss_on(model), batch)
            if not behind:
                evaluate(s)
            break
        if behind:
            evaluate(s)
    return found


def joined(s, model):
    """Somebody has, and has gone over the step: it knows of no evaluation."""
    assert model.training
    s._member.closed = True


@pytest.mark.parametrize("behind", [False, True])
def test_an_evaluation_in_which_somebody_is_lost_is_made_again(monkeypatch, behind):
    """In the loop and behind it, however often, and so is the next: all are in it, or come to it."""
    whole = judged(monkeypatch, 0, joined, behind=behind)
    assert judged(monkeypatch, 2, joined, behind=behind) == whole
    assert len({*whole}) == 2


@pytest.mark.parametrize("steps", [0, 1])
def test_a_script_that_has_left_its_loop_when_all_go_back_ends_for_another_process_to_go_on(monkeypatch, capsys, steps):
    def back(s, _):
        s._member.closed = s._member.went_back = True
        s._progress.steps = steps

    with pytest.raises(SystemExit) as ended:
        judged(monkeypatch, 1, back, behind=True)
    assert ended.value.code == EXIT_LOST
    assert f"all went back to step {steps}" in capsys.readouterr().err
