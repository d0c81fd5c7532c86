"""Lines of an epoch before its batches, in a worker that begins amid it: they run once more, and count once.

    for epoch in s.epochs():
        group["lr"] *= 0.3                   # in epoch 2 for the first time, and in the state since
        for batch in s:                      # where a worker that comes, or comes back, goes on

What they did to anything in the state is in what was restored, and what they do again is undone: before them all of the
state is set aside, and put back when the batches go on. So weights, learning rates, what the script keeps, and random
numbers are as they were after the last step.
"""

from __future__ import annotations

from sublet.train.checkpoint.snapshot import HostCopy, Snapshot
from sublet.train.state import Progress, State

__all__ = ["FirstLines"]


class FirstLines:
    """Of the epochs of one session."""

    def __init__(self, state: State, progress: Progress) -> None:
        self._state, self._progress = state, progress
        self._aside: Snapshot | None = None

    @property
    def run_again(self) -> bool:
        """Whether the script is in them for the second time, and so alone: the others are past them."""
        return self._aside is not None

    @property
    def run_first(self) -> bool:
        """Whether they are still to be run, or to be ended."""
        return self._aside is None and not self._progress.begun

    def begin(self) -> None:
        """The script comes to them."""
        if self._progress.begun or self._progress.offset:  # of an earlier version's state nobody says whether they ran
            self._aside = HostCopy().take(self._state.tree(self._progress, bare=True))

    def end(self) -> None:
        """It comes to the batches: what the lines did counts, unless it had been done before."""
        if self._aside is not None:
            state, self._aside = self._aside.state(), None
            self._state.restore(state, self._progress, same_dice=True)
        self._progress.begun = True
