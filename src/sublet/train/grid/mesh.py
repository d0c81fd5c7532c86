"""What the workers of a grid say to one another, whoever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

__all__ = ["Mesh"]


class Mesh(Protocol):
    """Workers 0 to `world` - 1. `following.Broken` from whatever waits for one that is gone.

    Sizes are agreed beforehand: who receives has memory of just the size that is sent.
    """

    @property
    def rank(self) -> int:
        """Our number."""

    @property
    def world(self) -> int:
        """How many there are."""

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """It may be written over when this returns only once `settle` has: it is on its way."""

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """Into this memory; waits."""

    def settle(self) -> None:
        """Until all that was sent has been taken."""

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over these workers, in place, the same bits at all of them; nothing to do for one alone."""
