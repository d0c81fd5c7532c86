"""The dice of Python and numpy, by which a script chooses: the same at all workers.

    if random.random() < 0.5:                # by which loss all of a batch is trained
        loss = ...

Torch's are each worker's own, for they make the masks and the noise of its samples. Whoever joins takes Python's and
numpy's over with the state, and a step that is dropped leaves them as they were: so they are those of one process, as
long as all workers draw alike. Where they may not have, because some had more samples than others, all throw them anew
by the seed and the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sublet.train.state import choices_of_host, host_dice_kept, lay_choices, reseed_choices, reseed_host

__all__ = ["Choices", "choices_kept"]

CHOSEN, LOADED = 1 << 49, 1 << 50  # far from any other use of the seed


class Choices:
    """Of one session."""

    def __init__(self, seed: int) -> None:
        self._seed, self._several, self._alike = seed, False, True
        self._aside: Any = None  # as they were before the step under way

    def begin(self, world: int, *, alike: bool) -> None:
        """A step of so many workers, who have equally many samples of it, or not."""
        self._several, self._alike = world > 1, alike
        self._aside = choices_of_host() if self._several else None

    def drop(self, *, half: bool) -> None:
        """The step is made again; or, where a part of it is applied (`half`), by some now and by others later."""
        if self._aside is not None and not half:
            lay_choices(self._aside)
        self._alike = False

    def end(self, steps: int) -> None:
        """It is made, of the whole training the one of this number."""
        if self._several and not self._alike:
            reseed_choices(self._seed, CHOSEN, steps)

    @contextmanager
    def apart(self, steps: int, start: int, *, draws: bool) -> Iterator[None]:
        """What is drawn within, if anything may be, is for the samples from this one on, and for nobody else's."""
        if not (self._several and draws):
            yield
            return
        with host_dice_kept():
            reseed_host(self._seed, LOADED, steps, start)
            yield


@contextmanager
def choices_kept(world: int) -> Iterator[None]:
    """Of several workers each has a part in what is done within, and may draw more than another."""
    was = choices_of_host() if world > 1 else None
    try:
        yield
    finally:
        if was is not None:
            lay_choices(was)
