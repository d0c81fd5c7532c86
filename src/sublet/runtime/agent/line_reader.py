"""Messages from a peer that may send anything: a bad line is told and skipped, the next one is read."""

from __future__ import annotations

from sublet.errors import BadInput
from sublet.wire.lines import LONGEST_LINE, Message, from_line

__all__ = ["LineReader", "message_from"]


class LineReader:
    """Collects what a socket brings; between calls it holds one line of `longest` bytes at most."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.longest = longest
        self._rest = b""
        self._skipping = False  # the rest of a line that is too long

    def feed(self, data: bytes) -> list[Message | BadInput]:
        """What is complete with these bytes: messages, and what was wrong with lines that are none."""
        return [message_from(line) for line in self.whole(data)]

    def whole(self, data: bytes) -> list[bytes | BadInput]:
        """The lines that are complete with these bytes, unread: for whoever may hang up after the first."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            if self._skipping:
                del lines[0]
            self._rest, self._skipping = b"", False
        read: list[bytes | BadInput] = [line for line in lines if line]
        if not self._skipping:
            self._rest += rest
            if len(self._rest) > self.longest:
                self._rest, self._skipping = b"", True
                read.append(BadInput("message", f"no end after {self.longest} bytes"))
        return read


def message_from(line: bytes | BadInput) -> Message | BadInput:
    """What it says, or what is wrong with it."""
    if isinstance(line, BadInput):
        return line
    try:
        return from_line(line)
    except BadInput as error:
        return error
