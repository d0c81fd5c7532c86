"""What a session logs to TensorBoard: one run over all starts, each step once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard")

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.link.agent_line import ControllerLink  # noqa: E402
from sublet.train.sessions.tracking import Log  # noqa: E402
from tests.rigs.little_network import adam, data, loss_of, network  # noqa: E402
from tests.rigs.logged import tensorboard, tensorboard_values  # noqa: E402

STEPS = 24


def run(directory, *, checkpoints=None, ends_at=None, **more):
    """A session that logs each step, and is gone after one of them, with what it had saved at step 8."""
    model = network()
    tracker = tensorboard(directory)
    with train.session(
        model, adam(model), data(), global_batch=16, steps=STEPS, tracker=tracker, checkpoint_dir=checkpoints, **more
    ) as s:
        for batch in s:
            s.step(loss_of(model, batch))
            s.log({"loss": s.loss, "twice": torch.tensor(2.0 * s.steps)})
            if s.steps == 8 and checkpoints is not None and ends_at:
                s._around.saver.save(s._strategy.state.saved(s._progress), s._progress)
            if s.steps == ends_at:
                raise SystemExit(9)


def test_a_run_that_is_started_again_is_one_run_with_each_step_once(tmp_path):
    run(tmp_path / "calm", checkpoints=tmp_path / "a")
    with pytest.raises(SystemExit):
        run(tmp_path / "struck", checkpoints=tmp_path / "b", ends_at=13)
    run(tmp_path / "struck", checkpoints=tmp_path / "b")
    (calm,) = tensorboard_values(tmp_path / "calm").values()
    (struck,) = tensorboard_values(tmp_path / "struck").values()
    assert [step for step, _ in struck["loss"]] == list(range(1, STEPS + 1))
    assert struck["loss"] == calm["loss"]
    assert struck["twice"] == [(step, 2.0 * step) for step in range(1, STEPS + 1)]
    assert struck["sublet/workers"] == [(step, 1.0) for step in range(1, STEPS + 1)]


def test_starts_that_keep_nothing_are_runs_of_their_own(tmp_path, monkeypatch):
    for start in ("a", "b"):
        monkeypatch.setattr("os.getpid", lambda start=start: ord(start))
        run(tmp_path)
    found = tensorboard_values(tmp_path)
    assert [len(values["loss"]) for values in found.values()] == [STEPS, STEPS]


def test_a_name_that_comes_later_in_the_same_step_is_not_lost(tmp_path):
    """The first start ended between the two."""
    for names in (["loss"], ["loss", "held out"]):
        tracker = tensorboard(tmp_path)
        log = Log((tracker,), ControllerLink(""), "one")
        for name in names:
            log.write({name: 1.0}, rank=0, world=3, steps=7)
        log.close(finished=False)
    (values,) = tensorboard_values(tmp_path).values()
    assert values == {"loss": [(7, 1.0)], "sublet/workers": [(7, 3.0)], "held out": [(7, 1.0)]}


def test_a_tracker_that_fails_stops_no_training(tmp_path, capsys):
    tracker = tensorboard(tmp_path)

    def away(*_):
        raise OSError("no space left on device")

    tracker.write = away
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, steps=3, tracker=tracker) as s:
        for batch in s:
            s.step(loss_of(model, batch))
            s.log({"loss": s.loss})
    assert s.steps == 3
    assert capsys.readouterr().err.count("no space left on device") == 1


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"loss": "low"}, r"log\['loss'\]"),
        ({"loss": torch.zeros(2)}, r"log\['loss'\]"),
        ([1.0], "numbers by name"),
    ],
)
def test_what_is_no_number_is_refused(what, why):
    model = network()
    with (
        train.session(model, adam(model), data(), global_batch=16, steps=3) as s,
        pytest.raises(InvalidValue, match=why),
    ):
        s.log(what)


def test_what_is_no_tracker_is_refused():
    model = network()
    with pytest.raises(InvalidValue, match="tracker"):
        train.session(model, adam(model), data(), global_batch=16, steps=3, tracker="runs")
