"""The session's side of the line to its controller; a session that trains alone has the same, and nobody hears it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict

from sublet.errors import InvalidValue
from sublet.train.link.agent_line import AgentLine, listen
from sublet.train.shards.fits import Fits
from sublet.wire.grids import SESSION
from sublet.wire.lines import Message
from sublet.wire.messages import Ready

__all__ = ["ControllerLink", "is_agents_line"]

CREDENTIALS = struct.Struct("3i")  # of whoever made the other end: process, user, group

_claimed = 0  # the process in which a session was opened under a controller; a fork is another


class ControllerLink:
    """What a session says to its controller and hears from it; `line` is None where there is none."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.line: AgentLine | None = None

    def open(self, blocks: Callable[[], tuple[int, ...]] = tuple, fits: Callable[[], Fits] = Fits) -> None:
        """Take the line that the agent left to this process, if it did, and say that we are there.

        `blocks` counts the bytes of each block of a model that may be cut, `fits` what the state takes.
        """
        self.listen()
        if self.line is not None:
            told = asdict(fits())
            self.line.say(Ready(worker_id=self.worker_id, version=SESSION, blocks=blocks(), **told))

    def listen(self) -> None:
        """Take the line, and wait for no group: what has a loop of its own is in one already, or needs none."""
        descriptor = os.environ.get("SUBLET_CONTROL_FD")
        if descriptor is not None:
            _claim_process()
            connection = socket.socket(fileno=os.dup(int(descriptor)))
            self.line = AgentLine(connection, self.worker_id)
            listen(self.line, connection)

    def say(self, message: Message) -> None:
        """To the controller, if there is one."""
        if self.line is not None:
            self.line.say(message)

    def script_goes_on(self) -> None:
        """What runs from here on is the script's own code: that it takes long is a sign of life."""
        if self.line is not None:
            self.line.script_s = self.line.wall.monotonic()

    def script_waits(self) -> None:
        """What runs from here on is ours, and may wait for others."""
        if self.line is not None:
            self.line.script_s = None

    def has_order(self) -> bool:
        """Whether an order waits for the end of the step."""
        return self.line is not None and self.line.pending and not self.line.gone

    def take_keeps(self) -> tuple[int, ...]:
        """Parts that the controller wants us to keep too; it is told once."""
        if self.line is None or not self.line.keeps:
            return ()
        keeps, self.line.keeps = self.line.keeps, ()
        return keeps

    def take_save_request(self) -> bool:
        """Whether the controller wants a checkpoint now; it is told once."""
        if self.line is None or not self.line.save_now:
            return False
        self.line.save_now = False
        return True


def is_agents_line(descriptor: str) -> bool:
    """Whether this is what the agent left us: a launcher hands its children the variable, and seldom the descriptor.

    Then the number is nobody's, or of something that this process has opened itself.
    """
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as line:
            if line.family != socket.AF_UNIX:
                return False
            found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            made_by: int = CREDENTIALS.unpack(found)[0]
            return made_by != os.getpid()
    except (ValueError, OSError):
        return False


def _claim_process() -> None:
    """A job is one training: what a second session trains would be neither planned nor saved nor told."""
    global _claimed  # noqa: PLW0603 - a fact about the process
    if _claimed == os.getpid():
        raise InvalidValue(
            "session", "a second one in this process", "one for each job; submit the next training as another job"
        )
    _claimed = os.getpid()
