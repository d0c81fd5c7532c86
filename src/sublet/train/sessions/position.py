"""How long a training is, so many epochs or optimizer steps, and where in its loop the script is."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.train.sessions.options import Options
from sublet.train.state.state import Progress
from sublet.wire.messages import is_profiled
from sublet.wire.rehearsal import cue_here

ENDLESS = 10**9  # epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One of the two is given; both count from the first of the whole training."""

    epochs: int | None = None
    steps: int | None = None
    most: int = 0  # steps of a rehearsal, where it is over sooner; 0 = it is none

    @property
    def name(self) -> str:
        """As the argument of the session."""
        return f"epochs={self.epochs}" if self.steps is None else f"steps={self.steps}"

    def over(self, progress: Progress) -> bool:
        """Whether nothing is left to train: all is made, or the script has ended a training of this very length."""
        return self.reached(progress) or progress.ended == self.name

    def end(self, progress: Progress) -> None:
        """The script has left its loop for good: a worker that starts later has nothing to train.

        Not if no step was made: then nothing was trained that could be over.
        """
        if progress.steps and not self.reached(progress):
            progress.ended = self.name

    def reached(self, progress: Progress) -> bool:
        """Whether training has come to its end."""
        if 0 < self.most <= progress.steps:
            return True
        if self.steps is not None:
            return progress.steps >= self.steps
        return progress.epoch >= (self.epochs or 0)

    def samples(self, progress: Progress) -> int:
        """All there is to train, at the batch that we have: the last step of each epoch may be smaller."""
        if self.steps is None:
            return (self.epochs or 0) * progress.samples
        epochs, rest = divmod(self.steps, -(-progress.samples // progress.batch))
        return epochs * progress.samples + min(rest * progress.batch, progress.samples)


def extent_of(options: Options, epochs: int | None = None) -> Extent:
    """From the options of the session and the argument of batches()."""
    if epochs is not None:
        whole("epochs", epochs, 1)
    total = epochs or options.epochs
    cue = cue_here()
    most = 0 if cue is None else cue.steps
    if options.steps is not None and total is None:
        return Extent(steps=options.steps, most=most)
    if total is None or options.steps is not None or (options.epochs or total) != total:
        raise InvalidValue("epochs", epochs, "said once: train.session(..., epochs=10), or steps=1000")
    return Extent(epochs=ENDLESS if is_profiled() else total, most=most)


def begin(extent: Extent, progress: Progress, directory: object, *, speaks: bool) -> None:
    """A training begins with this state: of another length than one that was ended it trains on; if over, say so."""
    if not extent.over(progress):
        progress.ended = ""
        return
    if speaks:
        how = f"is finished ({progress.steps} steps)"
        if not extent.reached(progress):
            how = f"was ended by its script, which left its loop after {progress.steps} steps of {extent.name}"
        print(  # noqa: T201 - to the user, in the user's process
            f"sublet: the training in {directory} {how}: there is nothing left to train\n"
            "  next: go on with its result; to train anew, give another checkpoint_dir, or remove this one; to train "
            "on, other epochs or steps",
            file=sys.stderr,
            flush=True,
        )


class Position:
    """The position of one session; `until` is None outside of `epochs()`."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.extent = Extent(epochs=0)  # of the whole training
        self.until: int | None = None  # epochs that are over when the one under way is
        self.is_behind = False  # this worker does the first lines of an epoch which the others have behind them
        self.is_left = False  # the others have left training
        self.probes = False  # what the script is given has no weight: the session looks at its loss (`probe`)

    @property
    def over(self) -> bool:
        """Whether nothing is left to train."""
        return self.is_left or self.extent.over(self.progress)

    @property
    def through(self) -> bool:
        """Whether the epoch is, or all of training."""
        return self.over or (self.until is not None and self.progress.epoch >= self.until)

    def arrive(self) -> None:
        """Our state is another's now, or an older one: the epoch under way is the one that training is in."""
        if self.until is not None:
            self.until = self.progress.epoch + 1

    @property
    def past_epoch(self) -> bool:
        """Within epochs(): the batches of the epoch are behind us, and what the script does after them is not."""
        return self.until is not None and self.through

    @property
    def between_batches(self) -> bool:
        """Within epochs(): all workers are between the batches of two epochs, those without samples too."""
        return self.past_epoch or (self.until is not None and not self.progress.begun)
