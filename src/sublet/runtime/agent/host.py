"""The address of this machine for others: the network interface that has it, and free ports. IPv4 only."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Container
from pathlib import Path
from typing import Protocol

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", 9)  # TEST-NET-1: it has no host, and nothing is sent; the kernel only looks up the way
SIOCGIFADDR = 0x8915
NOARP = 0x80  # IFF_NOARP
TRIES = 100
NETWORK = Path("/sys/class/net")
ADDRESSES_6 = Path("/proc/net/if_inet6")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/net")
GLOBAL = "00"  # the scope of an IPv6 address that other machines can use
OVERLAYS = ("vxlan", "geneve", "wireguard", "ppp", "wwan")


class NoAddress(Exception):
    """Other machines may be there, and there is no address of ours that their workers could use."""


class Place(Protocol):
    """A machine in its network."""

    def address(self, line: str) -> str:
        """Its address for others, by that of our end of the line to the controller; NoAddress if there is none."""

    def machine_id(self) -> str:
        """The same for all that run on it."""

    def network_env(self, host: str) -> dict[str, str]:
        """Variables with which workers meet those of other machines at this address."""

    def free_port(self, taken: Container[int]) -> int:
        """One without a listener; OSError without any."""


class _ThisPlace:
    """This machine."""

    def address(self, line: str) -> str:
        return own_address(line)

    def machine_id(self) -> str:
        return machine_id()

    def network_env(self, host: str) -> dict[str, str]:
        return network_env(host)

    def free_port(self, taken: Container[int]) -> int:
        return free_port(taken)


PLACE: Place = _ThisPlace()


def own_address(line: str) -> str:
    """By the address of our end of the line to the controller; "" for one that does not leave the machine.

    A line that ends on loopback is a tunnel: it says nothing of where others find us, so the way out does. Without one
    it is the interface that most likely leads to others. A machine that has no network at all is alone.
    """
    if not line:
        return LOOPBACK
    if not line.startswith("127."):
        return line
    found = _by_the_way_out() or _best_of_ours()
    if not found and _has_ipv6():
        raise NoAddress(
            "this machine has addresses of IPv6 only, and workers meet over IPv4; "
            "next: give it one that the others reach, named by --host or SUBLET_HOST"
        )
    return found or LOOPBACK


def machine_id() -> str:
    """The id of the machine, and of its network: containers of one machine may have addresses of their own."""
    try:
        return f"{BOOT_ID.read_text(encoding='ascii').strip()} {NAMESPACE.readlink()}"
    except OSError:
        return ""


def network_env(host: str) -> dict[str, str]:
    """Variables with which workers meet those of other machines here; left to itself, gloo believes the hosts file.

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
    """A port without a listener that we have not given to another process that is still to listen on it."""
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


def _best_of_ours() -> str:
    """The first interface among those that most likely lead to other machines."""
    ranked = [(rank, address) for name, address in _interfaces() if (rank := _rank(name, address)) is not None]
    return min(ranked, key=lambda each: each[0])[1] if ranked else ""


def _rank(name: str, address: str) -> int | None:
    """0: a device, or what is built on one. 1: a pair's end, as containers have. 2: an overlay, a tunnel. None: no way.

    By what the kernel says of it, because names are anybody's choice.
    """
    folder = NETWORK / name
    if address.startswith("127.") or _word(folder / "operstate") in ("down", "lowerlayerdown"):
        return None
    if not folder.exists():
        return 1  # devices are not described here
    if (folder / "bridge").exists():  # docker0 and virbr0 have the same address everywhere; nothing leaves by them
        return 0 if any((NETWORK / port.name / "device").exists() for port in (folder / "brif").glob("*")) else None
    if (folder / "device").exists() or (folder / "bonding").exists():
        return 0
    kind = next((word for word in OVERLAYS if f"DEVTYPE={word}" in _word(folder / "uevent").split()), "")
    if kind or (folder / "tun_flags").exists():
        return 2
    if int(_word(folder / "flags") or "0", 16) & NOARP:  # addresses are not resolved there: a dummy, say
        return 2 if _word(folder / "iflink") != _word(folder / "ifindex") else None
    return 1


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _has_ipv6() -> bool:
    """An address that other machines could use: lines are address, index, prefix, scope, flags, name."""
    rows = [line.split() for line in _word(ADDRESSES_6).splitlines()]
    return any(len(row) == 6 and row[3] == GLOBAL and row[5] != "lo" for row in rows)  # noqa: PLR2004 - columns of /proc/net/if_inet6


def _interfaces() -> list[tuple[str, str]]:
    """(name, address) of all that have one."""
    found = []
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                found.append((name, socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24])))
    return found
