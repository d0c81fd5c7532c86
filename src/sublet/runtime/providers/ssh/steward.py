"""Our man on a machine, for as long as an ssh connection lasts: he starts, watches and ends agents there.

    controller -- ssh --> steward -- fork --> template -- fork --> agent -- fork --> workers

He answers on standard output, a line of JSON for each question on standard input; a line without a question is news.
Agents outlive him: the next one finds them by the records that he keeps.

    {"id": 3, "ask": "begin", "record": {}, "request": {}}    {"id": 3, "answer": {}} or {"id": 3, "refused": why}
    {"id": 4, "ask": "end", "node_id": "n7"}                  {"id": 4, "answer": null}
    {"id": 5, "ask": "held"}                                  {"gone": "n7"}
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sublet.errors import RentFailed
from sublet.runtime.agent import processes
from sublet.runtime.agent.devices import found_devices
from sublet.runtime.file_sync.contained import ContainerEngine
from sublet.runtime.providers.local.nodes import Nodes, Template, TemplateForker
from sublet.runtime.providers.local.records import NodeRecord, Records

LONGEST = 1 << 20  # of one question
SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
SMI_S = 10.0
NEEDED = ("numpy", "torch")  # by scripts with the SDK


class HostSteward:
    """See the module. Questions are answered one after the other; every one may be repeated."""

    def __init__(self, folder: Path, preload: Sequence[str]) -> None:
        self._folder = folder
        self._template = Template(preload, folder / "template.log")
        self._nodes = Nodes(Records(folder / "nodes"), TemplateForker(self._template), self._on_death)

    async def serve(self, questions: asyncio.StreamReader) -> None:
        """Until the client is gone; agents stay."""
        async for lost in self._nodes.find_again():
            if lost.node_id not in self._nodes.held:
                self._say({"gone": lost.node_id})
        self._template.start()
        self._say({"id": 0, "answer": look_at_machine()})
        while line := await questions.readline():
            await self._answer(json.loads(line))
        await self._nodes.close()
        await self._template.stop()

    async def _answer(self, question: Mapping[str, Any]) -> None:
        try:
            if question["ask"] == "begin":
                answer: Any = await self._begin(NodeRecord(**question["record"]), question["request"])
            elif question["ask"] == "end":
                await self._end(question["node_id"])
                answer = None
            else:
                answer = [asdict(record) for record in self._living()]
            self._say({"id": question["id"], "answer": answer})
        except RentFailed as error:
            self._say({"id": question["id"], "refused": error.why})

    async def _begin(self, new: NodeRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        known = self._nodes.held.get(new.node_id)
        if known is not None:
            if known.token != new.token:
                raise RentFailed(new.offer_id, "the name is in use")
            return asdict(known)
        records = self._nodes.records
        facts = {
            **request,
            "node_id": new.node_id,
            "token": new.token,
            "notice_file": str(records.path(new.node_id, "notice")),
            "log": str(records.path(new.node_id, "log")),
        }
        born = await self._nodes.fork(new, facts)
        self._nodes.keep(born)
        return asdict(born)

    async def _end(self, node_id: str) -> None:
        if (record := self._nodes.held.get(node_id)) is not None:
            self._nodes.end(record)
        await self._nodes.wait_for_end(node_id)

    def _living(self) -> list[NodeRecord]:
        return [record for record in self._nodes.held.values() if self._nodes.records.is_alive(record)]

    def _on_death(self, node_id: str) -> None:
        """An agent has ended by itself."""
        if (record := self._nodes.held.get(node_id)) is not None:
            self._nodes.end(record)
            self._say({"gone": node_id})

    def _say(self, word: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # there is no listener: we will see that they have gone
            os.write(sys.stdout.fileno(), json.dumps(word).encode() + b"\n")


def look_at_machine() -> dict[str, Any]:
    """Its GPUs by name, its CPUs, what agents or the SDK need and is not there, and what runs containers, if any."""
    names: list[str] = []
    if found_devices(os.environ):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=True)  # noqa: S603 - our own words
            names = [line.strip() for line in told.stdout.splitlines() if line.strip()]
    lacks = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if importlib.util.find_spec("cryptography") is None and shutil.which("openssl") is None:
        lacks.append("cryptography or openssl")  # an agent makes its key by either
    engine, why = ContainerEngine.found()
    contains = {"containers": "" if engine is None else engine.name, "no_containers": why}
    return {"gpus": names, "cpus": os.cpu_count() or 1, "lacks": lacks, **contains}


def take_over(folder: Path) -> int:
    """One steward at a time: one whose connection broke without his knowing it is ended."""
    lock = os.open(folder / "steward.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            words = os.pread(lock, 100, 0).split()
            if len(words) == 2 and processes.alive(int(words[0]), int(words[1])):  # noqa: PLR2004 - a process and its birth
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(words[0]), signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)  # when he has ended
            break
    me = processes.look(os.getpid())
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {0 if me is None else me.start}\n".encode(), 0)
    return lock


async def _serve(folder: Path, preload: Sequence[str]) -> None:
    questions = asyncio.StreamReader(limit=LONGEST)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    await HostSteward(folder, preload).serve(questions)


def main() -> None:
    """`python -m sublet.runtime.providers.ssh.steward SERVER MODULE...`, by ssh."""
    folder = Path.home() / ".local" / "state" / "sublet-nodes" / Path(sys.argv[1]).name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of standard input says it, too
    lock = take_over(folder)
    try:
        asyncio.run(_serve(folder, sys.argv[2:]))
    finally:
        os.close(lock)


if __name__ == "__main__":
    main()
