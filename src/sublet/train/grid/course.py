"""What training has come to beside the units, alike at all members: how far it is, schedules, what the script keeps."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import random_state, restore_choices
from sublet.train.state.state import TRAINED_S, Progress, State

__all__ = ["Course", "settings_of"]


class Course:
    """Of one worker. Buffers of the model's state are the same in all parts, since no forward changes them."""

    def __init__(self, state: State, progress: Progress, schedules: Schedules, saver: Saver) -> None:
        self._state, self._progress, self._schedules, self._saver = state, progress, schedules, saver

    def tree(self) -> dict[str, Any]:
        """Of now."""
        return {
            "progress": {name: value for name, value in asdict(self._progress).items() if name != "noise"},
            "schedulers": [scheduler.state_dict() for scheduler in self._schedules.all],
            "settings": settings_of(self._state.optimizer.param_groups),
            "frozen": [name for name, each in self._state.model.named_parameters() if not each.requires_grad],
            "extra": None if self._state.extra is None else self._state.extra.state_dict(),
            "buffers": _buffers_of(self._state.model),
            "random": random_state(),
            TRAINED_S: self._saver.trained_s,
        }

    def take(self, tree: Mapping[str, Any]) -> None:
        """Another's, or that of a checkpoint, which says nothing of how long anybody has trained."""
        for name in tree["progress"].keys() & {each.name for each in fields(Progress)}:
            setattr(self._progress, name, tree["progress"][name])
        for scheduler, saved in zip(self._schedules.all, tree["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))
        for group, settings in zip(self._state.optimizer.param_groups, tree["settings"], strict=True):
            group.update(copy.deepcopy(settings))
        if (frozen := tree.get("frozen")) is not None:  # a checkpoint of an earlier version does not say it
            for name, parameter in self._state.model.named_parameters():
                parameter.requires_grad_(name not in frozen)
        if self._state.extra is not None:
            self._state.extra.load_state_dict(tree["extra"])
        with torch.no_grad():
            for name, buffer in _buffers_of(self._state.model).items():
                buffer.copy_(tree["buffers"][name])
        if tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])
        restore_choices(tree["random"])
        self._schedules.note()

    def stepped(self) -> None:
        """A step has been applied: schedules follow it."""
        self._progress.advance()
        self._schedules.end_step(self._progress, self._progress.steps)


def settings_of(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the groups of an optimizer all but their parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in groups]


def _buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those of its state."""
    stored = model.state_dict().keys()
    return {name: each for name, each in model.named_buffers(remove_duplicate=False) if name in stored}
