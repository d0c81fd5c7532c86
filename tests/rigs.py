"""Clouds to test on, by the names that providers and engines are registered under; seen from outside, as a bill is.

A conformance suite uses the methods of a rig and nothing else of a cloud. Whoever registers a provider or an engine
adds a rig here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sublet.domain.events import AvailabilityChanged
from sublet.runtime.agent import processes
from sublet.runtime.clock import Clock
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.providers.local.provider import LocalProvider
from sublet.wire.messages import StartWorker
from tests.moto_cloud import AwsRig
from tests.strategies import an_offer

PATIENCE_S = 10.0  # far beyond what anything here takes; a test that needs it fails


async def until(condition, patience_s=PATIENCE_S):
    """Wait for something to come true; what it is then."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never came true"
        await asyncio.sleep(0.005)
    return found


class Ears:
    """Remembers what was told."""

    def __init__(self):
        self.heard = []

    def hear(self, node_id, message):
        self.heard.append((node_id, message))

    def tell(self, news):
        self.heard.append(("", news))

    def all(self, kind, **facts):
        messages = [getattr(message, "message", message) for _, message in self.heard]
        return [
            message
            for message in messages
            if isinstance(message, kind) and all(getattr(message, name) == fact for name, fact in facts.items())
        ]

    async def next(self, kind, **facts):
        return (await until(lambda: self.all(kind, **facts)))[0]


class Watch:
    """A monotonic clock that stands still until it is started, so that a slow machine is ready when time begins."""

    def __init__(self):
        self._began_s = None

    def __call__(self):
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def start(self):
        if self._began_s is None:
            self._began_s = time.monotonic()


class LocalRig:
    """This machine. Sessions that ever belonged to it are looked for in /proc."""

    offer_id = "spot"

    def __init__(self, folder=None):
        self.folder = Path(folder or tempfile.mkdtemp(prefix="sublet-"))
        self.address = f"unix:{self.folder / 'agents.sock'}"
        self.clock = Clock()
        self.watch = Watch()
        self._seen = {}  # name -> (pid, start)
        self._agents = []

    # ------------------------------------------------------------------ providers

    def provider(self, *, supply=None, **knobs):
        """The account as a new controller would open it; at most `supply` nodes can be held."""
        market = [] if supply is None else [AvailabilityChanged(0.0, self.offer_id, supply)]
        facts = {"state_dir": self.folder, "clock": self.clock, "offers": [an_offer(self.offer_id, gpus=1)]}
        return LocalProvider(**{**facts, "market": market, "preload": (), "lease_s": 30.0, **knobs})

    def left(self):
        """Names of all that exists, as the cloud itself sees it."""
        for path in (self.folder / "nodes").glob("*.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["pid"]:
                self._seen[record["node_id"]] = (record["pid"], record["start"])
        return sorted(name for name, (pid, start) in self._seen.items() if processes.instance(pid, start))

    def kill(self, node_id):
        """The machine dies."""
        assert node_id in self.left()
        os.kill(self._seen[node_id][0], signal.SIGKILL)

    # ------------------------------------------------------------------ engines

    def engine(self, **knobs):
        """A controller's engine."""
        return LocalEngine(self.address, **knobs)

    def agent(self, node_id, token, *, address="", lease_s=30.0):
        """A machine with an agent on it; its pid."""
        token_file = self.folder / f"{node_id}.token"
        token_file.write_text(token, encoding="utf-8")
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", node_id, "--lease-s", str(lease_s)]
        command += ["--address", address or self.address, "--token-file", str(token_file)]
        with (self.folder / f"{node_id}.agent.log").open("ab") as log:
            agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._agents.append(agent)
        self._seen[node_id] = (agent.pid, processes.look(agent.pid).start)
        return agent.pid

    def stranger(self, *lines):
        """Somebody who sends these bytes; what it gets back until it is hung up on."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(PATIENCE_S)
            line.connect(self.address.removeprefix("unix:"))
            answer = b""
            try:
                for data in lines:
                    line.sendall(data)
                while data := line.recv(65536):
                    answer += data
            except (BrokenPipeError, ConnectionResetError):
                pass
            return answer

    async def connect(self):
        """A line to the engine for whoever wants one: reader and writer."""
        return await asyncio.open_unix_connection(self.address.removeprefix("unix:"))

    # ------------------------------------------------------------------ work

    def script(self, name, text):
        """A file that workers run."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def start(self, worker_id, script, *arguments, **facts):
        """The order to run it, by the interpreter of the tests."""
        argv = facts.pop("argv", (sys.executable, script, *arguments))
        log = str(self.folder / f"{worker_id}.log")
        return StartWorker(worker_id=worker_id, job_id="job", argv=argv, log=log, **facts)

    def printed(self, worker_id):
        """What a worker wrote."""
        path = self.folder / f"{worker_id}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def clean_up(self):
        """End what is left, by its own id; the names of what had to be ended."""
        left = self.left()
        for name in left:
            processes.kill_instance(*self._seen[name])
        for agent in self._agents:
            agent.wait()
        shutil.rmtree(self.folder)
        return left


def ray_rig(folder=None):
    """A Ray cluster; its tests are skipped where Ray is not installed."""
    from tests.ray_rig import RayRig

    return RayRig(folder)


RIGS = {"aws": AwsRig, "local": LocalRig, "ray": ray_rig}  # registered name -> rig
