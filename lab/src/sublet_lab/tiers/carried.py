"""A checkpoint on its way home: from a node's own disk over the line to the controller, and back to another node.

The engine (TLS), the agents (processes of their own) and the controller's side are those that ship; all are on this
machine. A node has what it saved in `place_of(node)`, and the next one has it there when it was brought.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sublet.machine.files import FILES
from sublet.machine.wall import WALL
from sublet.runtime.controller.files.checkpoints import PulledJobs, Pulling
from sublet.runtime.engines.server import TlsEngine
from sublet.runtime.identity.authority import Authority
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.wire.files import Lacks, Offered, Part, Travel, Uncarried, Wants
from sublet.wire.messages import Hello, StartWorker, WorkerUp
from sublet_lab.tiers.places import Took, state_of

JOB = "job-1"
KEEP = 3
PATIENCE_S = 300.0
LOOK_S = 0.005


class Spent(NamedTuple):
    """From the order to the agent until all of it was there."""

    wall_s: float
    cpu_s: float  # of both ends


class Carrying:
    """A controller's side, and one agent after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: list[tuple[str, Any]] = []
        self._saved: list[Any] = []
        self._troubles: list[str] = []
        self.generation = 0  # of the last worker
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._authority = Authority(folder / "identity")
        self._engine = TlsEngine(f"tls:127.0.0.1:{port}", authority=self._authority)
        self._pulling = Pulling(
            folder / "state" / "checkpoints",
            FILES,
            self._engine,
            WALL,
            PulledJobs(
                terms=lambda _: (KEEP, self.generation),
                saved=lambda saved, _: self._saved.append(saved),
                alarm=lambda _, text: self._troubles.append(text),
            ),
        )

    async def open(self) -> None:
        """Agents may come."""
        await self._engine.open(self._hear)

    async def close(self) -> None:
        """No more."""
        await self._engine.close()

    def place_of(self, node: str) -> Path:
        """The folder of checkpoints on its disk."""
        return self._folder / node / f"{node}.notice.files" / "checkpoints" / JOB

    async def carry(self, node: str, *, sdk: bool) -> Spent:
        """Carry its files to the controller: step-N folders of the SDK, or those of a script."""
        before = len(self._saved)
        return await self._with_agent(node, lambda: len(self._saved) > before, watch=not sdk)

    async def bring(self, node: str) -> Spent:
        """The newest to a node that has nothing."""
        return await self._with_agent(node, lambda: any(isinstance(said, WorkerUp) for _, said in self._heard))

    async def _with_agent(self, name: str, is_done: Callable[[], bool], *, watch: bool = True) -> Spent:
        self.generation += 1
        self._heard.clear()
        secret = self._folder / name / "secret"
        secret.parent.mkdir(exist_ok=True, parents=True)
        secret.write_text(f"secret of {name}", encoding="utf-8")
        certificate = self._folder / "authority.pem"
        certificate.write_text(self._authority.certificate, encoding="utf-8")
        self._engine.expect(name, f"secret of {name}")
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", name, "--address", self._engine.address]
        command += ["--token-file", str(secret), "--authority", str(certificate), "--host", "127.0.0.1"]
        agent = _begin(command)
        try:
            await self._until(lambda: any(isinstance(said, Hello) for _, said in self._heard))
            began_s, cpu_s = time.perf_counter(), time.process_time() + _cpu_s(agent.pid)
            self._engine.send(name, self._order(watch=watch))
            await self._until(is_done)
            return Spent(time.perf_counter() - began_s, time.process_time() + _cpu_s(agent.pid) - cpu_s)
        finally:
            agent.kill()
            agent.wait()

    def _order(self, *, watch: bool) -> StartWorker:
        worker_id, env = f"{JOB}.{self.generation}.0", {"RANK": "0", "SUBLET_GENERATION": str(self.generation)}
        argv, travel = ("sleep", "60"), Travel(carries=True)
        return StartWorker(worker_id=worker_id, job_id=JOB, argv=argv, env=env, watch=watch, cwd="/", travel=travel)

    def _hear(self, node_id: str, message: Any) -> None:
        self._heard.append((node_id, None if isinstance(message, Part) else message))
        if isinstance(message, Part):
            self._pulling.take(node_id, message)
        elif isinstance(message, Lacks):
            for digest in self._pulling.send_parts(node_id, message.digests, message.doubted):
                self._engine.send(node_id, Part(digest=digest))
        elif isinstance(message, Offered | Wants | Uncarried):
            self._pulling.receive(node_id, message)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + PATIENCE_S
        while not is_so():
            if self._troubles or time.monotonic() > ends_s:
                raise TimeoutError("; ".join(self._troubles) or f"not carried within {PATIENCE_S:g} s")
            await asyncio.sleep(LOOK_S)


def turned(sizes: Sequence[int], by: int) -> list[int]:
    """Another one comes first each round: the first has to bear the remains of the round before."""
    at = by % len(sizes)
    return [*sizes[at:], *sizes[:at]]


def measure_carried(folder: Path, sizes: Sequence[int], rounds: int) -> Mapping[int, Sequence[Took]]:
    """Checkpoints of these sizes to the controller, and from there to a node that has nothing and loads them.

    Each is another one, as training makes them: of what the controller has already, nothing would be carried.
    """
    return asyncio.run(_measured(folder, sizes, rounds))


async def _measured(folder: Path, sizes: Sequence[int], rounds: int) -> Mapping[int, Sequence[Took]]:
    line, found = Carrying(folder), {size: list[Took]() for size in sizes}
    await line.open()
    order = [each for round_ in range(rounds + 1) for each in turned(sizes, round_)]
    for number, size in enumerate(order, start=1):
        source = line.place_of(f"from-{number}")
        source.mkdir(parents=True)
        with Checkpoints(source, writer="study", generation=line.generation + 1) as checkpoints:
            checkpoints.save(number, state_of(size, seed=number), {}).wait()
        to = await line.carry(f"from-{number}", sdk=True)
        back = await line.bring(f"to-{number}")
        began_s = time.perf_counter()
        loaded = newest(line.place_of(f"to-{number}"))
        if loaded is None or loaded.step != number:
            raise AssertionError(f"step {number} was carried, and {loaded and loaded.step} came back")
        if number > len(sizes):  # the first of each opens what the others find open
            found[size].append(Took(write_s=to.wall_s, read_s=back.wall_s + time.perf_counter() - began_s))
        for node in (f"from-{number}", f"to-{number}"):
            shutil.rmtree(folder / node)
    await line.close()
    return found


def _begin(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves


def _cpu_s(pid: int) -> float:
    """User and system time of a process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
