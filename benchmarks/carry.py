"""What it costs to carry a checkpoint from a node's own disk to the controller, and back to another node.

    python -m benchmarks.carry                         256 MB of random bytes, over TLS on this machine
    python -m benchmarks.carry --against OTHER/TREE    ... and the same by the code of another tree, in turns

The engine, the agents (processes of their own) and the controller's side are those that ship. Figures are MiB for each
second that both ends used a processor, for hashing at the node, the line and the disk; beside them a plain copy of the
same files with one fsync each, and their SHA-256. What comes back is compared to the byte.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sublet.machine.files import FILES
from sublet.machine.wall import WALL
from sublet.runtime.controller.pulling import Pulling
from sublet.runtime.engines.tls import TlsEngine
from sublet.runtime.identity.authority import Authority
from sublet.wire.messages import Hello, StartWorker, WorkerUp
from sublet.wire.saves import Offered, Uncarried, Wants
from sublet.wire.travel import Lacks, Part, Travel

JOB = "job-1"
FILES_EACH = 4
PATIENCE_S = 300.0
CAPTIONS = {"to": "to the controller", "back": "back to a node", "copy": "cp and sha256"}


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another tree of this project")
    parser.add_argument("--json", action="store_true", help="one run, its figures alone")
    chosen = parser.parse_args()
    if chosen.json:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(Bench(Path(folder), chosen.megabytes).run())))
        return
    trees = {"this tree": Path(__file__).parents[1], **({"the other": chosen.against} if chosen.against else {})}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(chosen.repeats):
        for name, tree in trees.items():
            rows[name].append(_in_tree(tree, chosen.megabytes))
    print(f"{chosen.megabytes} MiB in {FILES_EACH} files, MiB per CPU second of both ends, medians of {chosen.repeats}")
    print(f"  {'':<20}" + "".join(f"{name:>12}" for name in trees) + (f"{'ratio':>10}" if chosen.against else ""))
    for key, caption in CAPTIONS.items():
        found = [statistics.median(row[key] for row in rows[name]) for name in trees]
        ratio = f"{found[0] / found[1]:>9.1f}x" if chosen.against else ""
        print(f"  {caption:<20}" + "".join(f"{each:>12.0f}" for each in found) + ratio, flush=True)


def _in_tree(tree: Path, megabytes: int) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
    command = [sys.executable, __file__, "--json", "--megabytes", str(megabytes)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
    found: dict[str, float] = json.loads(done.stdout)
    return found


class Bench:
    """A controller's side, and one agent after the other."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder, self._megabytes = folder, megabytes
        self._heard: list[tuple[str, Any]] = []
        self._saved: list[Any] = []
        self._generation = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._authority = Authority(folder / "identity")
        self._engine = TlsEngine(f"tls:127.0.0.1:{port}", authority=self._authority)
        self._pulling = Pulling(
            folder / "state" / "checkpoints",
            files=FILES,
            engine=self._engine,
            wall=WALL,
            terms=lambda _: (3, self._generation),
            saved=lambda saved, _: self._saved.append(saved),
            alarm=lambda _, text: sys.exit(text),
        )

    async def run(self) -> dict[str, float]:
        """MiB per CPU second, by way."""
        await self._engine.open(self._hear)
        source = self._place("first")
        source.mkdir(parents=True)
        for index in range(FILES_EACH):
            (source / f"weights-{index}.bin").write_bytes(os.urandom((self._megabytes << 20) // FILES_EACH))
        to_s = await self._with_agent("first", lambda: bool(self._saved))
        back_s = await self._with_agent("second", lambda: any(isinstance(said, WorkerUp) for _, said in self._heard))
        await self._engine.close()
        same = filecmp.cmpfiles(source, self._place("second"), [path.name for path in source.iterdir()], shallow=False)
        assert len(same[0]) == FILES_EACH, same
        copy_s = self._copy(source)
        return {"to": self._megabytes / to_s, "back": self._megabytes / back_s, "copy": self._megabytes / copy_s}

    async def _with_agent(self, name: str, is_done: Callable[[], bool]) -> float:
        """CPU seconds of both ends from its first word on."""
        self._generation += 1
        self._heard.clear()
        secret = self._folder / name / "secret"
        secret.parent.mkdir(exist_ok=True)
        secret.write_text(f"secret of {name}")
        certificate = self._folder / "authority.pem"
        certificate.write_text(self._authority.certificate)
        self._engine.expect(name, f"secret of {name}")
        command = [sys.executable, "-m", "sublet.runtime.agent", "--node", name, "--address", self._engine.address]
        command += ["--token-file", str(secret), "--authority", str(certificate), "--host", "127.0.0.1"]
        agent = _begin(command)
        try:
            await _until(lambda: any(isinstance(said, Hello) for _, said in self._heard))
            before_s = time.process_time() + _cpu_s(agent.pid)
            self._engine.send(name, self._order())
            await _until(is_done)
            return time.process_time() + _cpu_s(agent.pid) - before_s
        finally:
            agent.kill()
            agent.wait()

    def _order(self) -> StartWorker:
        worker_id, env = f"{JOB}.{self._generation}.0", {"RANK": "0", "SUBLET_GENERATION": str(self._generation)}
        argv, travel = ("sleep", "60"), Travel(carries=True)
        return StartWorker(worker_id=worker_id, job_id=JOB, argv=argv, env=env, watch=True, cwd="/", travel=travel)

    def _hear(self, node_id: str, message: Any) -> None:
        self._heard.append((node_id, None if isinstance(message, Part) else message))
        if isinstance(message, Part):
            self._pulling.take(node_id, message)
        elif isinstance(message, Lacks):
            doubted = [message.doubted] if hasattr(message, "doubted") else []
            for digest in self._pulling.send_parts(node_id, message.digests, *doubted):
                self._engine.send(node_id, Part(digest=digest))
        elif isinstance(message, Offered | Wants | Uncarried):
            self._pulling.hear(node_id, message)

    def _place(self, name: str) -> Path:
        return self._folder / name / f"{name}.notice.files" / "checkpoints" / JOB

    def _copy(self, source: Path) -> float:
        target = self._folder / "copy"
        target.mkdir()
        before_s = time.process_time()
        for path in source.iterdir():
            shutil.copyfile(path, target / path.name)
            with (target / path.name).open("rb") as file:
                os.fsync(file.fileno())
                hashlib.file_digest(file, "sha256")
        return time.process_time() - before_s


def _begin(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves


async def _until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > ends_s:
            sys.exit("it takes too long")
        await asyncio.sleep(0.01)


def _cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
