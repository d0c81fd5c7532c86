"""Random numbers of a forward that depend neither on its cut nor on what was before.

They are thrown anew where an atom begins, where a block begins, and where a block, or a module around the blocks, has
ended: by (seed, step, atom, place). So what is drawn outside of the blocks, a mask for all of them or one for each, is
the same in every part, though each part runs but some of the modules. Where an atom begins, those of Python and numpy
are thrown too, from which samples may be drawn or changed: every part loads its own.
"""

from __future__ import annotations

from collections import Counter

import torch

from sublet.train.grid.atoms import Atom
from sublet.train.samples import mixed, seed_from, stirred
from sublet.train.state import reseed_host

__all__ = ["Dice"]

LEFT = 1 << 32  # what is drawn after a module has ended, far from what is drawn within one


class Dice:
    """Of one worker."""

    def __init__(self, seed: int) -> None:
        self._seed, self._stir = seed, 0
        self._left = Counter[int]()  # how often each place was left, in this atom

    def begin(self, step: int, atom: Atom) -> None:
        """The forward of an atom, from its samples on."""
        self.resume(step, atom)
        reseed_host(self._seed, step, atom.start, 0)
        _throw_on_gpu(mixed(self._seed, step, atom.start, 0))

    def resume(self, step: int, atom: Atom) -> None:
        """The same one, in a later pass: activations may be computed again."""
        self._stir = stirred(0, self._seed, step, atom.start)
        self._left.clear()

    def enter(self, block: int) -> None:
        """A block begins; one more than the last is what comes after all of them."""
        _throw(seed_from(stirred(self._stir, block + 1)))

    def leave(self, place: int) -> None:
        """A block has ended, or a module around them."""
        again, self._left[place] = self._left[place], self._left[place] + 1
        _throw(seed_from(stirred(self._stir, LEFT + place, again)))


def _throw(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would ask for every kind of device each time
    _throw_on_gpu(seed)


def _throw_on_gpu(seed: int) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no type
        torch.cuda.manual_seed(seed)
