"""From a checkpoint into a grid: member 0 of a meeting reads it, and hands each unit to those who want it.

One reads, so that one says which checkpoint can be trusted, and what lies on the disk of one node serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from sublet.train.checkpoint.checkpoints import Loaded
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.meeting import Meeting
from sublet.train.grid.mesh import Mesh, spread
from sublet.train.grid.outcome import Met
from sublet.train.grid.whole import Whole

__all__ = ["Restored", "met_by_going_back", "restore"]

READS = 6 << 20  # tags of messages, far from those of a pipeline and a meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one worker has got: its units as they lie in memory, and what is beside them."""

    step: int
    units: dict[int, torch.Tensor]
    beside: dict[str, Any]


def restore(
    mesh: Mesh,
    find: Callable[[], Loaded | None],
    whole: Whole,
    holdings: Holdings,
    wanted: Sequence[AbstractSet[int]],
) -> Restored | None:
    """What each of the mesh wants, at all of them; None if there is no checkpoint. `find` is asked by member 0 alone.

    Nothing of what is held is touched: it may break at any point.
    """
    loaded = find() if mesh.rank == 0 else None
    found = None if loaded is None else {"step": loaded.step, "beside": whole.beside(loaded.state)}
    head = spread(mesh, 0, {"found": found} if mesh.rank == 0 else None)["found"]
    if head is None:
        return None
    step, came = int(head["step"]), dict[int, torch.Tensor]()
    for unit in sorted({each for units in wanted for each in units}):
        takers = [rank for rank, units in enumerate(wanted) if unit in units]
        if mesh.rank in takers:
            came[unit] = holdings.expect(unit, stepped=step > 0)
        if loaded is not None:
            memory = torch.empty(holdings.size_bytes(unit, stepped=step > 0), dtype=torch.uint8)
            whole.fill(memory, unit, loaded.state, stepped=step > 0)
            for taker in takers:
                if taker == mesh.rank:
                    came[unit].copy_(memory)
                else:
                    mesh.send(memory, taker, READS + unit)
            mesh.settle()  # one at a time: the memory of one
        elif mesh.rank in takers:
            mesh.receive(came[unit], 0, READS + unit)
    mesh.sum(torch.zeros(1), range(mesh.world))
    return Restored(step=step, units=came, beside=head["beside"])


def met_by_going_back(restored: Restored, top: int, *, lost: bool) -> Met:
    """What that meeting came to, for one worker; `top` is the most steps that anybody had applied."""
    return Met(
        meeting=Meeting(applied=restored.step, speaker=None, roll=(), empty=(), moves=()),
        moved_bytes=sum(memory.numel() for memory in restored.units.values()),
        gave_bytes=0,
        rolled=False,
        source="checkpoint",
        lost=lost,
        redone=max(0, top - restored.step),
    )
