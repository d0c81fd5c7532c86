"""Where in its loop a script is, and how long that loop is: what a session and its strategy both have to know."""

from __future__ import annotations

from sublet.train.sessions.extent import Extent
from sublet.train.state.state import Progress

__all__ = ["Position"]


class Position:
    """Of one session; `progress` is how far training is, `until` is None outside of `epochs()`."""

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
        """Our state is of others now, or an older one: the epoch under way is the one that training is in."""
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
