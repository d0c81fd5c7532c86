"""Clouds to test providers and engines on, seen from outside as a bill is; the one of this machine is `LocalRig`.

The conformance suites use the methods of a `ProviderRig` or an `EngineRig` and nothing else of a cloud. A provider or
an engine needs such a rig; one class may be both.
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
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sublet.domain.events import AvailabilityChanged
from sublet.runtime.agent import processes
from sublet.runtime.clock import Clock
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.providers.local.provider import Box, LocalProvider
from sublet.runtime.providers.protocol import MarketNews, Provider
from sublet.testing.values import an_offer
from sublet.wire.messages import StartWorker, ToController

PATIENCE_S = 90.0  # far beyond what anything here takes; a test that needs it fails
Found = TypeVar("Found")


class Rig(Protocol):
    """The common base of both: a cloud that can be looked at, hurt, and cleaned up."""

    def left(self) -> list[str]:
        """Names of all nodes that exist and cost money, as the cloud itself sees it; sorted."""
        ...

    def kill(self, node_id: str) -> None:
        """The machine dies, without a word to anybody."""
        ...

    def clean_up(self) -> list[str]:
        """End what is left; the names of what had to be ended: none after a test that did its own work."""
        ...


class ProviderRig(Rig, Protocol):
    """A cloud for the suite of providers."""

    @property
    def offer_id(self) -> str:
        """An offer of which at least two nodes can be had."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that its providers are made with."""
        ...

    def provider(self, *, supply: int | None = None) -> Provider:
        """The account as a new controller would open it; at most `supply` nodes can be held."""
        ...


class EngineRig(Rig, Protocol):
    """Machines for the suite of engines: agents, unknown peers, and work for both."""

    def engine(self, *, lease_s: float = ...) -> Engine:
        """A controller's engine; each call makes another one for the same machines."""
        ...

    def agent(self, node_id: str, token: str, *, lease_s: float = ...) -> int:
        """A machine with an agent on it; its pid."""
        ...

    def stranger(self, *lines: bytes) -> bytes:
        """An unknown peer that sends these bytes; the answer until it is hung up on."""
        ...

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A line to the engine for a test: reader and writer."""
        ...

    def script(self, name: str, text: str) -> str:
        """The path of a Python file that workers can run."""
        ...

    def start(self, worker_id: str, script: str) -> StartWorker:
        """The order to run it."""
        ...


async def until(condition: Callable[[], Found], patience_s: float = PATIENCE_S) -> Found:
    """Wait for something to come true; what it is then."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never came true"
        await asyncio.sleep(0.005)
    return found


class Ears:
    """Remembers what was told: `hear` is for an engine, `tell` for a provider."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def hear(self, node_id: str, message: ToController) -> None:
        """An agent speaks."""
        self.heard.append((node_id, message))

    def tell(self, news: MarketNews) -> None:
        """A provider speaks."""
        self.heard.append(("", news))

    def all(self, kind: type[Found], **facts: Any) -> list[Found]:
        """Every message of this kind with these facts, in order; what a worker said counts as said."""
        messages = [getattr(message, "message", message) for _, message in self.heard]
        return [
            message
            for message in messages
            if isinstance(message, kind) and all(getattr(message, name) == fact for name, fact in facts.items())
        ]

    async def next(self, kind: type[Found], **facts: Any) -> Found:
        """The first of them, once it has come."""
        return (await until(lambda: self.all(kind, **facts)))[0]


class Watch:
    """A monotonic clock that stands still until it is started, so that a slow machine is ready when time begins."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        """Seconds since it was started."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def start(self) -> None:
        """Let time begin, once."""
        if self._began_s is None:
            self._began_s = time.monotonic()


def with_fields(value: type[Any], name: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """These arguments, with those that are fields of a value gathered in one, as the argument `name`."""
    inner = {each.name for each in fields(value)}
    made = value(**{key: knob for key, knob in knobs.items() if key in inner})
    return {key: knob for key, knob in knobs.items() if key not in inner} | {name: made}


class LocalRig:
    """This machine. Sessions that ever belonged to it are looked for in /proc."""

    offer_id = "spot"

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder or tempfile.mkdtemp(prefix="sublet-"))
        self.address = f"unix:{self.folder / 'agents.sock'}"
        self.clock = Clock()
        self.watch = Watch()
        self._seen: dict[str, tuple[int, int]] = {}  # name -> (pid, start)
        self._agents: list[subprocess.Popen[bytes]] = []

    # ------------------------------------------------------------------ providers

    def provider(self, *, supply: int | None = None, **knobs: Any) -> Provider:
        """The account as a new controller would open it; at most `supply` nodes can be held."""
        market = [] if supply is None else [AvailabilityChanged(0.0, self.offer_id, supply)]
        facts = {"state_dir": self.folder, "clock": self.clock, "offers": [an_offer(self.offer_id, gpus=1)]}
        facts |= {"market": market, "preload": (), "lease_s": 30.0}
        return LocalProvider(**with_fields(Box, "box", facts | knobs))

    def left(self) -> list[str]:
        """Names of all that exists, as the cloud itself sees it."""
        for path in (self.folder / "nodes").glob("*.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["pid"]:
                self._seen[record["node_id"]] = (record["pid"], record["start"])
        return sorted(name for name, (pid, start) in self._seen.items() if processes.instance(pid, start))

    def kill(self, node_id: str) -> None:
        """The machine dies."""
        assert node_id in self.left()
        os.kill(self._seen[node_id][0], signal.SIGKILL)

    # ------------------------------------------------------------------ engines

    def engine(self, **knobs: Any) -> Engine:
        """A controller's engine."""
        return LocalEngine(self.address, **knobs)

    def agent(self, node_id: str, token: str, *, address: str = "", lease_s: float = 30.0) -> int:
        """A machine with an agent on it; its pid."""
        token_file = self.folder / f"{node_id}.token"
        token_file.write_text(token, encoding="utf-8")
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", node_id, "--lease-s", str(lease_s)]
        command += ["--address", address or self.address, "--token-file", str(token_file)]
        with (self.folder / f"{node_id}.agent.log").open("ab") as log:
            agent = subprocess.Popen(  # noqa: S603 - ourselves
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._agents.append(agent)
        seen = processes.look(agent.pid)
        assert seen is not None
        self._seen[node_id] = (agent.pid, seen.start)
        return agent.pid

    def stranger(self, *lines: bytes) -> bytes:
        """An unknown peer that sends these bytes; the answer until it is hung up on."""
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

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A line to the engine for a test: reader and writer."""
        return await asyncio.open_unix_connection(self.address.removeprefix("unix:"))

    # ------------------------------------------------------------------ work

    def script(self, name: str, text: str) -> str:
        """A file that workers run."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def start(self, worker_id: str, script: str, *arguments: str, **facts: Any) -> StartWorker:
        """The order to run it, by the interpreter of the tests."""
        argv = facts.pop("argv", (sys.executable, script, *arguments))
        log = str(self.folder / f"{worker_id}.log")
        return StartWorker(worker_id=worker_id, job_id="job", argv=argv, log=log, **facts)

    def printed(self, worker_id: str) -> str:
        """The output of a worker."""
        path = self.folder / f"{worker_id}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def clean_up(self) -> list[str]:
        """End what is left, by its own id; the names of what had to be ended."""
        left = self.left()
        for name in left:
            processes.kill_instance(*self._seen[name])
        for agent in self._agents:
            agent.wait()
        shutil.rmtree(self.folder)
        return left
