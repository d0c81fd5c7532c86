"""Two machines that share a disk and nothing else: network namespaces with addresses of their own, a cable between.

The controller is outside, on neither network. Agents reach it as on a cloud that cannot dial in: by a tunnel, which
here is a relay on the loopback of each machine.

    python -m tests.rigs.hosts PORT SOCKET      is the relay, within a machine
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from sublet.runtime.agent import processes
from sublet.runtime.agent.nursery import PRELOAD
from sublet.runtime.clock import Clock
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.providers.protocol import RentedNode
from sublet_lab.memory_cloud import one_gpu_offer

PORT = 7070  # on the loopback of each machine


class NoHosts(Exception):
    """Machines cannot be made here, and why."""


class Hosts:
    """A cloud of two machines, as a provider; `engine` is that of the controller."""

    addresses = ("10.213.7.1", "10.213.7.2")

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.offers = (one_gpu_offer("on-demand"),)
        self.provider = self
        self.path = folder / "agents.sock"
        self.engine = LocalEngine(f"unix:{self.path}", lease_s=60.0)
        self._names = [f"sublet{os.getpid()}{letter}" for letter in "ab"]
        self._nodes: dict[str, tuple[str, RentedNode, subprocess.Popen[bytes]]] = {}  # node -> machine, record, agent
        self._relays: list[subprocess.Popen[bytes]] = []

    def build(self) -> None:
        """Or NoHosts."""
        if shutil.which("ip") is None or os.geteuid():
            raise NoHosts("network namespaces need root and iproute2")
        first, second = self._names
        self._ip("netns", "add", first)
        self._ip("netns", "add", second)
        for name in self._names:  # as on every machine with docker: before the cable, at the same address
            self._ip("-n", name, "link", "add", "docker0", "type", "bridge")
            self._ip("-n", name, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            self._ip("-n", name, "link", "set", "docker0", "up")
        self._ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for name, address in zip(self._names, self.addresses, strict=True):
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            self._ip("-n", name, "link", "set", "eth0", "up")
            self._ip("-n", name, "link", "set", "lo", "up")
            self._relays.append(self._run(name, [sys.executable, "-m", "tests.rigs.hosts", str(PORT), str(self.path)]))
        # One finds its address by the way out, the other has none. Not a default route: names would be looked up there.
        self._ip("-n", first, "route", "add", "192.0.2.0/24", "via", "10.213.7.254")

    def clear(self) -> None:
        """Nothing is left."""
        for _, _, agent in self._nodes.values():
            self._end(agent)
        for relay in self._relays:
            self._end(relay)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    # ------------------------------------------------------------------ the provider

    async def open(self, tell) -> None:
        """Nothing ever happens on this market."""

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """The agent of one machine."""
        used = {name for name, _, _ in self._nodes.values()}
        name = next(name for name in self._names if name not in used)
        token_file = self.folder / f"{node_id}.token"
        token_file.write_text(token, encoding="utf-8")
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", node_id, "--lease-s", "60"]
        command += ["--address", f"tcp:127.0.0.1:{PORT}", "--token-file", str(token_file)]
        for module in PRELOAD:
            command += ["--preload", module]
        record = RentedNode(node_id=node_id, offer_id=offer_id, token=token, began_s=0.0)
        self._nodes[node_id] = (name, record, self._run(name, command))

    async def release(self, node_id: str) -> None:
        """All its processes are gone when this returns."""
        if (held := self._nodes.pop(node_id, None)) is not None:
            await asyncio.to_thread(self._end, held[2])

    async def list(self) -> list[RentedNode]:
        """What there is."""
        return [record for _, record, _ in self._nodes.values()]

    async def close(self) -> None:
        """Nothing watches."""

    # ------------------------------------------------------------------ processes

    def _run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", name, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        found = processes.look(process.pid)
        if found is not None:
            processes.kill_instance(found.pid, found.start)
        process.wait()

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
        if done.returncode:
            self.clear()
            raise NoHosts(f"network namespaces cannot be made here: ip {' '.join(words)}: {done.stderr.strip()}")


async def relay(port: int, path: str) -> None:
    """From a port of this machine to the controller's socket, both ways."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with await asyncio.start_server(joined, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(int(sys.argv[1]), sys.argv[2]))
