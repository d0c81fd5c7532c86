"""The one look at a loss: what is said of one that is not what the session was told, and that it leaves no trace."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812 - as everybody writes it

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.sessions.probe import part_of  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, flat, network  # noqa: E402


def vae(out, y):
    """As in PyTorch's example: two sums."""
    return F.binary_cross_entropy_with_logits(out, y.sigmoid(), reduction="sum") - 0.5 * torch.sum(1 + out - out.exp())


SUMS = {
    "mse": lambda out, y: F.mse_loss(out, y, reduction="sum"),
    "half": lambda out, y: 0.5 * ((out - y) ** 2).sum(),
    "l1": lambda out, y: F.l1_loss(out, y, reduction="sum"),
    "huber": lambda out, y: F.huber_loss(out, y, reduction="sum"),
    "two": lambda out, y: F.cross_entropy(torch.cat([out, -out], 1), (y > 0).long()[:, 0], reduction="sum"),
    "dims": lambda out, y: ((out - y) ** 2).sum(dim=(0, 1)),
    "vae": vae,
}
MEANS = {
    "mse": F.mse_loss,
    "divided": lambda out, y: F.mse_loss(out, y, reduction="sum") / len(out),
    "multiplied": lambda out, y: F.mse_loss(out, y, reduction="sum") * (1.0 / len(out)),
    "weighted": lambda out, y: ((out - y) ** 2 * y.abs()).sum() / y.abs().sum(),
    "penalty": lambda out, y: F.mse_loss(out, y) + 0.01 * torch.arange(9.0).pow(2).sum(),
    "inner sum": lambda out, y: ((out - y) ** 2).sum(1).mean(),
    "list": lambda out, y: torch.stack([F.mse_loss(out, y), F.l1_loss(out, y)]).sum(),
    "batchmean": lambda out, y: F.kl_div(out, y.exp(), reduction="batchmean"),
    "vae": lambda out, y: vae(out, y) / len(out),
    "smoothed": lambda out, y: F.cross_entropy(torch.cat([out, -out], 1), (y > 0).long()[:, 0], label_smoothing=0.1),
}


COUPLED = {
    "tokens": MEANS.pop("weighted"),
    "of a mean": lambda out, y: F.mse_loss(out, y) + 0.01 * out.mean(0).pow(2).sum(),
    "root": lambda out, y: F.mse_loss(out, y).sqrt(),
    "contrastive": lambda out, y: F.cross_entropy(out @ y.T, torch.arange(len(out))),
}


@pytest.fixture
def wide(monkeypatch):
    """There may be several workers, but there is no line."""
    monkeypatch.setenv("WORLD_SIZE", "2")


def train_with(loss, model=None, **more):
    """Two steps with this loss of (outputs, targets); how many samples each call had."""
    model, seen = model or network(), []
    options = {"global_batch": 16, "steps": 2, **more}
    with train.session(model, adam(model), data(), **options) as s:
        for x, y in s:
            seen.append(len(x))
            s.step(loss(model(x), y))
    return seen


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS)
def test_nothing_is_said_of_a_mean(loss, capsys):
    assert train_with(loss, strict=True) == [16, 8, 8, 16, 16]
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("wide")
def test_halves_that_are_not_as_large_count_by_their_samples():
    assert train_with(F.mse_loss, strict=True, global_batch=5, steps=1) == [5, 2, 3, 5]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
def test_a_sum_is_named_once_and_right_where_it_is_told_to_be_one(loss, capsys):
    train_with(loss)
    assert capsys.readouterr().err.count("it looks like a sum: say reduction='sum'") == 1
    train_with(loss, reduction="sum", strict=True)
    with pytest.raises(InvalidValue, match="it looks like a sum"):
        train_with(loss, strict=True)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("loss", COUPLED.values(), ids=COUPLED)
def test_a_mean_over_other_things_than_samples_is_said_unless_it_is_meant(loss, capsys):
    train_with(loss)
    assert capsys.readouterr().err.count("reduction='counted'") == 1
    train_with(loss, reduction="mean")
    assert not capsys.readouterr().err
    with pytest.raises(InvalidValue, match="a mean over tokens"):
        train_with(loss, reduction="mean", strict=True)


@pytest.mark.usefixtures("wide")
def test_a_mean_that_is_told_to_be_a_sum_is_said(capsys):
    train_with(F.mse_loss, reduction="sum")
    assert "it looks like a mean: leave reduction out" in capsys.readouterr().err


@pytest.mark.parametrize(("counts", "said"), [(len, False), (lambda _: 1, True)])
def test_what_is_counted_adds_up(counts, said, capsys):
    def pair(output, batch):
        return F.mse_loss(output, batch[1], reduction="sum"), counts(batch[1])

    model = network()
    options = {"global_batch": 16, "steps": 1, "reduction": "counted", "loss": pair}
    with train.session(model, adam(model), data(), **options) as s:
        for batch in s:
            s.step(batch)
    assert ("both add up" in capsys.readouterr().err) == said


def test_with_the_loss_the_session_looks_by_itself(capsys):
    model, seen = network(), []

    def summed(output, batch):
        seen.append(len(output))
        return F.mse_loss(output, batch[1], reduction="sum")

    with train.session(model, adam(model), data(), global_batch=16, steps=1, loss=summed) as s:
        given = [len(batch[0]) for batch in s if s.step(batch) is not None]
    assert given == [16]
    assert seen == [16, 8, 8, 16]
    assert "it looks like a sum" in capsys.readouterr().err


def test_alone_nobody_is_asked(capsys):
    assert train_with(SUMS["mse"]) == [16, 16]
    assert not capsys.readouterr().err


class Noting(nn.Module):
    """With dropout, batch statistics, and a buffer that each forward changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.inner = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


def test_it_leaves_no_trace_and_sees_neither_dropout_nor_batch_statistics(capsys, monkeypatch):
    found = []
    for world in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", world)
        model = Noting()
        model.inner[0].eval()
        train_with(F.mse_loss, model, strict=world == "2")
        assert [each.training for each in model.inner] == [False, True, True, True]
        found.append((flat(model), dict(model.named_buffers()), random.random(), np.random.rand(), torch.rand(())))  # noqa: NPY002
    one, other = found
    assert torch.equal(one[0], other[0])
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
    assert one[2:4] == other[2:4]
    assert torch.equal(one[4], other[4])
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("how", ["draws", "trains", "not finite"])
def test_nothing_is_said_where_nothing_can_be_known(how, capsys):
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, steps=1, strict=True) as s:
        for x, y in s:
            if how == "trains":
                model.train()
            loss = F.mse_loss(model(x), y, reduction="sum")
            if how == "draws":
                loss = loss * torch.rand(())
            s.step(loss * float("inf") if how == "not finite" else loss)
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_half_precision_rounds_is_no_difference(dtype, capsys):
    model = network().to(dtype)
    with train.session(model, adam(model), data(), global_batch=16, steps=1, strict=True) as s:
        for x, y in s:
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
                out = model(x.to(dtype))
            s.step(F.mse_loss(out.float(), y) * (1 + 2e-3 * (len(x) < 16)))
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("wide")
def test_a_training_that_goes_on_is_not_looked_at_again(tmp_path):
    assert train_with(F.mse_loss, checkpoint_dir=tmp_path) == [16, 8, 8, 16, 16]
    assert train_with(F.mse_loss, checkpoint_dir=tmp_path, steps=3) == [16]


def test_a_part_of_a_batch_is_a_copy_of_its_kind():
    batch = {"ids": torch.arange(4), "text": ["a", "b", "c", "d"], "more": (torch.ones(4, 2), [torch.zeros(4)])}
    part = part_of(batch, 4, 1, 3)
    assert part["ids"].tolist() == [1, 2]
    assert part["text"] == ["b", "c"]
    assert type(part["more"]) is tuple
    assert part["more"][0].shape == (2, 2)
    part["ids"].zero_()
    assert batch["ids"].tolist() == [0, 1, 2, 3]
    for other in ({"ids": torch.arange(4), "scale": torch.ones(())}, torch.ones(3), [torch.ones(4), 5], "text"):
        assert part_of(other, 4, 0, 2) is None


def test_what_a_loop_draws_is_drawn_as_without_it(monkeypatch):
    found = []
    for world in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", world)
        torch.manual_seed(5)
        model = network()
        train_with(lambda out, y: F.mse_loss(out, y + torch.randn(y.shape)), model)
        found.append(flat(model))
    assert torch.equal(*found)


@pytest.mark.usefixtures("wide")
def test_what_is_logged_by_steps_is_not_logged_for_it():
    class Rows:
        def __init__(self):
            self.rows = []

        def begin(self, _):
            return {}

        def write(self, step, values):
            self.rows.append((step, values["loss"]))

        def end(self, *, finished):
            assert finished

    model, rows = network(), Rows()
    with train.session(model, adam(model), data(), global_batch=16, steps=3, tracker=rows) as s:
        for x, y in s:
            s.step(F.mse_loss(model(x), y))
            s.log({"loss": s.loss})
    assert [step for step, _ in rows.rows] == [1, 2, 3]
    assert all(loss > 0.0 for _, loss in rows.rows)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_the_loop_sees_the_first_step_and_what_it_prints_of_halves_is_left_out(fails, capsys):
    model, seen = network(), []
    options = {"global_batch": 16, "steps": 2}
    with contextlib.suppress(RuntimeError), train.session(model, adam(model), data(), **options) as s:
        for x, y in s:
            print("before", s.steps)  # noqa: T201 - as a script does
            loss = F.mse_loss(model(x), y)
            if fails and len(seen) + 1 == fails:
                raise RuntimeError
            before, told = s.steps, s.step(loss)
            seen.append((before, s.steps, told == pytest.approx(loss.item())))
            print("after", s.steps)  # noqa: T201 - as a script does
    if not fails:
        assert seen == [(0, 0, True)] * 3 + [(0, 1, True), (1, 2, True)]
    lines = ["before 0", "after 0", "before 0", "after 1", "before 1", "after 2"]
    lines = lines[: 2 * fails - 1] if fails else lines
    assert capsys.readouterr().out.splitlines() == lines
