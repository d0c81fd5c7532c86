"""Messages from a peer that may send anything: a bad line is told and skipped, the next one is read."""

from __future__ import annotations

from sublet.errors import BadInput
from sublet.wire.lines import LONGEST_LINE, Message, bytes_after, from_line

__all__ = ["LineReader", "message_from"]


class LineReader:
    """Collects what a socket brings; between calls it holds one line or frame of `longest` bytes at most."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.longest = longest
        self._rest = b""
        self._skipping = False  # the rest of a line that is too long
        self._frame: list[bytes] = []  # its header, and what has come of it; nothing of one that is too long
        self._lacking = 0  # bytes of it that have not come

    def feed(self, data: bytes) -> list[Message | BadInput]:
        """The lines that are complete with these bytes: messages, and the faults of lines that are none."""
        return [message_from(line) for line in self.whole(data)]

    def whole(self, data: bytes) -> list[bytes | BadInput]:
        """The lines and frames that these bytes complete, unread: for a reader that may hang up after the first."""
        read: list[bytes | BadInput] = []
        at = 0
        while at < len(data):
            at = self._take_bytes(data, at, read) if self._lacking else self._take_line(data, at, read)
        return read

    def _take_line(self, data: bytes, at: int, read: list[bytes | BadInput]) -> int:
        end = data.find(b"\n", at)
        if not self._skipping:
            self._rest += data[at:] if end < 0 else data[at:end]
        if end < 0:
            if len(self._rest) > self.longest:
                self._rest, self._skipping = b"", True
                read.append(BadInput("message", f"no end after {self.longest} bytes"))
            return len(data)
        line, self._rest, self._skipping = self._rest, b"", False
        self._lacking = bytes_after(line)
        if len(line) + self._lacking > self.longest and self._lacking:
            read.append(BadInput("message", f"{self._lacking} bytes in a frame; at most {self.longest} are read"))
        elif self._lacking:
            self._frame = [line, b"\n"]
        elif line:
            read.append(line)
        return end + 1

    def _take_bytes(self, data: bytes, at: int, read: list[bytes | BadInput]) -> int:
        piece = data[at : at + self._lacking]
        self._lacking -= len(piece)
        if self._frame:
            self._frame.append(piece)
            if not self._lacking:
                read.append(b"".join(self._frame))
                self._frame = []
        return at + len(piece)


def message_from(line: bytes | BadInput) -> Message | BadInput:
    """The message, or what is wrong with the line."""
    if isinstance(line, BadInput):
        return line
    try:
        return from_line(line)
    except BadInput as error:
        return error
