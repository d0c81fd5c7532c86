"""When it is proved that a model may be cut: where a training begins, and where a checkpoint does not say so of it."""

from __future__ import annotations

import importlib.util
import sys
from array import array
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.grid.cutting import Cut  # noqa: E402
from sublet.train.grid.mark import mark_of  # noqa: E402

STEPS = 2  # of an epoch, of two micro-batches each
LEARNS = 1  # the call in which nothing is computed


def a_net(*, bias=True):
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=bias))
    return nn.Sequential(nn.Linear(3, 4), inner, nn.Linear(4, 1))


def in_a_session(directory=None, penalty=0.0, epochs=1, parts="1"):
    """How often the loss was asked for; `parts` None is a session that is not cut."""
    model, asked = a_net(), array("q")  # a list would be a part of the state, as all that the loss asks for
    data, weights = TensorDataset(torch.ones(8, 3), torch.ones(8, 1)), list(model.parameters())

    def of(output, batch):
        loss = nn.functional.mse_loss(output, batch[1])
        return loss + penalty * sum(p.sum() for p in weights) if penalty else loss

    model[0].register_forward_pre_hook(lambda *_: asked.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = {"global_batch": 4, "micro_batch": 2, "checkpoint_dir": directory, "loss": of}
    facts |= {} if parts is None else {"parts": train.Blocks(parts)}
    with train.session(model, optimizer, data, **facts) as s:
        for batch in s.batches(epochs=epochs):
            s.step(batch)
    return len(asked)


def is_proved(asked, steps=STEPS):
    assert asked >= LEARNS + 2 * steps
    return asked > LEARNS + 2 * steps


def test_a_session_proves_it_before_its_first_step_and_not_when_it_goes_on(tmp_path):
    with pytest.raises(InvalidValue, match="weight_decay"):
        in_a_session(penalty=0.1)
    assert is_proved(in_a_session(tmp_path))
    assert not is_proved(in_a_session(tmp_path, epochs=2))


def test_a_checkpoint_that_was_written_without_parts_proves_nothing_and_is_proved_once(tmp_path):
    in_a_session(tmp_path, parts=None)
    with pytest.raises(InvalidValue, match="weight_decay"):
        in_a_session(tmp_path, penalty=0.1, epochs=2)
    assert is_proved(in_a_session(tmp_path, epochs=2))
    assert not is_proved(in_a_session(tmp_path, epochs=3))


def test_another_script_is_proved_again(tmp_path, monkeypatch):
    in_a_session(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--penalty=0.1"])
    with pytest.raises(InvalidValue, match="weight_decay"):
        in_a_session(tmp_path, penalty=0.1, epochs=2)


def mark(model, loss_of):
    cut = Cut(model, "1")
    cut.learn(lambda: model(torch.zeros(1, 3)).sum())
    return mark_of(cut, loss_of)


def code_in(folder, name, text):
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.of


def test_the_mark_is_of_the_model_and_of_the_code(tmp_path, monkeypatch):
    of = code_in(tmp_path, "one", "def of(batch): return 1")
    first = mark(a_net(), of)
    assert mark(a_net(), of) == mark(a_net(), partial(of, 3)) == first
    assert mark(a_net(bias=False), of) != first
    other = code_in(tmp_path, "one", "def of(batch): return 2")
    assert mark(a_net(), other) != first
    nowhere = mark(a_net(), len)  # in no file
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert len({mark(a_net(), other), nowhere, mark(a_net(), len), first}) == 4
