"""The dice of Python and numpy, by which a script chooses: the same at all workers.

    if random.random() < 0.5:                # by which loss all of a batch is trained
        loss = ...

Torch's are each worker's own, for they make the masks and the noise of its samples. Whoever joins takes Python's and
numpy's over with the state: so they are those of one process, as long as all workers draw alike. Where they may not
have, because some had more samples than others, all throw them anew by the seed and the step. Of a step that is dropped
no draw of Python's counts; numpy's, whose state takes long to set aside at every step, are thrown anew then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sublet.train.state import (
    lay_numpy_dice,
    lay_python_dice,
    numpy_dice,
    python_dice,
    throw_numpy_dice,
    throw_python_dice,
)

__all__ = ["Choices", "choices_kept"]

CHOSEN, DROPPED, LOADED = 1 << 49, 1 << 50, 1 << 51  # far from any other use of the seed
LOOKS = 64  # micro-batches: of one it is looked whether the dataset draws from numpy


class Choices:
    """Of one session."""

    def __init__(self, seed: int) -> None:
        self._seed, self._several, self._alike = seed, False, True
        self._aside: Any = None  # Python's, as they were before the step under way
        self._loads, self._loads_draw = 0, False  # the dataset has drawn from numpy

    def begin(self, world: int, *, alike: bool) -> None:
        """A step of so many workers, who have equally many samples of it, or not."""
        self._several, self._alike = world > 1, alike
        self._aside = python_dice() if self._several else None

    def drop(self, steps: int, *, half: bool) -> None:
        """After so many steps one is made again; or, where it is applied by some (`half`), by the others later."""
        if self._aside is not None and not half:
            lay_python_dice(self._aside)
            throw_numpy_dice(self._seed, DROPPED, steps)
        self._alike = False

    def end(self, steps: int) -> None:
        """It is made, of the whole training the one of this number."""
        if self._several and not self._alike:
            throw_python_dice(self._seed, CHOSEN, steps)
            throw_numpy_dice(self._seed, CHOSEN, steps)

    @contextmanager
    def apart(self, steps: int, start: int, *, draws: bool) -> Iterator[None]:
        """What is drawn within, if anything may be, is for the samples from this one on, and for nobody else's."""
        if not (self._several and draws):
            yield
            return
        looks = self._loads_draw or self._loads % LOOKS == 0
        python, numpy = python_dice(), numpy_dice() if looks else None
        self._loads += 1
        throw_python_dice(self._seed, LOADED, steps, start)
        if self._loads_draw:
            throw_numpy_dice(self._seed, LOADED, steps, start)
        try:
            yield
        finally:
            lay_python_dice(python)
            if looks:
                self._loads_draw = self._loads_draw or _moved(numpy)
                lay_numpy_dice(numpy)


@contextmanager
def choices_kept(world: int) -> Iterator[None]:
    """Of several workers each has a part in what is done within, and may draw more than another."""
    was = (python_dice(), numpy_dice()) if world > 1 else None
    try:
        yield
    finally:
        if was is not None:
            lay_python_dice(was[0])
            lay_numpy_dice(was[1])


def _moved(numpy: Any) -> bool:
    """Whether they are others by now."""
    _, keys, *rest = numpy_dice()
    return rest != [*numpy[2:]] or bool((keys != numpy[1]).any())
