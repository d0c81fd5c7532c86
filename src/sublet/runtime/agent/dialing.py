"""Addresses as they are written, and how a way to one is begun without waiting for it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from sublet.errors import InvalidValue

__all__ = [
    "Dialer",
    "Secure",
    "address_from",
    "dial",
    "host_and_port",
    "in_the_clear",
    "is_secure",
    "keep_little_unsent",
]

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
