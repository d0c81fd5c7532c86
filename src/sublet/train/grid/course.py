"""What training has come to beside the units, alike at all members: how far it is, schedules, what the script adds.

Who takes a state over has its loop elsewhere (`whereabouts`): the pass that it is in is *astray*, and the next one goes
over the last step of the state once more, without making it. Both see what was right after that step (`stepped`), and
so the lines after it do, and leave undone, what they did at the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.grid.losses import Losses
from sublet.train.grid.noting import BEGAN
from sublet.train.grid.remembering import Remembering
from sublet.train.grid.whereabouts import BATCH, CALL, END, STEPPED, number_of
from sublet.train.kept import Own
from sublet.train.membership import TRAINED_S
from sublet.train.saving import Saver
from sublet.train.schedules import Schedules
from sublet.train.state import Progress

__all__ = ["Course"]

OF_THE_PLACE = ("at", "schedulers", "settings", "extra", "values", "stepped")  # where in the loop it was taken
UNKNOWN = Losses(math.nan)
PLAIN = frozenset((bool, int, float, str, type(None)))
FOLLOWS = (
    "left by what follows from s.steps, s.epoch, s.loss, evaluations and what is kept (s.keep): a worker that joins "
    "comes by the lines after the last step in passes that make none, and must not be the only one to leave there; an "
    "evaluation that is not a number is no answer yet (if loss == loss and ...)"
)
OVER = (
    "left in a pass that has seen what was before its step: the first after a start from a checkpoint has not "
    "(prev = s.loss is not a number there, and rates, attributes and dice are those of a first start), so let it hang "
    "on what is there after the step, and on what is kept; if the loop was to be left after just this step, training "
    "is over, and the checkpoint has all of it"
)


class Course:
    """As `member.Beside` says."""

    def __init__(
        self,
        progress: Progress,
        schedules: Schedules,
        optimizer: torch.optim.Optimizer,
        own: Own | None,
        saver: Saver | None = None,
    ) -> None:
        self._progress, self._schedules, self._optimizer, self._own = progress, schedules, optimizer, own
        self._saver = saver
        self.remembers: Remembering | None = None  # what modules keep for themselves
        self.at = BATCH  # where the script is
        self._owed = dict[str, Any]()  # a state to be laid again where it was taken
        self._stepped: dict[str, Any] | None = None  # what was right after the last step
        self._began: dict[str, Any] | None = None  # what was where the batch of that step began, with the loss then
        self._begins: dict[str, Any] | None = None  # and where that of the next one does
        self._has_called = self._has_looked = False  # for a step; and at what may be another than it was, before that
        self._judged: Iterator[float] = iter(())  # evaluations before that step, in a pass that goes over it
        self._called = copy.copy(progress)  # what the loop saw when it called for a step
        self._seems: Progress | None = None  # what it sees, where that is not how far training is
        self.given = self.gave = ""  # which function, with what, for the step under way; and for the last one
        self._astray = False  # in this pass; in the next one the loop sees what it saw before the last step

    # ------------------------------------------------------------------------------------------ states

    def tree(self) -> dict[str, Any]:
        """Of now; of one whose loop has yet to come to where it was taken, as it was."""
        now = {
            "progress": {name: value for name, value in asdict(self._progress).items() if name != "noise"},
            "schedulers": [scheduler.state_dict() for scheduler in self._schedules.all],
            "settings": self._settings(),
            "extra": None if self._own is None else self._own.state_dict(),
            TRAINED_S: None if self._saver is None else self._saver.trained_s,
            "at": self.at,
            "stepped": self.stepped_before,
            "began": self.began,
            "given": self.gave,
        }
        return now | {name: value for name, value in self._owed.items() if name != "values"}

    @property
    def stepped_before(self) -> dict[str, Any] | None:
        """What was right after the last step, for who takes a state of a later place; None: the state is of there."""
        return None if self.at == STEPPED else self._stepped

    @property
    def began(self) -> dict[str, Any] | None:
        """What was where the batch of the last step began, as a state has it."""
        return None if self._began is None else {**self._began, "loss": self._began["loss"].total()}

    def take(self, tree: Mapping[str, Any]) -> None:
        """Another's, or that of a checkpoint, which says nothing of how long somebody has trained."""
        progress = self._progress
        was, called = copy.copy(self._called if self.at == CALL else self.seen), self.at == CALL
        for name, value in tree["progress"].items():
            setattr(progress, name, value)
        self._owed = {name: copy.deepcopy(tree.get(name)) for name in OF_THE_PLACE}
        began = copy.deepcopy(tree.get("began"))
        self._began = began and {**began, "loss": Losses(began["loss"])}
        self.gave = tree.get("given") or ""
        same = called and was.steps == progress.steps and (tree["at"] == CALL or not progress.steps)
        if same or self.at == END:
            self._seems, self._owed = None, {}
            self._lay(tree)
        elif called and was.steps + 1 == progress.steps:  # as if it had made the step: this pass is the one of it
            if self.remembers is not None:
                self.remembers.note_step()
            self._go_on_from_step()
        else:
            ends = not progress.offset and tree["at"] != STEPPED  # if not: evaluations at its end are not known yet
            self._seems = replace(progress) if ends else replace(progress, epoch=was.epoch)
            self._astray, self.at = True, STEPPED
            self._has_looked |= not self._saw_as_it_was(tree)
            self._lay_stepped()
        if self._saver is not None and tree.get(TRAINED_S) is not None:
            self._saver.take_over(tree[TRAINED_S])

    # ------------------------------------------------------------------------------------------ the loop

    @property
    def seen(self) -> Progress:
        """How far the loop sees itself."""
        return self._seems or self._progress

    def looked_at(self) -> Progress:
        """By the script: how far it sees itself."""
        self._has_looked |= not self._has_called
        return self.seen

    @property
    def counts(self) -> bool:
        """Whether the lines that run are of the pass in which they count; nobody waits for what others do."""
        return self._seems is None

    @property
    def goes_over(self) -> bool:
        """Whether these are lines before the last step, in the pass that goes over it: what it came to is there."""
        return self._seems is not None and not self._astray

    @property
    def loss_before(self) -> float | None:
        """The loss as those lines saw it; None: it is that of the last step."""
        return self._began["loss"].total() if self.goes_over and self._began is not None else None

    def judged_before(self) -> float:
        """What the next evaluation of those lines came to when they ran; not a number if nobody knows."""
        return next(self._judged, math.nan)

    def noted(self, judged: float) -> float:
        """An evaluation has come to it: of those since a batch began, the first are of lines before its step."""
        if self._begins is not None:  # of a pass that makes no step, it is not used: the next begins anew
            self._begins["judged"].append(judged)
        return judged

    def seem(self, steps: int, done: int) -> None:
        """Before the last of these steps, `done` samples behind it: so a loop looks at itself that goes over it.

        The lines after that step compare what is then with what they saw before it (`if s.epoch != epoch`).
        """
        progress = self._progress
        epoch, last = divmod(done - 1, progress.samples)
        number = last // progress.batch  # of the step, in its epoch
        offset, before = number * progress.batch, steps - 1 - number
        self._seems = replace(progress, steps=steps - 1, epoch=epoch, offset=offset, before=before)

    def come_to(self, place: str, losses: Losses = UNKNOWN) -> None:
        """Of the loop, with those of its last step. Where a state is of there, what we have passed had run there."""
        self.at = place
        if place == BATCH and self._astray:
            self._astray, self._seems = False, None
            if self._progress.steps:  # before the first everybody is at it
                self.seem(self._progress.steps, self._progress.done)
                if self._began is not None:
                    self._judged = iter(self._began.get("judged", ()))
                    self._lay(copy.deepcopy({**self._began, "values": self._owed.get("values")}), BEGAN)
        if place == CALL and not self._has_called:
            self._has_called, self._has_looked = True, self._has_looked or (self._own is not None and self._own.is_read)
        if place == CALL:
            again, self._called, self._seems = self._seems is not None, copy.copy(self.seen), None
            if again and self._owed:
                self._go_on_from_step()
                return
        if not self.counts:
            return
        if place == BATCH and self._owed.get("at") == END:  # it has a loop behind it that ends here, or goes on
            self._lay(copy.deepcopy(self._owed))
        elif self._owed and self.is_there:
            self._lay(self._owed)
            self._owed = {}
        elif place == CALL:  # the last of them: it is of one that we do not come by
            self._owed = {}
        if place == BATCH:
            self._begins = {**self._small(), "loss": losses, "judged": []}  # nobody looks at losses before then
            if self.remembers is not None:
                self.remembers.note_batch()

    @property
    def is_there(self) -> bool:
        """Where its state is of; if not, the loop has yet to come to it."""
        return not self._owed or (self.counts and self._owed["at"] == self.at)

    @property
    def to_step(self) -> bool:
        """Whether a step is to be made where we are."""
        return self.at == CALL and self.is_there

    def stepped(self) -> None:
        """A step has been applied: schedules follow it."""
        self._progress.advance()
        self._schedules.step()
        self._progress.scheduled += 1
        self._owed, self._seems, self._astray, self.gave = {}, None, False, self.given
        self.at, self._stepped, self._began = STEPPED, self._small(), self._begins
        if self.remembers is not None:
            self.remembers.note_step()

    def leave(self, *, alike: bool, judged: int) -> None:
        """The loop is left, after a call. In a pass that makes no step that is right where the others have left theirs.

        So it is where their state is of an evaluation, or of the end; what comes from here on counts. But not by an
        evaluation that they have yet to make, with us: what so many since the step came to is known. Where all have
        begun with a checkpoint, of right after a step, and are in this pass `alike`, it is what the lines after that
        step come to, if none before it has looked at anything: it has seen a first start.
        """
        owed = self._owed.get("at", CALL)
        if self.counts or self.goes_over or owed in (BATCH, CALL):
            return
        if owed == STEPPED and (self._has_looked or not alike):
            return
        behind = 0 <= number_of(owed) <= number_of(self.at)
        if behind and judged <= number_of(owed):
            return
        self._seems, self._astray = None, False
        if owed == STEPPED or behind:
            self._owed = {}

    def require_counted(self) -> None:
        """InvalidValue if the loop is left in a pass that counts for nothing, while the others train on."""
        if not (self.is_there and self.counts) and self._owed.get("at") != END:
            hint = OVER if self._astray and self._owed.get("at") == STEPPED else FOLLOWS
            raise InvalidValue("the loop", f"left at step {self._progress.steps} in a pass that makes no step", hint)

    def _saw_as_it_was(self, tree: Mapping[str, Any]) -> bool:
        """Whether lines before the first call have seen rates, schedules and modules as before the last step.

        Nobody sees who reads these. If they are as they were, it does not matter.
        """
        began, begins = tree.get("began"), self._begins
        if began is None or begins is None or any((tree.get("values") or {}).values()):
            return False
        return all(repr(began[name]) == repr(begins[name]) for name in ("schedulers", "settings"))

    # ------------------------------------------------------------------------------------------ laying

    def _go_on_from_step(self) -> None:
        """The lines after the last step come next, as they came at those whose state we have."""
        self._astray, self._seems, self.at = False, None, STEPPED
        self._lay_stepped()
        if self._owed["at"] == STEPPED:
            self._owed = {}

    def _lay_stepped(self) -> None:
        """What was right after the step; what is large, as it was when the state was taken."""
        self._lay(copy.deepcopy(self._owed), STEPPED)
        if self._owed.get("stepped") is not None:
            self._lay(copy.deepcopy(self._owed["stepped"]))
        self._stepped = self._small()

    def _small(self) -> dict[str, Any]:
        """What a script may decide by, copied: a few numbers, as it is done in every step."""
        return {
            "schedulers": [_copied(scheduler.state_dict()) for scheduler in self._schedules.all],
            "settings": _copied(self._settings()),
            "small": None if self._own is None else self._own.small(),
        }

    def _settings(self) -> list[dict[str, Any]]:
        groups = self._optimizer.param_groups
        return [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def _lay(self, tree: Mapping[str, Any], moment: str = "") -> None:
        for scheduler, saved in zip(self._schedules.all, tree["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        for group, settings in zip(self._optimizer.param_groups, tree["settings"], strict=True):
            group.update(settings)
        if self.remembers is not None and tree.get("values") is not None:
            self.remembers.lay(tree["values"], moment=moment)
        if self._own is not None and "extra" in tree:
            self._own.load_state_dict(tree["extra"])
        if self._own is not None and tree.get("small") is not None:
            self._own.load_small(tree["small"])
        self._schedules.note()


def _copied(value: Any) -> Any:
    """As `copy.deepcopy`, but quick for what is most often there."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return {name: _copied(each) for name, each in value.items()}
    return kind(map(_copied, value)) if kind in (list, tuple) else copy.deepcopy(value)
