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


class Cooling(torch.nn.Module):
    """It remembers things that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.seen = network(), 0, []
        self.register_buffer("scale", None)

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(x.mean()))
        if self.scale is None:  # as who adapts to the first batch does
            self.register_buffer("scale", 1 / (1 + x.std().detach()))
        return self.inner(x) * self.scale * (1 + 0.1 * self.calls) + len(self.seen) / 50


def run_cooling(directory, noticed_at=None, change=None):
    torch.manual_seed(1)
    model, calls = Cooling(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def rate(step):
        calls.append(step)
        return 0.99 ** len(calls)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model.inner[0].register_forward_hook(lambda module, given, out: out * (1 + len(calls) / 100))
    ck = train.checkpointed(directory=directory, keys=model, optimizer=optimizer, scheduler=scheduler)
    tensors = data().tensors
    for step in range(ck.resume(), STEPS):
        optimizer.zero_grad()
        loss_of(model, [tensor[step : step + 8] for tensor in tensors]).backward()
        optimizer.step()
        scheduler.step()
        if step == 3:
            model.inner[2].eval()
            if change is not None:
                change(model)
        if step == noticed_at:
            os.kill(os.getpid(), signal.SIGTERM)
        ck.tick(step + 1)
    ck._saver.close()
    return flat(model)


def test_values_that_change_are_part_of_it(tmp_path):
    expected = run_cooling(None)
    for noticed_at in (6, 13):
        with pytest.raises(SystemExit):
            run_cooling(tmp_path, noticed_at)
    assert torch.equal(run_cooling(tmp_path), expected)


def test_a_module_that_was_replaced_is_refused_when_a_state_is_taken(tmp_path):
    with pytest.raises(InvalidValue, match=r"model\.keys\.inner\.3\.weight"):
        run_cooling(tmp_path, 6, lambda model: setattr(model.inner, "3", torch.nn.Linear(8, 1)))


def test_a_script_that_swallows_the_order_to_leave_hears_it_again_and_saves_nothing_more(tmp_path):
    ck = train.checkpointed(directory=tmp_path, model=network())
    ck.resume()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        ck.tick(3)
    with pytest.raises(SystemExit) as again:
        ck.tick(4)
    assert again.value is left.value
    assert newest(tmp_path).step == 3


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
    ck._saver.save(ck._tree(), ck._progress)
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
