"""Machines that are reached by ssh: a real server on loopback; each user of it is a machine with a home of its own."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.runtime.agent import processes
from sublet.runtime.providers.ssh.config import Host
from sublet.runtime.providers.ssh.hostline import Way
from sublet.runtime.providers.ssh.provider import SshProvider
from sublet.testing.rigs import LocalRig

SERVER = "test"


@functools.cache
def shared_cache():
    """Our code, sent once and compiled once for all machines of all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="sublet-ssh-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class SshServer:
    """In a thread of its own; `users` are let in with `key`."""

    def __init__(self, folder, cache=None):
        import asyncssh

        self.folder, self.cache, self._asyncssh = folder, cache, asyncssh
        self.key_file = folder / "id_ed25519"
        key, self._server_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        key.write_private_key(str(self.key_file))
        key.write_public_key(str(folder / "authorized_keys"))
        self.host_key = self._server_key.export_public_key().decode().strip()
        self.port, self.connections = 0, {}
        self._loop = asyncio.new_event_loop()
        self._serving = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(120.0)

    def cut(self, user):
        """The network to this machine is gone, for now: connections break, new ones are refused."""
        self._loop.call_soon_threadsafe(self._cut, user)

    def mend(self, user):
        """It is back."""
        self._loop.call_soon_threadsafe(self._refused.discard, user)

    def close(self):
        """Nobody is served any more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(120.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        self._refused = set()
        rig = self

        class Server(self._asyncssh.SSHServer):
            def connection_made(self, connection):
                self.connection = connection

            def begin_auth(self, username):
                self.username = username
                return True

            def auth_completed(self):
                rig.connections.setdefault(self.username, set()).add(self.connection)
                if self.username in rig._refused:
                    self.connection.abort()

            def server_requested(self, listen_host, listen_port):
                return listen_host == "127.0.0.1"

            def connection_requested(self, dest_host, dest_port, orig_host, orig_port):
                return dest_host == "127.0.0.1"

        listen = self._asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[self._server_key],
            authorized_client_keys=str(self.folder / "authorized_keys"),
            process_factory=self._process,
            encoding=None,
        )
        self._listener = self._loop.run_until_complete(listen)
        self.port = self._listener.get_port()
        started.set()
        self._loop.run_forever()

    async def _end(self):
        self._listener.close()
        for user in list(self.connections):
            self._cut(user)
        await self._listener.wait_closed()
        await asyncio.gather(*self._serving)

    def _cut(self, user):
        self._refused.add(user)
        for connection in self.connections.pop(user, ()):
            connection.abort()

    async def _process(self, process):
        home = self.folder / process.get_extra_info("username")
        if not home.exists():
            home.mkdir()
            if self.cache is not None:
                (home / ".cache").symlink_to(self.cache)
        env = {**os.environ, "HOME": str(home), "PYTHONPATH": ""}
        pipe = asyncio.subprocess.PIPE
        streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
        child = await asyncio.create_subprocess_shell(process.command, **streams, env=env, cwd=home)
        serving = self._loop.create_task(self._serve(process, child))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        await serving

    async def _serve(self, process, child):
        """asyncssh's own redirection leaves warnings behind when a connection breaks."""
        feeding = self._loop.create_task(_pour(process.stdin, child.stdin, end=True))
        await asyncio.gather(_pour(child.stdout, process.stdout), _pour(child.stderr, process.stderr))
        code = await child.wait()
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        child._transport.close()
        if not process.is_closing():
            process.exit(code)


async def _pour(source, sink, *, end=False):
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncio.CancelledError):  # the connection broke, or the process has ended
        pass
    except Exception as error:
        if type(error).__name__ not in {"ConnectionLost", "BreakReceived", "SignalReceived", "DisconnectError"}:
            raise
    finally:
        if end:
            sink.close()


class SshRig(LocalRig):
    """Two machines with one CPU each; what exists is what the stewards there have written down, and /proc."""

    offer_id = "ssh:cpux1"

    def __init__(self, folder=None):
        pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install '.[ssh]'")
        super().__init__(folder)
        self.server = SshServer(self.folder, shared_cache())
        facts = {"host": "127.0.0.1", "port": self.server.port, "key": str(self.server.key_file), "slots": 1}
        facts["host_key"] = self.server.host_key
        self.hosts = [Host(name=name, user=name, **facts) for name in ("ada", "bell")]
        self.way = Way(server=SERVER, python=sys.executable, preload=(), back=None)

    def provider(self, *, supply=None, **knobs):
        request = {"address": self.address, "lease_s": 30.0}
        way = replace(self.way, gone_s=knobs.pop("gone_s", 60.0))
        facts = {"state_dir": self.folder, "clock": self.clock, "hosts": self.hosts, "way": way}
        return SshProvider(**{**facts, "request": request, "most": supply, **knobs})

    def left(self):
        for path in self.folder.glob(f"*/.local/state/sublet-nodes/{SERVER}/nodes/*.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["pid"]:
                self._seen[record["node_id"]] = (record["pid"], record["start"])
        return sorted(name for name, (pid, start) in self._seen.items() if processes.instance(pid, start))

    def clean_up(self):
        self.server.close()
        return super().clean_up()
