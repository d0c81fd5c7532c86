"""Evaluations in which somebody is lost, at those who are left."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.following import Broken  # noqa: E402
from sublet.train.grid.session import GridSession  # noqa: E402
from sublet.train.grid.whereabouts import evaluation  # noqa: E402
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


def judged(monkeypatch, breaks, settle, *, where, look=lambda _: None):
    """What two evaluations after a step come to, of which the first breaks so often: in the loop, or behind it."""
    model, found, left = a_net(), [], [breaks]
    monkeypatch.setattr(GridSession, "_following", lambda *_: None)
    monkeypatch.setattr(GridSession, "_settle_in", lambda s, _: settle(s, model))

    def evaluate(s):
        judge = s._member.judge

        def broken(*each, **more):
            assert not model.training
            look(s)
            left[0] -= 1
            if left[0] >= 0:
                raise Broken("gone")
            return judge(*each, **more)

        s._member.judge = broken
        for count in (16, 4):
            found.append(s.evaluate(loss_on(model), data(count)))
            assert s._course.at == evaluation(0 if count == 16 else 1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with train.session(model, optimizer, data(), global_batch=8, micro_batch=4, parts=train.Blocks("1")) as s:
        for batch in s.batches(epochs=1):
            s.step(loss_on(model), batch)
            if where == "in it":
                evaluate(s)
            if where != "behind the last step":
                break
        if where != "in it":
            evaluate(s)
    return found


def joined(s, model):
    """Somebody has, and has gone over the step: it knows of no evaluation."""
    assert model.training
    s._member.closed = True


@pytest.mark.parametrize("where", ["in it", "behind a break", "behind the last step"])
def test_an_evaluation_in_which_somebody_is_lost_is_made_again(monkeypatch, where):
    """However often, and so is the next: all are in it, or come to it."""
    whole = judged(monkeypatch, 0, joined, where=where)
    assert judged(monkeypatch, 2, joined, where=where) == whole
    assert len({*whole}) == 2


def test_who_joins_evaluates_with_what_the_others_had_there(monkeypatch):
    """Their state is of this evaluation: it is laid before, whatever the lines on the way have done."""
    rates = []

    def there(s, _):
        s._member.closed = True
        owed = copy.deepcopy(s._course.tree())
        owed["at"], owed["settings"][0]["lr"] = evaluation(1), 0.5
        s._course._owed = {name: owed[name] for name in ("at", "schedulers", "settings", "extra", "stepped")}
        s._member.judged.append(7.0)  # the first one the others have

    found = judged(
        monkeypatch, 1, there, where="in it", look=lambda s: rates.append(s._optimizer.param_groups[0]["lr"])
    )
    assert (found[0], rates) == (7.0, [0.1, 0.5])


def test_where_all_go_back_in_an_evaluation_it_is_not_a_number_and_the_loop_is_behind_it(monkeypatch):
    def back(s, _):
        s._member.closed = s._member.went_back = True
        s._course.take(copy.deepcopy({**s._course.tree(), "at": evaluation(0)}))

    with pytest.raises(InvalidValue, match="not a number is no answer"):  # by which this loop is left
        judged(monkeypatch, 1, back, where="in it")


@pytest.mark.parametrize(
    ("where", "steps"), [("behind a break", 0), ("behind a break", 1), ("behind the last step", 1)]
)
def test_a_script_that_has_left_its_loop_when_all_go_back_ends_for_another_process_to_go_on(
    monkeypatch, capsys, where, steps
):
    def back(s, _):
        s._member.closed = s._member.went_back = True
        s._progress.steps = steps

    with pytest.raises(SystemExit) as ended:
        judged(monkeypatch, 1, back, where=where)
    assert ended.value.code == EXIT_LOST
    assert f"all went back to step {steps}" in capsys.readouterr().err
