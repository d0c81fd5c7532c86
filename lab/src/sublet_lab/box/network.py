"""The network of a box: a bridge that everything outside is reached by, and a cable from it to each host."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from pathlib import Path

from sublet_lab.box.claim import Claim, NoBox

METADATA = "169.254.169.254"
CLONE_NEWNET = 0x40000000
FIRST_HOST, MOST_HOSTS = 10, 200


class Network:
    """198.18.0.0/15 is set aside for tests of networks (RFC 2544): no network of anybody's is there."""

    def __init__(self, claim: Claim) -> None:
        self._claim, self._hosts = claim, 0
        self.address = f"198.18.{claim.number}.1"  # of all that is outside: controller, EC2 and S3

    def build(self) -> None:
        """The bridge; NoBox where the kernel makes none."""
        _ip("link", "add", self._claim.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._claim.bridge)
        _ip("link", "set", self._claim.bridge, "up")

    @property
    def block(self) -> str:
        """All its addresses."""
        return f"198.18.{self._claim.number}.0/24"

    def cable(self, wanted: str = "") -> Cable:
        """To a new host, with the address that EC2 says it has, if that is one of ours."""
        self._hosts += 1
        if self._hosts > MOST_HOSTS:
            raise NoBox(f"{MOST_HOSTS} hosts were started in this box already")
        address = f"198.18.{self._claim.number}.{FIRST_HOST + self._hosts}"
        if wanted.startswith(self.address.removesuffix("1")) and int(wanted.rpartition(".")[2]) <= FIRST_HOST:
            address = wanted
        return Cable(f"{self._claim.bridge}h{self._hosts}", address, self._claim.bridge, self.address)


class Cable:
    """A network namespace with one address, and the end of its cable in the bridge; both have the same name."""

    def __init__(self, name: str, address: str, bridge: str, gateway: str) -> None:
        self.name, self.address = name, address
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", bridge, "up")
        lines = [
            *("link set lo up", f"addr add {METADATA}/32 dev lo"),
            # As on every machine with docker: before the cable, and at the same address everywhere.
            *("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"),
            *(f"addr add {address}/24 dev eth0", "link set eth0 up", f"route add default via {gateway}"),
        ]
        _ip("-n", name, "-batch", "-", text="\n".join(lines) + "\n")

    def pull(self) -> None:
        """Nothing goes in or out, without word."""
        _ip("link", "set", self.name, "down")

    def put_back(self) -> None:
        """As it was."""
        _ip("link", "set", self.name, "up")

    def slow(self, delay_ms: float, loss_percent: float = 0.0) -> None:
        """Both ways: what comes to the host, and what leaves it; NoBox where the kernel has no netem."""
        how = ["root", "netem", "delay", f"{delay_ms:g}ms", "loss", f"{loss_percent:g}%"]
        _run("tc", "qdisc", "replace", "dev", self.name, *how)
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", *how)

    def listener(self, address: str, port: int) -> socket.socket:
        """A socket of ours that listens inside."""
        made: list[socket.socket | OSError] = []

        def listen() -> None:
            """In a thread that is thrown away: where a thread is, only it is."""
            try:
                with Path(f"/run/netns/{self.name}").open("rb") as space:
                    if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))  # noqa: TRY301 - as the others
                made.append(socket.create_server((address, port)))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise NoBox(f"no listener is possible at {address}:{port} of {self.name}: {made[0]}")
        return made[0]

    def remove(self) -> None:
        """The network and all in it; a cable has two ends or none."""
        for words in (("netns", "del", self.name), ("link", "del", self.name)):
            subprocess.run(["ip", *words], check=False, capture_output=True)  # noqa: S603, S607 - a tool of the system


def _ip(*words: str, text: str = "") -> None:
    _run("ip", *words, text=text)


def _run(*words: str, text: str = "") -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=text)  # noqa: S603 - a tool of the system
    if done.returncode:
        raise NoBox(f"{' '.join(words)}: {done.stderr.strip()}")
