"""Lightning with a session does what Lightning does in one process."""

from __future__ import annotations

import csv

import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from sublet.errors import InvalidValue  # noqa: E402
from sublet.integrations.lightning import SubletStrategy  # noqa: E402
from sublet.integrations.lightning.fitness import NAMES, gone  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning advises on workers, on loggers and on itself
]


class Module(L.LightningModule):
    def __init__(self, interval="step", kind="usual"):
        super().__init__()
        torch.manual_seed(3)
        self.line, self.interval, self.kind = torch.nn.Linear(4, 1), interval, kind
        self.automatic_optimization = kind != "manual"

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.line(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return None if self.kind == "skips" else loss

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        if self.kind == "two":
            return [optimizer, torch.optim.SGD(self.parameters(), lr=0.1)]
        if self.kind == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if self.kind == "asks":
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


class Heard(Callback):
    """Every event of a training, and where it was."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name.startswith("on_") and "checkpoint" not in name:
            return lambda trainer, *_: self.events.append((name, trainer.current_epoch, trainer.global_step))
        return super().__getattribute__(name)


def loader(samples=40, **more):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, **more)


def fitted(place, strategy, module, data, **settings):
    heard = Heard()
    usual = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    callbacks = [heard, *settings.pop("callbacks", ())]
    more = {} if strategy is None else {"strategy": strategy}
    trainer = L.Trainer(logger=CSVLogger(place), callbacks=callbacks, **usual | {"max_epochs": 3} | settings | more)
    trainer.fit(module, data, loader(16))
    rows = list(csv.DictReader((place / "lightning_logs/version_0/metrics.csv").read_text().splitlines()))
    logs = [{name: float(value) for name, value in row.items() if value} for row in rows]
    return dict(module.state_dict()), logs, heard.events, trainer


SETTINGS = {
    "clipped": {"gradient_clip_val": 0.3},
    "clipped by value": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value", "max_steps": 7},
    "validated within an epoch": {"val_check_interval": 2, "precision": "32-true"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_in_one_process_it_comes_to_what_lightning_comes_to(interval, settings, tmp_path):
    weights, logs, events, _ = fitted(tmp_path / "plain", None, Module(interval), loader(36), **settings)
    ours = fitted(tmp_path / "ours", SubletStrategy(global_batch=8), Module(interval), loader(36), **settings)
    torch.testing.assert_close(ours[0], weights, rtol=1e-4, atol=1e-5)
    assert ours[1] == [pytest.approx(each, rel=1e-3) for each in logs]
    once = [event for event in events if event[0] not in ("on_before_optimizer_step", "on_after_backward")]
    assert [event for event in ours[2] if event[0] not in ("on_before_optimizer_step", "on_after_backward")] == once
    assert sorted(ours[2]) == sorted(events)  # the update is within the backward pass: these two change places


def test_a_schedule_may_ask_how_many_steps_there_are(tmp_path):
    weights, logs, events, _ = fitted(tmp_path / "plain", None, Module(kind="asks"), loader(36))
    ours = fitted(tmp_path / "ours", SubletStrategy(global_batch=8), Module(kind="asks"), loader(36))
    torch.testing.assert_close(ours[0], weights, rtol=1e-4, atol=1e-5)
    assert ours[1] == [pytest.approx(each, rel=1e-3) for each in logs]
    assert sorted(ours[2]) == sorted(events)
    # A loader's own batches are not the steps: these are of 12 samples.
    scheduler = fitted(tmp_path / "more", SubletStrategy(12), Module(kind="asks"), loader(36))[3].lr_scheduler_configs[
        0
    ]
    assert scheduler.scheduler.total_steps == 9


def test_stopping_early_and_the_best_checkpoint_are_those_of_lightning(tmp_path):
    found = []
    for name, strategy in (("plain", None), ("ours", SubletStrategy(global_batch=8))):
        stop = EarlyStopping("val_loss", mode="max", patience=2)
        best = ModelCheckpoint(tmp_path / name / "kept", monitor="val_loss", mode="max", save_top_k=2)
        trainer = fitted(tmp_path / name, strategy, Module(), loader(), callbacks=[stop, best], max_epochs=9)[3]
        kept = sorted(path.name for path in (tmp_path / name / "kept").iterdir())
        found.append((trainer.current_epoch, trainer.global_step, stop.wait_count, kept, best.best_model_path[-20:]))
    assert found[1] == found[0]
    assert found[1][0] < 9


def test_a_training_that_stopped_early_is_over_at_its_next_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SUBLET_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))

    def start(epochs):
        stop = EarlyStopping("val_loss", mode="max", patience=2)
        strategy, module = SubletStrategy(global_batch=8), Module()
        usual = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        trainer = L.Trainer(strategy=strategy, callbacks=[stop], max_epochs=epochs, default_root_dir=tmp_path, **usual)
        trainer.fit(module, loader(), loader(16))
        assert strategy._feed.closed
        return trainer.global_step, module.state_dict()

    steps, weights = start(9)
    assert steps == 15
    for _ in range(2):  # what the second leaves behind is over, too
        again, found = start(9)
        assert again == steps
        assert all(torch.equal(found[name], weights[name]) for name in weights)
        assert "was ended by its script, which left its loop after 15 steps" in capsys.readouterr().err
    assert start(12)[0] == 20  # more epochs are an order to train on, until it is stopped again


class Full(torch.autograd.Function):
    """Runs out of memory once, in the backward pass of one step."""

    left = 0

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        Full.left -= 1
        if Full.left == 0:
            raise torch.OutOfMemoryError("no room")
        return gradient


class Filling(Module):
    def training_step(self, batch, index):
        return Full.apply(super().training_step(batch, index))


@pytest.mark.parametrize("step", [1, 5, 6], ids=["first of all", "last of an epoch", "first of an epoch"])
def test_a_step_that_is_dropped_counts_once(step, tmp_path):
    expected = fitted(tmp_path / "plain", None, Module("epoch"), loader(), val_check_interval=1.0)
    Full.left = step
    found = fitted(
        tmp_path / "ours", SubletStrategy(global_batch=8), Filling("epoch"), loader(), val_check_interval=1.0
    )
    assert Full.left < 0
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
    for name in ("on_validation_end", "on_train_epoch_end", "on_train_end"):
        assert [event for event in found[2] if event[0] == name] == [event for event in expected[2] if event[0] == name]
    assert found[3].global_step == 15


@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_still_has(name):
    assert not gone(L.Trainer(logger=False, accelerator="cpu"), (name,))


def test_a_name_that_moved_is_named():
    assert gone(object(), ("fit_loop.gone",)) == ["Trainer.fit_loop.gone"]


REFUSED = {
    "automatic_optimization": (Module(kind="manual"), {}),
    "accumulate_grad_batches": (Module(), {"accumulate_grad_batches": 2}),
    "limit_train_batches": (Module(), {"limit_train_batches": 2}),
    "max_epochs": (Module(), {"max_epochs": -1}),
    "optimizers|multiple optimizers": (Module(kind="two"), {}),
    "ReduceLROnPlateau": (Module(kind="plateau"), {}),
    "training_step": (Module(kind="skips"), {}),
}


@pytest.mark.parametrize(("why", "given"), REFUSED.items())
def test_what_cannot_be_elastic_is_refused(why, given, tmp_path):
    module, settings = given
    error = RuntimeError if "multiple" in why else InvalidValue
    with pytest.raises((error, InvalidValue), match=why):
        fitted(tmp_path, SubletStrategy(global_batch=8), module, loader(), **settings)


def test_a_last_step_without_a_sample_for_each_worker_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_CONTROL_FD", "0")
    monkeypatch.setenv("SUBLET_MAX_WORKERS", "4")
    with pytest.raises(InvalidValue, match="3 in the last step"):
        fitted(tmp_path, SubletStrategy(global_batch=8), Module(), loader(43))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1)))


def test_a_stream_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="Stream, a stream"):
        fitted(tmp_path, SubletStrategy(global_batch=8), Module(), DataLoader(Stream(), batch_size=4))
