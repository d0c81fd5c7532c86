"""One connection to an agent, or to an unknown peer before its Hello.

Parts of files go behind everything else, one at a time: an order waits for the rest of one part at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from sublet.errors import BadInput
from sublet.runtime.agent.dialing import keep_little_unsent
from sublet.runtime.agent.line_reader import LineReader, message_from
from sublet.wire.lines import LONGEST_LINE, Message, to_frame, to_line
from sublet.wire.messages import Hello, ToAgent
from sublet.wire.text import plain_text
from sublet.wire.travel import Part

__all__ = ["HELLO_S", "Complaints", "Line", "LineOwner"]

HELLO_S = 5.0  # for a peer to say its Hello
LONGEST_HELLO = 1 << 18  # bytes of a peer's first line, and of what comes with it at once
MOST_COMPLAINTS = 20  # a minute, in the log, about unknown peers or about one agent
MOST_UNREAD = 4 << 20  # bytes that an agent may leave unread before its line is cut
MOST_CARRIED = 8 << 20  # bytes of parts that wait; the rest is asked for again

_log = logging.getLogger(__name__)


class LineOwner(Protocol):
    """The receiver of what happens on a line."""

    def add_unknown(self, line: Line) -> None:
        """A peer has connected, without a Hello yet."""
        ...

    def drop_line(self, line: Line) -> None:
        """A connection is gone."""
        ...

    def take_message(self, line: Line, message: Message | BadInput) -> None:
        """A line of an agent, or of a peer that claims to be one."""
        ...


class Complaints:
    """Log lines about a peer that may send anything: so many lines a minute, each of them short."""

    def __init__(self) -> None:
        self._since_s, self._told, self._untold = -60.0, 0, 0

    def log(self, text: str, *facts: object, trace: bool = False) -> None:
        """A warning, or one more that is only counted."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._since_s >= 60.0:  # noqa: PLR2004 - a minute
            if self._untold:
                _log.warning("%d more such lines were left out", self._untold)
            self._since_s, self._told, self._untold = now_s, 0, 0
        if self._told < MOST_COMPLAINTS:
            self._told += 1
            _log.warning("%s", plain_text(text % facts), exc_info=trace)
        else:
            self._untold += 1


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, owner: LineOwner, *, identity: str = "") -> None:
        self._owner = owner
        self.identity = identity  # the node whose certificate it has shown; "" = none
        self._reader = LineReader(LONGEST_HELLO)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.node_id = ""  # "" = no Hello yet
        self.pings = False
        self.heard_s = 0.0  # the loop's time
        self.complaints = Complaints()
        self.refused = 0  # lines
        self._frames = False  # it reads them
        self._parts: deque[bytes] = deque()
        self._parts_bytes = 0
        self._full = False  # not all that was written has left this process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for Hello, but not for long."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.set_write_buffer_limits(high=1, low=0)
            keep_little_unsent(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self._too_late)
        self._owner.add_unknown(self)

    def settle(self) -> None:
        """Another waits for what comes next."""
        if self._deadline is not None:
            self._deadline.cancel()

    def admit(self, hello: Hello) -> None:
        """It is the agent of a node."""
        self.node_id, self.pings, self._frames = hello.node_id, hello.pings, hello.frames
        self._reader.longest = LONGEST_LINE

    def data_received(self, data: bytes) -> None:
        """Lines, whole or in part."""
        self.heard_s = asyncio.get_running_loop().time()
        for line in self._reader.whole(data):
            if self._transport is None or self._transport.is_closing():
                return  # the rest is not even read: an unknown peer must not cost time
            self._owner.take_message(self, message_from(line))

    def connection_lost(self, exc: Exception | None) -> None:
        """The agent is gone, or we have hung up."""
        del exc  # why does not matter
        self.settle()
        self._owner.drop_line(self)
        self._transport = None

    def send(self, message: ToAgent) -> bool:
        """Never waits; an agent that does not read is cut off."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            _log.warning("%s does not read its line: it is cut", self.node_id)
            self.cut()
            return False
        if isinstance(message, Part) and self._frames:
            return self._carry(to_frame(message))
        self._transport.write(to_line(message))
        return True

    def pause_writing(self) -> None:
        """Something waits to be sent."""
        self._full = True

    def resume_writing(self) -> None:
        """All is sent."""
        self._full = False
        self._carry_on()

    def _carry(self, frame: bytes) -> bool:
        if self._parts_bytes + len(frame) > MOST_CARRIED:
            return False
        self._parts.append(frame)
        self._parts_bytes += len(frame)
        self._carry_on()
        return True

    def _carry_on(self) -> None:
        while self._parts and not self._full and self._transport is not None and not self._transport.is_closing():
            frame = self._parts.popleft()
            self._parts_bytes -= len(frame)
            self._transport.write(frame)

    def hang_up(self) -> None:
        """Close, after what was sent."""
        self._owner.drop_line(self)
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def _too_late(self) -> None:
        if not self.node_id:
            self._owner.drop_line(self)
            self.cut()
