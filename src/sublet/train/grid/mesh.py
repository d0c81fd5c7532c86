"""What the workers of a grid say to one another, whoever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sublet.train.state.state import broadcast

__all__ = ["Mesh", "spread"]


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

    def hand(self, memory: torch.Tensor, to: int, tag: int) -> None:
        """State, as bytes: as `send`, in whatever way is shortest."""

    def take(self, memory: torch.Tensor, giver: int, tag: int) -> None:
        """State that another hands over, into this memory; it is there when `settle` returns."""

    def settle(self) -> None:
        """Until all that was sent or handed over has been taken, and all is there that is to be taken."""

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over these workers, in place, the same bits at all of them; nothing to do for one alone."""


def spread(mesh: Mesh, speaker: int, tree: Any, among: Sequence[int] | None = None) -> Any:
    """What one says, a tree of numbers, texts and tensors, at all of these; at all of the mesh if none are named."""
    ranks = range(mesh.world) if among is None else among
    return tree if len(ranks) == 1 else broadcast(_AsGroup(mesh, ranks), speaker, tree)


class _AsGroup:
    """Some of a mesh, of whom one speaks to all: a sum, of which all others are zero."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        self._mesh, self._ranks, self.rank = mesh, ranks, mesh.rank

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if self.rank != source:
            tensor.zero_()
        self._mesh.sum(tensor, self._ranks)
