"""Every commit of a life as a crash point: the same story again and again, dead before or after the k-th."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublet.testing.world.faults import AT_COMMIT
from sublet.testing.world.life import Outcome, live
from sublet.testing.world.story import Fault, Story

__all__ = ["crash_points"]


def crash_points(story: Story, *, every: int = 1, first: int = 0) -> Iterator[tuple[int, bool, Outcome]]:
    """(commit, before it, what became of it), for every `every`-th commit of a life without any other fault."""
    calm = replace(story, faults=())
    for commit in range(first, live(calm).commits, every):
        for before in (True, False):
            fault = Fault(at_s=0.0, kind=AT_COMMIT, dice=2 * commit + (not before))
            yield commit, before, live(replace(calm, faults=(fault,)))
