"""How long a training is: so many epochs, or so many optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.train.state import Progress

__all__ = ["Extent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One of the two is given; both count from the first of the whole training."""

    epochs: int | None = None
    steps: int | None = None

    def over(self, progress: Progress) -> bool:
        """Whether training has come to its end."""
        if self.steps is not None:
            return progress.steps >= self.steps
        return progress.epoch >= (self.epochs or 0)

    def samples(self, progress: Progress) -> int:
        """All there is to train, at the batch that we have: the last step of each epoch may be smaller."""
        if self.steps is None:
            return (self.epochs or 0) * progress.samples
        epochs, rest = divmod(self.steps, -(-progress.samples // progress.batch))
        return epochs * progress.samples + min(rest * progress.batch, progress.samples)
