"""What a session cannot train with is refused in our words, before it costs anything."""

from __future__ import annotations

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, network  # noqa: E402


@pytest.fixture
def of_many(monkeypatch):
    """As under a controller that may choose two workers."""
    monkeypatch.setenv("SUBLET_CONTROL_FD", "3")
    monkeypatch.setenv("SUBLET_MAX_WORKERS", "2")


class Foreign:
    """An optimizer of another library."""

    def step(self) -> None: ...


def session(model, optimizer, **more):
    return train.session(model, optimizer, data(), global_batch=16, **more)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS computes the loss several times"),
        (lambda model: torch.optim.SparseAdam(list(model.parameters())), "more than one worker"),
        (
            lambda model: torch.optim.Adam([*model.parameters(), torch.nn.Parameter(torch.ones(3))]),
            r"shape \[3\] of its own.*part of the model",
        ),
        (lambda _: Foreign(), r"Foreign.*torch\.optim\.Optimizer"),
    ],
    ids=["lbfgs", "sparse", "of its own", "foreign"],
)
@pytest.mark.usefixtures("of_many")
def test_an_optimizer_that_does_not_fit_is_refused_at_once(optimizer, why):
    model = network()
    with pytest.raises(InvalidValue, match=why):
        session(model, optimizer(model))


@pytest.mark.parametrize("given", [list, tuple])
def test_several_optimizers_without_names_are_refused_with_how_to_name_them(given):
    model = network()
    with pytest.raises(InvalidValue, match=r"of 2.*by name: \{'D': optD.*s\.step\(loss, 'D'\)"):
        session(model, given((adam(model), adam(model))))


def test_an_optimizer_of_sparse_gradients_fits_one_worker(monkeypatch):
    model = network()
    sparse = torch.optim.SparseAdam(list(model.parameters()))
    session(model, sparse)
    monkeypatch.setenv("SUBLET_CONTROL_FD", "3")
    monkeypatch.setenv("SUBLET_MAX_WORKERS", "1")
    session(model, sparse)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (lambda o: {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(o)}, "ReduceLROnPlateau.*step it yourself"),
        (lambda _: {"scheduler": object()}, r"an object with step\(\)"),
        (lambda _: {"extra_state": object()}, r"an object with state_dict\(\)"),
        (lambda _: {"epochs": 0}, "epochs"),
    ],
    ids=["plateau", "no scheduler", "no state", "no epoch"],
)
def test_what_cannot_be_saved_or_stepped_is_refused_at_once(more, why):
    model = network()
    optimizer = adam(model)
    with pytest.raises(InvalidValue, match=why):
        session(model, optimizer, **more(optimizer))


def train_with(loss):
    """One step with this loss of (outputs, targets)."""
    model = network()
    with train.session(model, adam(model), data(), global_batch=16) as s:
        for x, y in s.batches(epochs=1):
            s.step(loss(model(x), y))


@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
def test_a_loss_is_one_number(shape):
    with pytest.raises(InvalidValue, match=r"loss\.mean\(\), or loss\.squeeze\(\)"):
        train_with(lambda out, y: F.mse_loss(out, y).reshape(shape))


Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - as users write it


def test_batches_keep_their_names_on_the_way_to_a_device():
    model = nn.Linear(FEATURES, 1)
    x, y = data(16).tensors

    def paired(rows):
        return Pair(torch.stack([row[0] for row in rows]), {"y": (torch.stack([row[1] for row in rows]),)})

    with train.session(model, adam(model), TensorDataset(x, y), global_batch=8, collate=paired, device="cpu") as s:
        for batch in s.batches(epochs=1):
            assert isinstance(batch, Pair)
            assert isinstance(batch.y["y"], tuple)
            s.step(F.mse_loss(model(batch.x), batch.y["y"][0]))


@pytest.mark.parametrize("shards", ["off", "on"])
@pytest.mark.parametrize("thawed", [True, False])
def test_what_was_frozen_when_an_epoch_began_is_not_trained_within_it_without_a_word(monkeypatch, thawed, shards):
    monkeypatch.setenv("SUBLET_SHARDS", shards)
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)

    def steps():
        made = 0
        with train.session(model, adam(model), data(), global_batch=16, steps=4) as s:
            for x, y in s.batches():
                if thawed and made == 2:
                    model[0].requires_grad_(True)
                s.step(F.mse_loss(model(x), y))
                made += 1
        return made

    if thawed:
        with pytest.raises(InvalidValue, match=r"2 parameters were frozen then.*between two epochs of s\.epochs"):
            steps()
    else:
        assert steps() == 4
