"""A training whose script has left its loop for good is over at its next start; with real workers: tests/e2e."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import CheckpointFailed  # noqa: E402
from sublet.train.checkpoint.saving import Saver  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402

STEPS = 4  # in an epoch of 50 samples in steps of 16


class Stream(torch.utils.data.IterableDataset):
    """The samples of `data`, for ever."""

    def __iter__(self):
        while True:
            yield from data()


def by_batches(s, model, ends_at):
    for batch in s.batches() if s.options.epochs or s.options.steps else s.batches(epochs=3):
        s.step(loss_of(model, batch))
        if s.steps == ends_at:
            break


def by_epochs(s, model, ends_at):
    for _ in s.epochs():
        for batch in s:
            s.step(loss_of(model, batch))
            if s.steps == ends_at:
                break
        if s.steps >= ends_at:
            break


def by_return(s, model, ends_at):
    for _ in s.epochs():
        for batch in s:
            s.step(loss_of(model, batch))
            if s.steps == ends_at:
                return


def start(tmp_path, loop=by_epochs, ends_at=6, samples=None, **length):
    """The weights, the steps in all, and what was kept."""
    model = network()
    given = data() if samples is None else samples
    with train.session(model, adam(model), given, global_batch=16, checkpoint_dir=tmp_path, **length) as s:
        kept = s.keep(starts=0)
        before = s.steps
        loop(s, model, ends_at)
        if s.steps > before:
            kept.starts += 1
        found = s.evaluate(lambda batch: loss_of(model, batch), data())
    return flat(model), s.steps, found


@pytest.mark.parametrize(
    ("loop", "length"),
    [
        (by_batches, {}),
        (by_batches, {"epochs": 3}),
        (by_batches, {"steps": 12}),
        (by_epochs, {"epochs": 3}),
        (by_epochs, {"steps": 12}),
        (by_return, {"epochs": 3}),
        (by_batches, {"steps": 12, "samples": Stream()}),
    ],
    ids=["batches(epochs=)", "batches", "batches of steps", "epochs", "epochs of steps", "return", "stream"],
)
@pytest.mark.parametrize("ends_at", [STEPS, 6], ids=["at an epoch's end", "amid one"])
def test_a_loop_that_was_left_gives_nothing_at_its_next_start(loop, length, ends_at, tmp_path, capsys):
    weights, steps, loss = start(tmp_path, loop, ends_at, **length)
    assert steps == ends_at
    assert "nothing left to train" not in capsys.readouterr().err
    for _ in range(2):  # what the second leaves behind is over, too
        again, found, told = start(tmp_path, loop, 0, **length)  # which would never leave
        assert found == steps
        assert torch.equal(again, weights)
        assert told == loss  # of an evaluation behind the loop
        said = capsys.readouterr().err
        name = next((f"{key}={value}" for key, value in length.items() if key != "samples"), "epochs=3")
        assert said.count(f"was ended by its script, which left its loop after {steps} steps of {name}") == 1
        assert "next: " in said


def test_other_epochs_or_steps_are_an_order_to_train_on_and_the_mark_is_that_of_the_newest(tmp_path, capsys):
    start(tmp_path, epochs=3)
    assert start(tmp_path, ends_at=9, epochs=4)[1] == 9
    assert start(tmp_path, ends_at=10, epochs=3)[1] == 10  # no more, but others than it was ended with
    assert start(tmp_path, ends_at=11, steps=40)[1] == 11
    assert "nothing left" not in capsys.readouterr().err
    assert start(tmp_path, ends_at=0, steps=40)[1] == 11


def test_whoever_has_made_no_step_has_ended_nothing(tmp_path):
    def looks(s, model, ends_at):
        for _ in s.epochs():
            break

    assert start(tmp_path, looks, epochs=3)[1] == 0
    assert start(tmp_path, epochs=3)[1] == 6


def test_a_break_that_ends_one_epoch_alone_is_no_end_of_the_training(tmp_path, capsys):
    def leaves_each(s, model, _):
        for _ in s.epochs():
            for batch in s:
                s.step(loss_of(model, batch))
                if s.steps_in_epoch == 2:
                    break

    assert start(tmp_path, leaves_each, epochs=3)[1] == 6
    start(tmp_path, leaves_each, epochs=3)
    said = capsys.readouterr().err
    assert "is finished (6 steps)" in said
    assert "ended by its script" not in said
    assert start(tmp_path, leaves_each, epochs=4)[1] == 8


@pytest.mark.parametrize("error", [SystemExit(83), SystemExit(0), KeyboardInterrupt(), RuntimeError("ours")], ids=repr)
def test_a_training_that_an_error_or_an_order_has_ended_goes_on(error, tmp_path, monkeypatch):
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)

    def struck(s, model, _):
        for batch in s:
            if s.steps == 6:
                raise error
            s.step(loss_of(model, batch))

    with pytest.raises(type(error)):
        start(tmp_path, struck, epochs=3)
    calm = start(tmp_path / "calm", by_batches, 0, epochs=3)
    assert start(tmp_path, by_batches, 0, epochs=3)[1] == 3 * STEPS
    assert torch.equal(start(tmp_path, by_batches, 0, epochs=3)[0], calm[0])


def test_without_a_checkpoint_of_its_end_a_training_that_was_left_takes_its_last_turn_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.train.checkpoint.saving.LAST_PAUSES_S", ())
    with monkeypatch.context() as broken:
        broken.setattr(Saver, "has", lambda *_: False)
        broken.setattr(Saver, "save", lambda *_: None)
        with pytest.raises(CheckpointFailed, match="all 6 steps are made"):
            start(tmp_path, epochs=3)
    assert start(tmp_path, epochs=3)[1] == 6


def test_a_turn_that_is_left_before_a_step_is_left_again_if_a_checkpoint_of_that_step_was_there(tmp_path, monkeypatch):
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)

    def leaves_first(s, model, ends_at):
        for batch in s:
            if s.steps == ends_at:
                break
            s.step(loss_of(model, batch))

    weights, steps, _ = start(tmp_path, leaves_first, epochs=3)
    again, found, _ = start(tmp_path, leaves_first, epochs=3)
    assert (found, steps) == (6, 6)
    assert torch.equal(again, weights)
