"""Who proves that a model may be cut, and how the others hear of it: once, where a training begins.

The first of those who meet runs it, since all have the whole model then, and tells the rest, who wait. Whoever joins
later takes it as shown; and so does who goes on from a checkpoint in which it is written down of just this model
(`mark`). One that was written without parts, or by another script, says nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.grid.atoms import Atom, loaded
from sublet.train.grid.cutting import Cut
from sublet.train.grid.dice import Dice
from sublet.train.grid.mesh import Mesh, spread
from sublet.train.grid.proof import Proof, Short
from sublet.train.grid.room import room_bytes
from sublet.train.link import ControllerLink
from sublet.train.samples import Samples
from sublet.train.state import Progress

__all__ = ["Proving"]

NO_ROOM = (
    "whether the model is trained in parts as in one piece was not tried: it does not fit uncut, with its gradients "
    "and a sample, into the memory of one worker. What goes from block to block was looked at without numbers"
)


class Proving:
    """Of one session, whose script is busy meanwhile."""

    def __init__(
        self,
        cut: Cut,
        atoms: Sequence[Atom],
        samples: Samples,
        loss_of: Callable[[Any, Atom], torch.Tensor],
        link: ControllerLink,
        progress: Progress,
        mark: Callable[[], str],
    ) -> None:
        device = next(cut.model.parameters()).device
        self._proof = Proof(cut, atoms, partial(loaded, samples, 0), loss_of, partial(room_bytes, device))
        self._link, self._progress, self._mark = link, progress, mark

    def __call__(self, mesh: Mesh, dice: Dice, before: str = "") -> str:
        """With all of the mesh, before anything is trained; `before` is the mark of what was proved already.

        What is proved now, "" if nothing is. InvalidValue, at all of them.
        """
        refused, proved = self._tried(dice, before) if mesh.rank == 0 else (None, "")
        why = refused and [refused.field, str(refused.value), refused.allowed]
        said = spread(mesh, 0, {"refused": why, "proved": proved})
        if refused is not None:
            raise refused
        if said["refused"] is not None:
            raise InvalidValue(*said["refused"])
        self._progress.proved = said["proved"]
        return self._progress.proved

    def _tried(self, dice: Dice, before: str) -> tuple[InvalidValue | None, str]:
        mark = self._mark()
        if mark == before:
            return None, mark
        self._link.script_goes_on()
        try:
            return None, mark if self._prove(dice) else ""
        except InvalidValue as error:
            return error, ""
        finally:
            self._link.script_waits()

    def _prove(self, dice: Dice) -> bool:
        """Whether it was tried with numbers."""
        try:
            self._proof.prove(dice)
        except Short:
            print(f"sublet: {NO_ROOM}", file=sys.stderr, flush=True)  # noqa: T201 - to the user, in the user's process
            self._proof.look()
            return False
        return True
