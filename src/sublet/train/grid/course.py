"""What training has come to beside the units, alike at all members: how far it is, schedules, what the script adds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from sublet.train.grid.remembering import Remembering
from sublet.train.grid.whereabouts import BATCH, CALL, END, STEPPED
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
        self.remembers: Remembering | None = None  # what modules keep for themselves
        self.at, self._behind = BATCH, False  # where the script is; whether it took a state after an evaluation
        self._owed = dict[str, Any]()  # a state to be laid again where it was taken

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
            "at": self.at,
        }

    def take(self, tree: Mapping[str, Any]) -> None:
        """Another's, or that of a checkpoint, which says nothing of how long somebody has trained."""
        for name, value in tree["progress"].items():
            setattr(self._progress, name, value)
        owed = {name: copy.deepcopy(tree.get(name)) for name in ("at", "schedulers", "settings", "extra", "values")}
        self._owed = owed if self._progress.steps else {}  # before the first step everybody is at it
        self._behind = self.at != CALL  # the lines after a step are behind us: they come with the next call
        self._lay(tree)
        if self._saver is not None and tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])

    def seem(self, steps: int, done: int) -> None:
        """Before the last of these steps, `done` samples behind it: so a loop looks at itself that is yet to be told.

        A checkpoint is of right after a step. The lines after that step are the first that count, and compare what is
        then with what they saw before it (`if s.epoch != epoch`).
        """
        progress = self._progress
        progress.epoch, last = divmod(done - 1, progress.samples)
        number = last // progress.batch  # of the step, in its epoch
        progress.steps, progress.offset, progress.before = steps - 1, number * progress.batch, steps - 1 - number

    def begin(self) -> None:
        """At step 0, whatever it has seemed, until told otherwise."""
        progress = self._progress
        progress.steps = progress.epoch = progress.offset = progress.before = 0

    def come_to(self, place: str) -> None:
        """Of the loop. Where a state is of there, what we have passed on our way had run when it was taken."""
        self.at = place
        if place == BATCH and self._owed.get("at") == END:  # it has a loop behind it that ends here, or goes on
            self._lay(copy.deepcopy(self._owed))
        elif self._owed and self.is_there:
            self._lay(self._owed)
            self._owed = {}
        elif place == CALL and self._behind and self._owed.get("at") == STEPPED:
            self._lay(self._owed)
            self._owed, self.at = {}, STEPPED  # as in one that has just joined: no step is made in this call
        elif place == CALL:  # the last of them: it is of one that we do not come by
            self._owed = {}

    @property
    def is_there(self) -> bool:
        """Where its state is of; if not, the loop has yet to come to it."""
        return not self._owed or self._owed["at"] == self.at

    @property
    def to_step(self) -> bool:
        """Whether a step is to be made where we are."""
        return self.at == CALL and self.is_there

    def stepped(self) -> None:
        """A step has been applied: schedules follow it."""
        self._progress.advance()
        self._schedules.step()
        self._progress.scheduled += 1
        self.at = STEPPED

    def _lay(self, tree: Mapping[str, Any]) -> None:
        for scheduler, saved in zip(self._schedules.all, tree["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        for group, settings in zip(self._optimizer.param_groups, tree["settings"], strict=True):
            group.update(settings)
        if self.remembers is not None and tree.get("values") is not None:
            self.remembers.lay(tree["values"])
        if self._extra is not None:
            self._extra.load_state_dict(tree["extra"])
        self._schedules.note()
