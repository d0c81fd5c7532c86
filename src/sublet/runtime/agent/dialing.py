"""Addresses as they are written, and how a way to one is begun without waiting for it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from sublet.errors import InvalidValue

__all__ = ["Dialer", "address_from", "dial"]

Address = str | tuple[str, int]
Dialer = Callable[[str], socket.socket]  # it may be there at once, later (then it can be written to), or never


def address_from(text: str) -> tuple[socket.AddressFamily, Address]:
    """`unix:/path/to/socket` or `tcp:host:port`."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if kind == "unix" and rest:
        return socket.AF_UNIX, rest
    if kind == "tcp" and ":" in host:
        raise InvalidValue("address", text, "tcp:host:port with an IPv4 address or a name: IPv6 is not supported yet")
    if kind == "tcp" and host and port.isdigit():
        return socket.AF_INET, (host, int(port))
    raise InvalidValue("address", text, "unix:/path or tcp:host:port")


def dial(address: str) -> socket.socket:
    """A socket that never waits, on its way there; OSError where it is known at once that there is none."""
    family, place = address_from(address)
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.settimeout(0.0)
        if family == socket.AF_INET:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _begin(line, place)
    except OSError:
        line.close()
        raise
    return line


def _begin(line: socket.socket, place: Address) -> None:
    result = line.connect_ex(place)  # raises for a host without an address, and for a path that is too long
    if result not in (0, errno.EINPROGRESS):
        raise OSError(result, os.strerror(result))
