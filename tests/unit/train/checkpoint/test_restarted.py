"""Checkpoints for a loop of the script's own: it goes on where it was, and leaves with a checkpoint when told to."""

from __future__ import annotations

import os
import signal

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import BadInput, InvalidValue  # noqa: E402
from sublet.train.checkpoint.checkpoints import newest  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402

STEPS = 20


@pytest.fixture(autouse=True)
def handler():
    """As pytest has it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(directory, *, noticed_at=None):
    """A plain loop, with dropout; told to go while it makes this step."""
    model = network()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    ck = train.checkpointed(directory=directory, model=model, optimizer=optimizer, scheduler=scheduler)
    tensors, made = data().tensors, []
    for step in range(ck.resume(), STEPS):
        optimizer.zero_grad()
        loss_of(model, [tensor[step : step + 8] for tensor in tensors]).backward()
        optimizer.step()
        scheduler.step()
        made.append(step)
        if step == noticed_at:
            os.kill(os.getpid(), signal.SIGTERM)
        ck.tick(step + 1)
    ck._saver.close()  # as the end of the process does: what is being written is written
    return flat(model), made


def test_a_script_that_is_told_to_go_saves_leaves_with_its_code_and_goes_on_with_the_same_bits(tmp_path):
    expected, _ = run(None)
    for noticed_at in (7, 13):
        with pytest.raises(SystemExit) as left:
            run(tmp_path, noticed_at=noticed_at)
        assert left.value.code == train.EXIT_LEFT
        assert newest(tmp_path).step == noticed_at + 1
    found, made = run(tmp_path)
    assert made == list(range(14, STEPS))
    assert torch.equal(found, expected)


def test_a_script_saves_where_its_controller_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", "0")
    run(None)
    assert newest(tmp_path) is not None


def test_a_writer_of_an_earlier_start_commits_nothing_any_more(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_GENERATION", "3")
    with pytest.raises(SystemExit):
        run(tmp_path, noticed_at=3)
    model = network()
    monkeypatch.setenv("SUBLET_GENERATION", "2")
    ck = train.checkpointed(directory=tmp_path, model=model, optimizer=adam(model), scheduler=model)
    ck._saver.opened(2)
    ck._progress.steps = 9
    ck._saver.save(ck._tree(None), ck._progress)
    assert newest(tmp_path).step == 4


def test_what_was_saved_under_other_names_is_refused(tmp_path):
    with pytest.raises(SystemExit):
        run(tmp_path, noticed_at=3)
    with pytest.raises(BadInput, match=r"of \['model', 'optimizer', 'scheduler'\], this has \['net'\]"):
        train.checkpointed(directory=tmp_path, net=network()).resume()


def test_what_cannot_be_right_is_refused():
    model = network()
    with pytest.raises(InvalidValue, match="what is to be saved, by name"):
        train.checkpointed()
    with pytest.raises(InvalidValue, match=r"an object with state_dict\(\)"):
        train.checkpointed(model=model, step=3)
    ck = train.checkpointed(model=model)
    with pytest.raises(InvalidValue, match=r"ck\.resume\(\)"):
        ck.tick(1)
    assert ck.resume() == 0
    with pytest.raises(InvalidValue, match="called once"):
        ck.resume()
