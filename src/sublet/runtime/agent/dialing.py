"""Addresses as they are written, and how a way to one is begun without waiting for it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from sublet.errors import BadInput, InvalidValue
from sublet.wire.lines import LONGEST_LINE, Message, bytes_after, from_line


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


UNSENT_BYTES = 1 << 17
Address = str | tuple[str, int]
Dialer = Callable[[str], socket.socket]  # it may be there at once, later (then it can be written to), or never
Secure = Callable[[socket.socket, str], socket.socket]  # what is spoken on a way that is there to this address


def in_the_clear(line: socket.socket, address: str) -> socket.socket:
    """As it is: a line that does not leave the machine; OSError for an address that wants more."""
    if is_secure(address):
        raise PermissionError(f"{address} wants a certificate, and this agent has no authority to know it by")
    return line


def is_secure(address: str) -> bool:
    """Whether both ends of it show certificates."""
    return address.startswith("tls:")


def address_from(text: str) -> tuple[socket.AddressFamily, Address]:
    """`unix:/path/to/socket`, `tcp:host:port`, or `tls:host:port` with certificates."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if kind == "unix" and rest:
        return socket.AF_UNIX, rest
    if kind in ("tcp", "tls") and ":" in host:
        raise InvalidValue(
            "address", text, f"{kind}:host:port with an IPv4 address or a name: IPv6 is not supported yet"
        )
    if kind in ("tcp", "tls") and host and port.isdigit():
        return socket.AF_INET, (host, int(port))
    raise InvalidValue("address", text, "unix:/path or tcp:host:port, or tls: instead of tcp:")


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of an address that is no file."""
    _, place = address_from(address)
    if isinstance(place, str):
        raise InvalidValue("address", address, "tcp:host:port or tls:host:port")
    return place


def dial(address: str) -> socket.socket:
    """A socket that never waits, on its way there; OSError where it is known at once that there is none."""
    family, place = address_from(address)
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.settimeout(0.0)
        if family == socket.AF_INET:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_little_unsent(line)
        _begin(line, place)
    except OSError:
        line.close()
        raise
    return line


def keep_little_unsent(line: Any) -> None:
    """In the kernel's own memory, beyond what is on its way: what is said next is not late behind megabytes."""
    with contextlib.suppress(AttributeError, OSError):  # not on this system, or no TCP
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _begin(line: socket.socket, place: Address) -> None:
    result = line.connect_ex(place)  # raises for a host without an address, and for a path that is too long
    if result not in (0, errno.EINPROGRESS):
        raise OSError(result, os.strerror(result))
