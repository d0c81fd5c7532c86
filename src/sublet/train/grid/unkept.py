"""What the forward of a block changes in it, where one worker alone runs the block and others keep its weights.

Whoever keeps a block for another has its weights and moments, and what the script sets, but runs no forward: a counter
in the block is lost with the one who counts. That is said once, by name. It is looked at in the steps 2, 4, 8, ... of a
grid, since to compare all values takes milliseconds, and what a first step makes is most often a table.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sublet.train.grid.remembering import Remembering, packed

__all__ = ["Unkept"]

FIRST = 2  # step that is looked at
NAMED = 3


class Unkept:
    """Of one worker."""

    def __init__(self) -> None:
        self._steps = 0  # of the present grid
        self._told = False

    def begin(self) -> None:
        """Of a grid."""
        self._steps = 0

    @property
    def _is_between(self) -> bool:
        return self._steps < FIRST or bool(self._steps & (self._steps - 1))

    @contextmanager
    def watched(self, remembers: Remembering | None, blocks: Collection[int], *, kept: bool) -> Iterator[None]:
        """The forwards of a step, of these blocks, which others keep, or not."""
        self._steps += 1
        if remembers is None or not kept or self._told or self._is_between:
            yield
            return
        before = _flat(remembers, blocks)
        yield
        changed = [name for name, value in _flat(remembers, blocks).items() if before.get(name) != value]
        if changed:
            self._told = True
            more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
            print(  # noqa: T201 - to the user, in the user's process
                f"sublet: the forwards of blocks change {', '.join(changed[:NAMED])}{more}. With one copy of the model "
                "that is lost with the worker that runs them: who goes on from a keeper has it as the script sets it. "
                "Let it follow from s.steps, or have two copies",
                file=sys.stderr,
            )


def _flat(remembers: Remembering, blocks: Collection[int]) -> dict[str, bytes]:
    state = remembers.state(blocks)
    found = {
        f"{place}.{name}": value
        for what in ("plain", "held")
        for place, values in state[what].items()
        if remembers.home(place) in blocks
        for name, value in values.items()
    }
    found |= {f"buffer {name}": value for name, value in state["buffers"].items() if remembers.home(name) in blocks}
    return {name: packed({"value": {"": value}}).numpy().tobytes() for name, value in found.items()}
