"""Updated ranges to all workers, after every step: one gathering of equal blocks for each 25 MB of weights.

The holders of a range divide it, so everybody tells about 1/W. What another holder of our own range tells is taken
too, though we have made the same update: so weights are equal to the bit at all workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from sublet.train.private import copy_all
from sublet.train.shards.flat import Flat, Parcel
from sublet.train.shards.ranges import Ranges

__all__ = ["Gather", "Gathers"]

ROUND_BYTES = 25 << 20  # as a bucket of gradients: it is needed beside the weights, once
NUMBER_BYTES = 4  # of most weights, to choose how many go into a round


class Gathers(Protocol):
    """A group in which all tell all."""

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """The block of each, by rank, at all of them."""


@dataclass(frozen=True, slots=True)
class _Round:
    packed: tuple[list[torch.Tensor], list[torch.Tensor]]  # views of our block, and the weights that go there
    opened: tuple[list[torch.Tensor], list[torch.Tensor]]  # weights, and the views that they are in


class Gather:
    """Of one worker in one group."""

    def __init__(self, flat: Flat, ranges: Ranges, rank: int) -> None:
        shares = [ranges.share(each) for each in range(ranges.world)]
        longest = max(end - start for start, end in shares)
        step = max(1, ROUND_BYTES // NUMBER_BYTES // ranges.world)
        cuts = [
            [flat.pieces(min(start + at, end), min(start + at + step, end)) for start, end in shares]
            for at in range(0, longest, step)
        ]
        parcels = [
            [Parcel((flat.parameters[each.parameter].dtype, each.size) for each in pieces) for pieces in cut]
            for cut in cuts
        ]
        block = max((parcel.size_bytes for each in parcels for parcel in each), default=0)
        device = flat.parameters[0].device
        self._mine = torch.zeros(block, dtype=torch.uint8, device=device)
        self._everything = torch.zeros(ranges.world * block, dtype=torch.uint8, device=device)
        self._rounds: list[_Round] = []
        others = [each for each in range(ranges.world) if each != rank]
        for cut, sizes in zip(cuts, parcels, strict=True):
            weights = [[flat.weights(piece) for piece in pieces] for pieces in cut]
            views = [parcel.seen_in(self._everything[n * block : (n + 1) * block]) for n, parcel in enumerate(sizes)]
            packed = (sizes[rank].seen_in(self._mine), weights[rank])
            opened = ([w for n in others for w in weights[n]], [v for n in others for v in views[n]])
            self._rounds.append(_Round(packed, opened))

    def run(self, group: Gathers, point: Callable[[str], None]) -> None:
        """All weights are those after the step."""
        for each in self._rounds:
            copy_all(*each.packed)
            group.gather(self._everything, self._mine)
            point("gathering")
            copy_all(*each.opened)
