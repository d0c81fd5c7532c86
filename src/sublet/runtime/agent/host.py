"""Where other machines reach this one: its address, the network interface that has it, and free ports."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Container

__all__ = ["LOOPBACK", "free_port", "interface_of", "network_env", "own_address"]

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", 9)  # TEST-NET-1: nobody is there, and nothing is sent; the kernel only looks up the way
SIOCGIFADDR = 0x8915
TRIES = 100


def own_address(line: str) -> str:
    """By the address of our end of the line to the controller; "" for one that does not leave the machine.

    A line that ends on loopback is a tunnel: it says nothing of where others find us, so the way out does.
    """
    if not line:
        return LOOPBACK
    return line if not line.startswith("127.") else _by_the_way_out() or _first_of_ours() or LOOPBACK


def network_env(host: str) -> dict[str, str]:
    """What workers need to meet those of other machines here; left to itself, gloo believes the hosts file.

    Gloo takes the name as it stands; to NCCL it is the beginning of names (eth1 is eth10, too) unless "=" says that it
    is all of it.
    """
    interface = interface_of(host)
    named = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    return {"SUBLET_HOST": host, **named}


def interface_of(host: str) -> str:
    """The network interface with this address."""
    return next((name for name, address in _interfaces() if address == host), "")


def free_port(taken: Container[int]) -> int:
    """A port that nobody listens on, and that we have not given to anybody who is still to listen on it."""
    for _ in range(TRIES):
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("", 0))  # on all addresses, as torch's store will; never listened on
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
    raise OSError("no port is free")


def _by_the_way_out() -> str:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(ELSEWHERE)
        except OSError:  # there is none
            return ""
        return str(probe.getsockname()[0])


def _first_of_ours() -> str:
    return next((address for _, address in _interfaces() if not address.startswith("127.")), "")


def _interfaces() -> list[tuple[str, str]]:
    """(name, address) of all that have one."""
    found = []
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                found.append((name, socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24])))
    return found
