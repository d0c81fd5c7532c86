"""The agent of a node: starts, watches and ends workers for the controller, and ends itself when nobody renews it.

One thread and one loop over descriptors, because it forks. What it hears from either side may be wrong or too much:
bad lines are logged and skipped, what cannot be sent is kept within bounds, nothing waits for a slow peer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import BadInput
from sublet.runtime.agent import processes
from sublet.runtime.agent.crew import Crew, log
from sublet.runtime.agent.devices import Devices, found_devices
from sublet.runtime.agent.host import NoAddress, machine_id, own_address
from sublet.runtime.agent.link import Link
from sublet.runtime.agent.metadata import Metadata
from sublet.runtime.agent.worker import Worker
from sublet.wire.lines import Message, to_line
from sublet.wire.messages import (
    AboutWorker,
    Dismiss,
    EndWorker,
    FromWorker,
    Hello,
    Leave,
    Meet,
    Noticed,
    Ping,
    Regroup,
    RenewLease,
    SaveNow,
    StartWorker,
    Stepped,
    Warn,
    Welcome,
    WorkerSeen,
)

__all__ = ["AgentFacts", "run"]

FIRST_LEASE_S = 60.0  # until the controller has said how long a lease is
GRACE_S = 5.0  # for workers whose agent must go, between SIGTERM and SIGKILL
LONGEST_WAIT_S = 60.0  # the poll behind the loop takes no infinity
CHUNK = 1 << 16
PING = to_line(Ping())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Whose agent it is, and where its controller listens (`unix:/path` or `tcp:host:port`)."""

    node_id: str
    token: str
    address: str
    notice_file: str
    host: str = ""  # where other machines reach this one; "" = SUBLET_HOST, or as the line to the controller tells
    gpus: Sequence[str] | None = None  # for workers, as CUDA_VISIBLE_DEVICES names them; None = all that are here
    lease_s: float = FIRST_LEASE_S
    boot_s: float = 0.0  # seconds on the wall before it is there, as a cloud's machine takes
    metadata_url: str = ""  # where the machine learns that it will be taken; "" = somebody else tells
    lease_file: str = ""  # touched whenever the lease is renewed, for a dead man's switch outside


def run(facts: AgentFacts) -> None:
    """Serve until dismissed, ended or no longer renewed; nothing that was started is left then."""
    agent = _Agent(facts)
    try:
        agent.serve()
    finally:
        me = processes.look(os.getpid())
        if me is not None and me.session == me.pid:
            processes.kill_instance(me.pid, me.start)


class _Agent:
    """The loop and what it knows."""

    def __init__(self, facts: AgentFacts) -> None:
        self._facts = facts
        self._selector = selectors.DefaultSelector()
        self._link = Link(facts.address, self._selector)
        gpus = found_devices(os.environ) if facts.gpus is None else facts.gpus
        self._crew = Crew(self._selector, self._tell, Devices(gpus))
        self._host = facts.host or os.environ.get("SUBLET_HOST", "")
        self._metadata = Metadata(facts.metadata_url, self._selector, self._noticed) if facts.metadata_url else None
        self._notice: Noticed | None = None  # the last one, told again to a controller that comes back
        self._ends_at_s = time.monotonic() + facts.boot_s + facts.lease_s
        self._lease_s = facts.lease_s
        self._going = False  # no new workers; gone with the last one
        self._asked = False  # by SIGTERM, to go
        self._wake, self._wake_writer = socket.socketpair()
        for end in (self._wake, self._wake_writer):
            end.settimeout(0.0)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop, which looks who it was
        signal.signal(signal.SIGTERM, self._asked_to_go)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Until it goes and its last worker has gone."""
        processes.adopt_orphans()
        boot_until_s = time.monotonic() + self._facts.boot_s
        while not self._asked and (left_s := boot_until_s - time.monotonic()) > 0:
            self._selector.select(left_s)
        while not (self._going and not self._crew.workers):
            for key, events in self._selector.select(self._patience_s()):
                self._attend(key.data, events)
            self._crew.reap()
            self._keep_time()
        self._link.flush()
        if self._metadata is not None:
            self._metadata.close()

    def _attend(self, whose: object, events: int) -> None:
        if whose is self._link:
            if self._link.attend(events):
                self._greet()
            for message in self._link.heard():
                try:
                    self._obey(message)
                except Exception as error:  # noqa: BLE001 - no message may cost the node
                    log(f"{type(message).__name__} could not be carried out: {error!r}")
        elif isinstance(whose, Worker):
            self._crew.attend(whose, events)
        elif isinstance(whose, Metadata):
            whose.attend(events)
        else:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(CHUNK)

    # ------------------------------------------------------------------ time

    def _patience_s(self) -> float:
        """How long nothing is due."""
        due_s = min(self._ends_at_s, self._link.due_s(), self._link.watch_s(self._lease_s), self._crew.due_s())
        if self._metadata is not None:
            due_s = min(due_s, self._metadata.due_s())
        return min(max(0.0, due_s - time.monotonic()), LONGEST_WAIT_S)

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self._asked and not self._going:
            self._go(GRACE_S)
        if now_s >= self._ends_at_s and not self._going:
            log(f"no word from the controller for {self._lease_s:g} s: this node ends")
            self._go(GRACE_S)
        self._crew.keep_time(now_s)
        if self._metadata is not None:
            self._metadata.keep_time(now_s)
        if not self._link.watch(self._lease_s, PING):
            log(f"the controller has been silent for {self._lease_s / 2:g} s: its line is lost, and dialled again")
        if self._link.due_s() <= now_s and self._link.connect():
            self._greet()

    def _asked_to_go(self, *_: object) -> None:
        """A handler runs between any two lines of the loop, so it only leaves word; the wake-up socket wakes it."""
        self._asked = True

    def _renew(self) -> None:
        if not self._going:
            self._ends_at_s = time.monotonic() + self._lease_s
            if self._facts.lease_file:
                with contextlib.suppress(OSError):  # whoever watches it then ends the node, as they should
                    os.utime(self._facts.lease_file)

    def _go(self, grace_s: float) -> None:
        self._going = True
        self._ends_at_s = math.inf
        for worker in self._crew.workers.values():
            self._crew.end(worker, grace_s)

    # ------------------------------------------------------------------ the controller

    def _greet(self) -> None:
        """First of all on every connection; starts, last words and ends that may not have been read are told again."""
        trouble = ""
        if not self._host:
            try:
                self._host = own_address(self._link.here())
            except NoAddress as error:
                trouble = str(error)
                log(trouble)
                self._go(0.0)
        hello = Hello(
            node_id=self._facts.node_id,
            token=self._facts.token,
            pid=os.getpid(),
            host=self._host,
            workers={worker.worker_id: worker.job_id for worker in self._crew.workers.values()},
            pings=True,
            machine=machine_id(),
            trouble=trouble,
        )
        waiting = self._link.waiting()
        last = [*map(to_line, self._crew.finished.values()), *map(to_line, self._crew.ended.values())]
        ends = [line for line in last if line not in waiting]
        again = [line for line in [to_line(self._notice)] if line not in waiting] if self._notice else []
        ups = [to_line(worker.up) for worker in self._crew.workers.values() if worker.up is not None]
        again += [line for line in ups if line not in waiting]
        self._link.begin([to_line(hello), *again, *ends])

    def _noticed(self, kind: str, in_s: float) -> None:
        """The cloud has told this machine: workers learn of it here, the controller by wire."""
        log(f"{kind} in {in_s:.0f} s, says the metadata service")
        message = Noticed(node_id=self._facts.node_id, in_s=in_s, kind=kind)
        if kind == "interruption":
            self._warn(in_s)
            self._notice = message
        self._tell(message)

    def _tell(self, message: Noticed | AboutWorker | FromWorker) -> None:
        stepped = isinstance(message, FromWorker) and isinstance(message.message, Stepped)
        may_be_lost = stepped or isinstance(message, WorkerSeen)
        self._link.send(to_line(message), may_be_lost=may_be_lost)

    def _obey(self, message: Message | BadInput) -> None:
        match message:
            case BadInput():
                log(f"refused from the controller: {message}")
            case Welcome():
                if message.node_id == self._facts.node_id and 0 < message.lease_s < math.inf:
                    self._lease_s = message.lease_s
                    self._renew()
                self._link.welcomed()
            case RenewLease():
                self._renew()
            case StartWorker():
                if not self._going:
                    node = {"SUBLET_NODE_ID": self._facts.node_id, "SUBLET_NOTICE_FILE": self._facts.notice_file}
                    self._crew.start(message, node, self._host)
            case EndWorker():
                if (worker := self._crew.workers.get(message.worker_id)) is not None:
                    self._crew.end(worker, message.grace_s)
            case Regroup() | Meet() | Leave() | SaveNow():
                self._crew.pass_on(message)
            case Warn():
                self._warn(message.in_s)
            case Dismiss():
                self._go(0.0)
            case _:
                log(f"not for an agent: {type(message).__name__}")

    def _warn(self, in_s: float) -> None:
        path = Path(self._facts.notice_file)
        draft = path.with_name(path.name + ".new")
        text = json.dumps({"node": self._facts.node_id, "in_s": in_s, "at_unix_s": time.time() + in_s})
        try:
            draft.touch(mode=0o600)
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            log(f"the notice file cannot be written: {error}")
