"""Machines whose agents come over TLS; strangers have the certificate of a node, if they have its token, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from sublet.machine.wall import WALL
from sublet.runtime.agent import processes
from sublet.runtime.engines.server import TlsEngine
from sublet.runtime.identity import certificates
from sublet.runtime.identity.authority import Authority
from sublet.runtime.identity.names import CONTROLLER
from sublet.testing.rigs import PATIENCE_S, LocalRig

TOKEN = "token"  # noqa: S105 - of the suite


class TlsRig(LocalRig):
    """This machine, its loopback, and an authority."""

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self.authority = Authority(self.folder / "identity")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.place = probe.getsockname()
        self.address = f"tls:127.0.0.1:{self.place[1]}"

    def engine(self, **knobs):
        return TlsEngine(self.address, authority=self.authority, **knobs)

    def agent(self, node_id, token, *, address="", lease_s=30.0):
        home = self.folder / f"{node_id}-{len(self._agents)}"
        home.mkdir()
        (home / "token").write_text(f"{token} of {node_id}" if token == TOKEN else token)
        (home / "authority").write_text(self.authority.certificate)
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", node_id, "--lease-s", str(lease_s)]
        command += ["--address", address or self.address, "--token-file", str(home / "token")]
        command += ["--authority", str(home / "authority")]
        with (self.folder / f"{node_id}.agent.log").open("ab") as log:
            agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._agents.append(agent)
        self._seen[node_id] = (agent.pid, processes.look(agent.pid).start)
        return agent.pid

    def passport(self, node_id, authority=None, *, unix_s=None):
        """As if it had enrolled: with us, or with another authority, now or then."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority.certificate)
        if node_id:
            key, request = certificates.new_request()
            by = (authority or self.authority)._pem
            path = self.folder / f"{node_id}.passport"
            now_s = WALL.unix() if unix_s is None else unix_s
            path.write_bytes(key + certificates.new_node(by, request, node_id, now_s).encode())
            context.load_cert_chain(path)
        return context

    def stranger(self, *lines, context=None):
        """It has the certificate of the node that its first line is of, if it has the token, too."""
        if context is None:
            hello = {}
            with contextlib.suppress(ValueError):
                hello = json.loads(lines[0])
            proven = isinstance(hello, dict) and hello.get("token") == TOKEN
            context = self.passport(hello["node_id"] if proven and hello["node_id"] == "n" else "nobody")
        answer = b""
        try:
            with (
                socket.create_connection(self.place, PATIENCE_S) as plain,
                context.wrap_socket(plain, server_hostname=CONTROLLER) as line,
            ):
                for data in lines:
                    line.sendall(data)
                while data := line.recv(65536):
                    answer += data
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass
        return answer

    async def connect(self, node_id="n"):
        return await asyncio.open_connection(*self.place, ssl=self.passport(node_id), server_hostname=CONTROLLER)
