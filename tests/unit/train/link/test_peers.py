"""Waiting for a collective in slices: what happens between two of them is not lost."""

from __future__ import annotations

import contextlib
import socket

import pytest

pytest.importorskip("torch")

from sublet.train.link.peers import PeerGroup
from sublet.train.link.sockets import SLICE, Connections


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


def fill(ours: socket.socket) -> int:
    """Send until nothing more goes out; how much."""
    ours.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += ours.send(bytes(1 << 16))
    return sent


def read_all(theirs: socket.socket) -> int:
    came = 0
    with contextlib.suppress(ConnectionResetError):
        while data := theirs.recv(1 << 20):
            came += len(data)
    return came


def test_what_a_group_that_is_ended_had_not_delivered_never_comes():
    """A peer that was cut off would make one more step of a group that is no more."""
    listening = socket.create_server(("127.0.0.1", 0))
    group = Connections()
    ours = socket.create_connection(listening.getsockname())
    group.seal()
    theirs, _ = listening.accept()
    with listening, theirs:
        sent = fill(ours)  # they do not read
        group.end()
        ours.close()
        assert read_all(theirs) < sent
