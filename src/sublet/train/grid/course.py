"""What training has come to beside the units, alike at all members: how far it is, schedules, what the script keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.link.membership import TRAINED_S
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import random_state, restore_choices
from sublet.train.state.kept import Own
from sublet.train.state.state import Progress

__all__ = ["Course"]


class Course:
    """Of one worker. Buffers of `model` are the same in all parts, since no forward changes them."""

    def __init__(
        self,
        progress: Progress,
        schedules: Schedules,
        optimizer: torch.optim.Optimizer,
        own: Own | None,
        saver: Saver | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        self._progress, self._schedules, self._optimizer, self._own = progress, schedules, optimizer, own
        self._saver, self._buffers = saver, {} if model is None else _buffers_of(model)

    def tree(self) -> dict[str, Any]:
        """Of now."""
        return {
            "progress": {name: value for name, value in asdict(self._progress).items() if name != "noise"},
            "schedulers": [scheduler.state_dict() for scheduler in self._schedules.all],
            "settings": [_settings(group) for group in self._optimizer.param_groups],
            "extra": None if self._own is None else self._own.state_dict(),
            "buffers": {name: getattr(module, leaf) for name, (module, leaf) in self._buffers.items()},
            "random": random_state(),
            TRAINED_S: None if self._saver is None else self._saver.trained_s,
        }

    def take(self, tree: Mapping[str, Any]) -> None:
        """Another's, or that of a checkpoint, which says nothing of how long anybody has trained."""
        for name in tree["progress"].keys() & {each.name for each in fields(Progress)}:
            setattr(self._progress, name, tree["progress"][name])
        for scheduler, saved in zip(self._schedules.all, tree["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))
        for group, settings in zip(self._optimizer.param_groups, tree["settings"], strict=True):
            group.update(copy.deepcopy(settings))
        if self._own is not None:
            self._own.load_state_dict(tree["extra"])
        with torch.no_grad():
            for name, saved in tree["buffers"].items():
                if name in self._buffers:
                    module, leaf = self._buffers[name]
                    getattr(module, leaf).copy_(saved)
        if self._saver is not None and tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])
        restore_choices(tree["random"])
        self._schedules.note()

    def stepped(self) -> None:
        """A step has been applied: schedules follow it."""
        self._progress.advance()
        self._schedules.end_step(self._progress, self._progress.steps)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _buffers_of(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, str]]:
    """Those of its state, by name, and where each is found, whatever stands in place of its module meanwhile."""
    stored = model.state_dict().keys()
    found = {}
    for name, _ in model.named_buffers(remove_duplicate=False):
        path, _, leaf = name.rpartition(".")
        if name in stored:
            found[name] = model.get_submodule(path), leaf
    return found
