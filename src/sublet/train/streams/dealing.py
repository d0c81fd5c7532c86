"""Which shard of a stream each sample of a step comes from, and who reads it.

    step 0   lane 0: shard 0 | lane 1: shard 2 | lane 2: shard 4      lanes = 3: a worker has some of them, in order
    step 1   lane 0: shard 1 | lane 1: shard 3 | lane 2: shard 5      waves = 2: a loader's worker reads one of them
    step 2   lane 0: shard 0 | ...

It is as if PyTorch read the stream on `lanes` ranks with a loader of `waves` workers each, whatever the width is. How
far each shard has been read follows from the number of steps alone.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Dealing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """The same for the whole training."""

    lanes: int
    waves: int
    batch: int

    @property
    def shards(self) -> int:
        """In all."""
        return self.lanes * self.waves

    def lanes_of(self, rank: int, world: int) -> range:
        """Those of one worker; none if there are more workers than lanes."""
        return range(rank * self.lanes // world, (rank + 1) * self.lanes // world)

    def places(self, lane: int) -> range:
        """The samples of a step that come from it, by their place in the step."""
        return range(lane * self.batch // self.lanes, (lane + 1) * self.batch // self.lanes)

    def shard(self, step: int, lane: int) -> int:
        """Which shard a lane reads in this step."""
        return lane * self.waves + step % self.waves

    def position(self, step: int, lane: int) -> int:
        """Samples of that shard in the steps before."""
        return step // self.waves * len(self.places(lane))
