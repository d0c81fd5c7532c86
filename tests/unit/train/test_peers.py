"""Waiting for a collective in slices: what happens between two of them is not lost."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.train.peers import SLICE, PeerGroup


class Collective:
    """Ends, well or not, right after the first slice of waiting is over."""

    def __init__(self, error: str = "") -> None:
        self.error, self.waits = error, 0

    def wait(self, _: object) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.waits >= 1


def test_a_collective_that_ends_between_two_slices_has_ended_well():
    work = Collective()
    PeerGroup(world=2).wait(work)
    assert work.waits == 2


@pytest.mark.parametrize("why", ["Connection closed by peer", f"timed out after {SLICE}"])
def test_a_collective_that_fails_between_two_slices_says_why(why):
    with pytest.raises(RuntimeError, match=why):
        PeerGroup(world=2).wait(Collective(why))
