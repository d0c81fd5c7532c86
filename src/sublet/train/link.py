"""The session's side of the line to its controller; a session that trains alone has the same, and nobody hears it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from sublet.errors import InvalidValue
from sublet.train.agent_line import AgentLine, listen
from sublet.wire.lines import Message
from sublet.wire.messages import WIRE_VERSION, Ready

__all__ = ["ControllerLink"]

_claimed = 0  # the process in which a session was opened under a controller; a fork is another


class ControllerLink:
    """What a session says to its controller and hears from it; `line` is None where there is none."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.line: AgentLine | None = None

    def open(self, blocks: Callable[[], tuple[int, ...]] = tuple) -> None:
        """Take the line that the agent left to this process, if it did, and say that we are there.

        `blocks` counts the bytes of each block of a model that may be cut.
        """
        descriptor = os.environ.get("SUBLET_CONTROL_FD")
        if descriptor is not None:
            _claim_process()
            connection = socket.socket(fileno=os.dup(int(descriptor)))
            self.line = AgentLine(connection, self.worker_id)
            listen(self.line, connection)
            self.line.say(Ready(worker_id=self.worker_id, version=WIRE_VERSION, blocks=blocks()))

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

    def take_save_request(self) -> bool:
        """Whether the controller wants a checkpoint now; it is told once."""
        if self.line is None or not self.line.save_now:
            return False
        self.line.save_now = False
        return True


def _claim_process() -> None:
    """A job is one training: what a second session trains would be neither planned nor saved nor told."""
    global _claimed  # noqa: PLW0603 - a fact about the process
    if _claimed == os.getpid():
        raise InvalidValue(
            "session", "a second one in this process", "one for each job; submit the next training as another job"
        )
    _claimed = os.getpid()
