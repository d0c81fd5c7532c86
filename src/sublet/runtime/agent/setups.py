"""The setup of a job on a node, run once before its workers, and wrappers of commands: synced folders, containers.

Once for the same text, files and directory; one that failed is run again for the next worker. All that wait for it end
with its exit code and its last lines, as if they had printed them.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sublet.runtime.agent.interpreter import telling
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.processes import look
from sublet.runtime.agent.worker import LIFE, AgentWorker
from sublet.runtime.file_sync.contained import ContainerFacts
from sublet.runtime.file_sync.records import Record, folder
from sublet.wire.files import Travel
from sublet.wire.messages import StartWorker

OURS = (sys.executable, "-P", "-m")
MOUNTED, CONTAINED = "sublet.runtime.file_sync.mounted", "sublet.runtime.file_sync.contained"
_SETUP_S = 3600.0  # for all of it: one that waits at a terminal is not paid for for ever
PYTHON = "SUBLET_PYTHON"  # the variable that names the Python of the agent, which has Sublet
TOO_LONG = 124  # as `timeout` says of a command
SHELL = ("bash", "-euo", "pipefail", "-c")
Key = tuple[str, str, str]  # directory, text, files


def dressed(order: StartWorker, travel: Travel) -> StartWorker:
    """As it is, where it has neither."""
    argv, env = order.argv, order.env
    if not argv:
        return order
    if travel.image:
        facts = _facts(order, travel, order.worker_id)
        argv = (*OURS, CONTAINED, facts.to_word(), "run", *argv)
        record = Record.of_container("", facts.container, facts.agent, facts.born)
        env = {**env, LIFE: str(record.beside(".pid"))}
    if travel.kept:
        pairs = [word for place, uri in travel.kept.items() for word in (uri, place)]
        argv = (*OURS, MOUNTED, *pairs, "--", *argv)
    return order if argv is order.argv else replace(order, argv=argv, env=env)


def preparing_text(order: StartWorker, travel: Travel) -> str:
    """Commands of a node before the first worker: outside of a container for files from elsewhere, else inside."""
    if not travel.image:
        return travel.setup
    facts = _facts(order, travel, f"{order.job_id}-setup")
    return f"{travel.setup}\n{shlex.join((*OURS, CONTAINED, facts.to_word(), 'prepare'))}"


def _facts(order: StartWorker, travel: Travel, name: str) -> ContainerFacts:
    me, saved = look(os.getpid()), order.env.get("SUBLET_CHECKPOINT_DIR", "")
    return ContainerFacts(
        image=travel.image,
        agent=os.getpid(),
        born=me.start if me else 0,
        name=name,
        cwd=order.cwd or "/",
        seen=(*travel.seen, *([saved] if saved.startswith("/") else [])),
        names=(*order.env, *order.defaults),
        inside=travel.inside,
        records=str(folder()),
    )


class _SetupEnd(NamedTuple):
    """How one ended: with exit code 0, or with these last words."""

    key: Key
    code: int
    why: str


@dataclass(slots=True)
class _Run:
    process: AgentWorker
    until_s: float
    late: bool = False


def key_of(order: StartWorker, travel: Travel) -> Key:
    """The key of the setup that this worker needs."""
    return order.cwd, f"{travel.setup}\0{travel.image}\0{travel.inside}", travel.code


class Setups:
    """The setups of one node."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._done: dict[Key, str] = {}  # and the Python that each made, "" for none
        self._running: dict[Key, _Run] = {}

    def is_done(self, order: StartWorker, travel: Travel, node_env: Mapping[str, str]) -> bool:
        """Whether this worker can start; the first that asks starts the script. OSError where that cannot be."""
        key = key_of(order, travel)
        text = preparing_text(order, travel)
        if not text or key in self._done:
            return True
        if key not in self._running:
            text = text if travel.image else telling(text, order.cwd)
            script = replace(order, argv=(*SHELL, text), note="", watch=False, reads=False, offers=False)
            own_env = {**node_env, "SUBLET_JOB_ID": order.job_id, PYTHON: sys.executable}
            process = self._machine.processes.start(script, own_env)
            if process.line is not None:
                process.line.shutdown(socket.SHUT_WR)  # it hears nothing from us
            self._running[key] = _Run(process, self._machine.wall.monotonic() + _SETUP_S)
        return False

    def python(self, order: StartWorker, travel: Travel) -> str:
        """The Python that this worker's setup has made, else that of the order."""
        return self._done.get(key_of(order, travel), "") or order.python

    def ended(self, pid: int, code: int) -> _SetupEnd | None:
        """A process has; None if it was none of these."""
        found = next(((key, run) for key, run in self._running.items() if run.process.pid == pid), None)
        if found is None:
            return None
        key, run = found
        del self._running[key]
        made = run.process.said()
        run.process.close()
        if code == 0:
            self._done[key] = made
            return _SetupEnd(key, 0, "")
        if run.late:
            return _SetupEnd(key, TOO_LONG, f"setup took more than {_SETUP_S / 60:g} minutes, and was ended")
        words = run.process.last_words(self._machine.disk)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return _SetupEnd(key, code, f"setup ended with {how}:\n{words}" if words else f"setup ended with {how}")

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return min((run.until_s for run in self._running.values() if not run.late), default=float("inf"))

    def keep_time(self, now_s: float) -> None:
        """End those that take too long."""
        for run in self._running.values():
            if now_s >= run.until_s and not run.late:
                run.late = True
                self._machine.processes.end(run.process.pid, signal.SIGKILL)

    def end_unwanted(self, wanted: Collection[Key]) -> None:
        """No worker waits for others any more."""
        for key in self._running.keys() - set(wanted):
            run = self._running.pop(key)
            run.process.close()
            self._machine.processes.end(run.process.pid, signal.SIGKILL)
