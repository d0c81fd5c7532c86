"""What training has come to beside the units, alike at all members: how far it is, schedules, what the script adds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from sublet.train.membership import TRAINED_S
from sublet.train.saving import Saver
from sublet.train.schedules import Schedules
from sublet.train.state import Progress

__all__ = ["Course"]


class Course:
    """As `member.Beside` says."""

    def __init__(
        self,
        progress: Progress,
        schedules: Schedules,
        optimizer: torch.optim.Optimizer,
        extra: Any,
        saver: Saver | None = None,
    ) -> None:
        self._progress, self._schedules, self._optimizer, self._extra = progress, schedules, optimizer, extra
        self._saver = saver

    def tree(self) -> dict[str, Any]:
        """Of now."""
        return {
            "progress": {name: value for name, value in asdict(self._progress).items() if name != "noise"},
            "schedulers": [scheduler.state_dict() for scheduler in self._schedules.all],
            "settings": [
                {name: value for name, value in group.items() if name != "params"}
                for group in self._optimizer.param_groups
            ],
            "extra": None if self._extra is None else self._extra.state_dict(),
            TRAINED_S: None if self._saver is None else self._saver.trained_s,
        }

    def take(self, tree: dict[str, Any]) -> None:
        """Another's, or that of a checkpoint, which says nothing of how long somebody has trained."""
        for name, value in tree["progress"].items():
            setattr(self._progress, name, value)
        for scheduler, saved in zip(self._schedules.all, tree["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        for group, settings in zip(self._optimizer.param_groups, tree["settings"], strict=True):
            group.update(settings)
        if self._extra is not None:
            self._extra.load_state_dict(tree["extra"])
        if self._saver is not None and tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])
        self._schedules.note()

    def stepped(self) -> None:
        """A step has been applied: schedules follow it."""
        self._progress.advance()
        self._schedules.step()
        self._progress.scheduled += 1
