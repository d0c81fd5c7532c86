"""Whether a part of a model that is cut fits into the memory of a GPU, and so how many parts it needs at least.

A worker has the state of its part, the gradients beside it, and in a pipeline as a rule the state of one part more,
which it keeps for others. The rest is activations. The first part of a pipeline has as many micro-batches under way as
there are parts, each over its share of the blocks: as much as one over the whole model, at any depth. So what was
measured beside the state in one grid counts in all.

Unstated values are learned: sizes from the first session, activations from the first steps, and a depth that ran out of
memory is not tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from sublet.domain.seats import borders
from sublet.domain.units import GIB

ROOM = 0.9  # of a device, for what is counted: memory has gaps, and libraries take some that is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMemory:
    """The knowledge of one job's memory.

    `blocks`, where asked for, are bytes of weights and moments of each, () = not known.
    """

    device_bytes: int = 0  # of a GPU; 0 = not known
    gradient_bytes: int = 0  # of the whole model
    beside_bytes: int = 0  # most beside the state that was measured
    failed: int = 0  # in so many parts, and in fewer, it ran out of memory
    worked: int = 0  # in so many it made steps, whatever was counted; 0 = not yet

    def needed_bytes(self, blocks: Sequence[int], parts: int) -> float:
        """At most, of a worker that has one of so many parts."""
        up_to = [0]
        for size in blocks:
            up_to.append(up_to[-1] + size)
        largest = max(up_to[high] - up_to[low] for low, high in pairwise(borders(len(blocks), parts)))
        state = largest * (1.0 + self.gradient_bytes / max(1, up_to[-1]))
        return state * (1 if parts == 1 else 2) + self.beside_bytes

    def fits(self, blocks: Sequence[int], parts: int) -> bool:
        """As far as anybody knows."""
        if parts <= self.failed or (blocks and parts > len(blocks)):
            return False
        if self.failed < self.worked <= parts:
            return True
        return not (blocks and self.device_bytes) or self.needed_bytes(blocks, parts) <= ROOM * self.device_bytes

    def least(self, blocks: Sequence[int], most: int) -> int | None:
        """The fewest parts that fit, of at most so many; None if none does."""
        return next((parts for parts in range(1, most + 1) if self.fits(blocks, parts)), None)

    def describe(self, blocks: Sequence[int], most: int) -> str:
        """Why it is cut into so many parts at least, in words."""
        least = self.least(blocks, most)
        if self.failed and least is not None:
            how = "uncut" if self.failed == 1 else f"in {self.failed} parts"
            return f"{how} it ran out of memory: it has {least} or more"
        if not (blocks and self.device_bytes):
            return (
                "how much memory a part takes is not known: it is learned from its first session, or when it runs out"
            )
        has = f"of the {self.device_bytes / GIB:.2f} GiB of a GPU"
        if least is None:
            return f"no part fits: in {min(most, len(blocks))} each takes {self._gib(blocks, most)} {has}"
        if least == self.worked > 1:
            return f"in {least} parts it has made steps: it has {least} or more"
        whole = f"uncut it takes {self._gib(blocks, 1)} {has}"
        return whole if least == 1 else f"{whole}, in {least} parts {self._gib(blocks, least)}: it has {least} or more"

    def _gib(self, blocks: Sequence[int], parts: int) -> str:
        return f"{self.needed_bytes(blocks, min(parts, len(blocks))) / GIB:.2f}"

    def facts(self) -> dict[str, int]:
        """For a record."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PartMemory:
        """The inverse of `facts`; nothing of a job of before."""
        return cls(**facts)
