"""Checks of a Trainer and of Lightning itself, before anything is trained with the strategy."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from torch.utils.data import DataLoader

from sublet.errors import InvalidValue
from sublet.integrations.checks import require_map_style

TESTED = ">=2.6,<3"  # as in pyproject.toml
COUNTERS = ("ready", "started", "processed", "completed")
NAMES = (  # of a Trainer: its counters, which follow the session's
    *(f"fit_loop.epoch_progress.{span}.{name}" for span in ("current", "total") for name in COUNTERS),
    *(f"fit_loop.epoch_loop.batch_progress.{span}.{name}" for span in ("current", "total") for name in COUNTERS),
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.ready",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
    "fit_loop.epoch_loop.batch_progress.is_last_batch",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_loop._skip_next_val",
    "fit_loop._combined_loader",
    "fit_loop._data_fetcher",
    "precision_plugin._after_closure",
)


def gone(trainer: Any, names: tuple[str, ...] = NAMES) -> list[str]:
    """Names that a Trainer no longer has."""
    found = []
    for name in names:
        thing = trainer
        for part in name.split("."):
            if not hasattr(thing, part):
                found.append(f"Trainer.{name}")
                break
            thing = getattr(thing, part)
    return found


def check_names(trainer: Any) -> None:
    """InvalidValue that names missing ones."""
    missing = gone(trainer)
    if missing:
        raise InvalidValue("lightning", f"{version('lightning')}, without {', '.join(missing)}", f"a version {TESTED}")


def check_trainer(trainer: Any, module: Any) -> None:
    """InvalidValue unless the Trainer makes one step per batch, over all batches."""
    if not module.automatic_optimization:
        _refuse("automatic_optimization", "False", "True: the session makes the step, after the sum over all workers")
    if trainer.accumulate_grad_batches != 1:
        _refuse("accumulate_grad_batches", trainer.accumulate_grad_batches, "1: global_batch says the batch of a step")
    if trainer.limit_train_batches != 1.0 or trainer.overfit_batches or trainer.fast_dev_run:
        _refuse("limit_train_batches", trainer.limit_train_batches, "1.0: an epoch is trained to its end")
    if trainer.reload_dataloaders_every_n_epochs:
        _refuse("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs, "0")
    if trainer.max_steps < 0 and (trainer.max_epochs or -1) < 0:
        _refuse("max_epochs", trainer.max_epochs, "said, or max_steps: what is left is planned with")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        _refuse("precision", "16-mixed", "'bf16-mixed' or '32-true'")
    if len(trainer.optimizers) != 1:
        _refuse("optimizers", len(trainer.optimizers), "1, from configure_optimizers")
    configs = trainer.lr_scheduler_configs
    if any(config.reduce_on_plateau for config in configs):
        _refuse("scheduler", "ReduceLROnPlateau", "one that follows from the step or the epoch")
    if any(config.frequency != 1 for config in configs) or len({config.interval for config in configs}) > 1:
        told = [(config.interval, config.frequency) for config in configs]
        _refuse("lr_scheduler", told, "all with one interval, 'step' or 'epoch', and frequency 1")


def check_loader(loader: Any, global_batch: int) -> None:
    """InvalidValue if a worker might have no part in the last step of an epoch: Lightning would miss its end."""
    if not isinstance(loader, DataLoader):
        _refuse("train_dataloaders", type(loader).__name__, "one torch DataLoader")
    require_map_style("train_dataloaders", loader.dataset)
    most = int(os.environ.get("SUBLET_MAX_WORKERS", "2")) if "SUBLET_CONTROL_FD" in os.environ else 1
    samples = len(loader.dataset)
    rest = 0 if loader.drop_last else samples % global_batch
    if min(global_batch, samples) < most or 0 < rest < most:
        _refuse(
            "train_dataloaders",
            f"{samples} samples, {rest or global_batch} in the last step of an epoch",
            f"at least one for each of {most} workers in every step: drop_last=True, or another global_batch",
        )


def _refuse(field: str, value: Any, allowed: str) -> None:
    raise InvalidValue(field, value, allowed)
