"""A training of so many steps, schedules by the epoch, and what `updated` says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.sessions.position import Extent  # noqa: E402
from sublet.train.state.state import Progress  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402

IN_AN_EPOCH = 4  # steps: 50 samples by 16


@pytest.mark.parametrize("steps", [1, IN_AN_EPOCH, IN_AN_EPOCH + 1, 3 * IN_AN_EPOCH - 1])
def test_a_training_of_so_many_steps_ends_after_them(steps):
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, steps=steps) as s:
        told = s._told().samples(s._progress)
        for batch in s:
            s.step(loss_of(model, batch))
    assert s.steps == steps
    assert s.samples_done == told


def test_the_last_epoch_of_so_many_steps_ends_early():
    model, ends = network(), []
    with train.session(model, adam(model), data(), global_batch=16, steps=IN_AN_EPOCH + 2) as s:
        for epoch in s.epochs():
            for batch in s:
                s.step(loss_of(model, batch))
            ends.append((epoch, s.steps))
    assert ends == [(0, IN_AN_EPOCH), (1, IN_AN_EPOCH + 2)]


def test_what_is_done_already_is_not_trained_again(tmp_path, capsys):
    def run(steps):
        model, seen = network(), 0
        with train.session(model, adam(model), data(), global_batch=16, steps=steps, checkpoint_dir=tmp_path) as s:
            for batch in s:
                seen += 1
                s.step(loss_of(model, batch))
        return seen

    assert [run(5), run(5), run(7)] == [5, 0, 2]
    assert capsys.readouterr().err.count("is finished (5 steps): there is nothing left to train") == 1


def test_epochs_and_steps_are_not_said_both():
    model = network()
    with pytest.raises(InvalidValue, match="said alone"):
        train.session(model, adam(model), data(), global_batch=16, steps=3, epochs=1)
    with pytest.raises(InvalidValue, match="what a step takes is not fixed"):
        train.session(model, adam(model), data(), global_batch=16, steps=3, batch_range=(8, 32))
    with (
        pytest.raises(InvalidValue, match="said once"),
        train.session(model, adam(model), data(), global_batch=16, steps=3) as s,
    ):
        next(s.batches(epochs=1))


def test_samples_of_a_batch_that_is_larger_than_an_epoch_are_those_of_the_epoch():
    assert Extent(steps=3).samples(Progress(samples=10, batch=64)) == 30


def test_a_schedule_by_the_epoch_is_stepped_where_a_script_would_step_it():
    def trained(*, by_session):
        model, rates = network(), []
        optimizer = adam(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        more = {"scheduler": scheduler, "scheduler_every": "epoch"} if by_session else {}
        with train.session(model, optimizer, data(), global_batch=16, epochs=3, **more) as s:
            for _ in s.epochs():
                for batch in s:
                    rates.append(optimizer.param_groups[0]["lr"])
                    s.step(loss_of(model, batch))
                if not by_session:
                    scheduler.step()
        return flat(model), rates

    ours, theirs = trained(by_session=True), trained(by_session=False)
    assert ours[1] == theirs[1] == [0.01] * IN_AN_EPOCH + [0.005] * IN_AN_EPOCH + [0.0025] * IN_AN_EPOCH
    assert torch.equal(ours[0], theirs[0])


def test_updated_is_said_once_for_each_step():
    model, said = network(), []
    with train.session(model, adam(model), data(), global_batch=16, micro_batch=8, steps=3) as s:
        for batch in s:
            before = s.steps
            s.step(loss_of(model, batch))
            assert s.updated == (s.steps > before)
            said.append(s.updated)
    assert said == [False, True] * 3
