"""The agent of a node: it starts, watches and ends workers, and ends itself when its lease is not renewed.

One thread and one loop over descriptors, because it forks. Input from either side may be wrong or too much: bad lines
are logged and skipped, what cannot be sent is kept within bounds, nothing waits for a slow peer.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sublet.errors import BadInput
from sublet.runtime.agent.crew import Crew
from sublet.runtime.agent.devices import Devices
from sublet.runtime.agent.host import NoAddress
from sublet.runtime.agent.keeping import Keeping
from sublet.runtime.agent.link import Link, lost_s
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.metadata import Metadata
from sublet.runtime.agent.preparing import Preparations
from sublet.runtime.agent.worker import AgentWorker
from sublet.wire.files import Carried, Kept, Lacks, Newest, Part, Preparing
from sublet.wire.lines import Message, to_frame, to_line
from sublet.wire.messages import (
    AboutWorker,
    Dismiss,
    EndWorker,
    FromWorker,
    GpuSeen,
    Hello,
    Joined,
    Keep,
    Leave,
    Meet,
    Noticed,
    Ping,
    Regroup,
    RenewLease,
    SaveNow,
    Spent,
    StartWorker,
    Stepped,
    Travelling,
    Warn,
    Welcome,
    WorkerDown,
    WorkerSeen,
)

FIRST_LEASE_S = 60.0  # until the controller has said how long a lease is
GRACE_S = 5.0  # for workers whose agent must go, between SIGTERM and SIGKILL
LONGEST_WAIT_S = 60.0  # the poll behind the loop takes no infinity
PING = to_line(Ping())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Identity of an agent, and the address of its controller (`unix:/path`, `tcp:` or `tls:host:port`)."""

    node_id: str
    token: str
    address: str
    notice_file: str
    authority: str = ""  # the certificate that a `tls:` controller is known by; the token is used once then
    host: str = ""  # where other machines reach this one; "" = as the line to the controller tells
    gpus: Sequence[str] | None = None  # for workers, as CUDA_VISIBLE_DEVICES names them; None = all that `run` finds
    lease_s: float = FIRST_LEASE_S
    boot_s: float = 0.0  # seconds on the wall before it is there, as a cloud's machine takes
    metadata_url: str = ""  # where the machine learns that it will be taken; "" = told otherwise
    lease_file: str = ""  # touched whenever the lease is renewed, for a dead man's switch outside


def folder_of(facts: AgentFacts) -> Path:
    """The folder of files that came for jobs."""
    return Path(f"{facts.notice_file}.files")


class Attentive(Protocol):
    """A waiter for a descriptor of its own: the line to the controller, the metadata service, signals."""

    def attend(self, events: int, /) -> object:
        """It is ready. Of the line: whether it has just been made."""


class Agent:
    """The state of an agent, and its reactions when something is ready or due.

    Nothing happens before its first turn.
    """

    def __init__(self, facts: AgentFacts, machine: Machine) -> None:
        self._facts, self._machine, self._wall, self._log = facts, machine, machine.wall, machine.log
        self._link = Link(
            facts.address,
            machine.selector,
            dial=machine.dial,
            secure=machine.secure,
            wall=machine.wall,
            rng=machine.rng,
        )
        self._crew = Crew(machine, self._tell, Devices(facts.gpus or ()))
        folder = folder_of(facts)
        self._keeping = Keeping(folder, machine, self._say, answer=self._crew.pass_on, tell_end=self._tell_at_once)
        self._crew.asked = self._keeping.bring
        self._preparations = Preparations(folder, machine, self._crew, self._say, self._keeping)
        self._host = facts.host
        self._metadata = self._service(facts.metadata_url) if facts.metadata_url else None
        self._notice: Noticed | None = None  # the last one, told again to a controller that comes back
        self.ends_at_s = self._wall.monotonic() + facts.boot_s + facts.lease_s  # without a renewal
        self._lease_s = facts.lease_s
        self._frames = False  # the controller reads them
        self._going = False  # no new workers; gone with the last one
        self._asked = False  # by SIGTERM, to go
        self.ended_for_lease = False  # it was not renewed

    def turn(self, ready: Iterable[tuple[selectors.SelectorKey, int]]) -> float | None:
        """See to what is ready, has ended or is due: seconds until something else may be; None when it is over."""
        for key, events in ready:
            self._attend(key.data, events)
        for pid, code in self._crew.reap():
            self._preparations.ended(pid, code)
        self._keep_time()
        if not self._going or self._crew.workers:
            return self._patience_s()
        self._link.flush()
        if self._metadata is not None:
            self._metadata.close()
        return None

    def ask_to_go(self) -> None:
        """With the next turn. A handler of signals may call it between any two lines, so it only leaves word."""
        self._asked = True

    @property
    def asked(self) -> bool:
        """To go, from outside."""
        return self._asked

    @property
    def noticed(self) -> bool:
        """Its machine has told it that it will be taken."""
        return self._notice is not None

    def _service(self, url: str) -> Metadata:
        machine = self._machine
        return Metadata(url, machine.selector, self._noticed, dial=machine.dial, wall=machine.wall, log=machine.log)

    def _attend(self, whose: AgentWorker | Attentive, events: int) -> None:
        if isinstance(whose, AgentWorker):
            self._crew.attend(whose, events)
            return
        news = whose.attend(events)
        if whose is not self._link:
            return
        if news:
            self._greet()
        for message in self._link.heard():
            try:
                self._obey(message)
            except Exception as error:  # noqa: BLE001 - no message may cost the node
                self._log(f"{type(message).__name__} could not be carried out: {error!r}")

    # ------------------------------------------------------------------ time

    def _patience_s(self) -> float:
        """How long nothing is due."""
        due_s = min(self.ends_at_s, self._link.due_s(), self._link.watch_s(self._lease_s), self._crew.due_s())
        due_s = min(due_s, self._preparations.due_s(), self._keeping.due_s())
        if self._metadata is not None:
            due_s = min(due_s, self._metadata.due_s())
        return min(max(0.0, due_s - self._wall.monotonic()), LONGEST_WAIT_S)

    def _keep_time(self) -> None:
        now_s = self._wall.monotonic()
        if self._asked and not self._going:
            self._go(GRACE_S)
        if now_s >= self.ends_at_s and not self._going:
            self._log(f"no word from the controller for {self._lease_s:g} s: this node ends")
            self.ended_for_lease = True
            self._go(GRACE_S)
        self._crew.keep_time(now_s)
        self._keeping.keep_time(now_s)
        self._preparations.keep_time(now_s)
        if self._metadata is not None:
            self._metadata.keep_time(now_s)
        if not self._link.watch(self._lease_s, PING):
            silent_s = lost_s(self._lease_s)
            self._log(f"the controller has been silent for {silent_s:g} s: its line is lost, and dialled again")
        if self._link.due_s() <= now_s:
            self._link.connect()

    def _renew(self) -> None:
        if not self._going:
            self.ends_at_s = self._wall.monotonic() + self._lease_s
            if self._facts.lease_file:
                with contextlib.suppress(OSError):  # its watcher then ends the node, as it should
                    self._machine.disk.touch(self._facts.lease_file)

    def _go(self, grace_s: float) -> None:
        self._going = True
        self.ends_at_s = math.inf
        self._preparations.drop_all()
        for worker in self._crew.workers.values():
            self._crew.end(worker, grace_s)

    # ------------------------------------------------------------------ the controller

    def _greet(self) -> None:
        """First of all on every connection; starts, last words and ends that may not have been read are told again."""
        trouble = ""
        if not self._host:
            try:
                self._host = self._machine.place.address(self._link.here())
            except NoAddress as error:
                trouble = str(error)
                self._log(trouble)
                self._go(0.0)
        waiting = {each.order.worker_id: each.order.job_id for each in self._preparations.waiting.values()}
        held = self._keeping.held()
        hello = Hello(
            node_id=self._facts.node_id,
            token="" if self._facts.authority else self._facts.token,
            pid=self._machine.pid,
            host=self._host,
            workers={**waiting, **held, **{worker.worker_id: worker.job_id for worker in self._crew.workers.values()}},
            pings=True,
            machine=self._machine.place.machine_id(),
            trouble=trouble,
            frames=True,
        )
        unsent = self._link.waiting()
        over = [down for worker_id, down in self._crew.ended.items() if worker_id not in held]
        last = [*map(to_line, self._crew.finished.values()), *map(to_line, over)]
        ends = [line for line in last if line not in unsent]
        again = [line for line in [to_line(self._notice)] if line not in unsent] if self._notice else []
        ups = [to_line(worker.up) for worker in self._crew.workers.values() if worker.up is not None]
        again += [line for line in ups if line not in unsent]
        self._link.begin([to_line(hello), *again, *ends])

    def _noticed(self, kind: str, in_s: float) -> None:
        """The cloud has told this machine: workers learn of it here, the controller by wire."""
        self._log(f"{kind} in {in_s:.0f} s, says the metadata service")
        message = Noticed(node_id=self._facts.node_id, in_s=in_s, kind=kind)
        if kind == "interruption":
            self._warn(in_s)
            self._notice = message
        self._tell(message)

    def _say(self, message: Travelling | Preparing) -> None:
        """Send a message that is said again if it is lost."""
        if isinstance(message, Part) and self._frames:
            self._link.carry(to_frame(message))
        else:
            self._link.send(to_line(message), may_be_lost=True)

    def _tell(self, message: Noticed | GpuSeen | AboutWorker | FromWorker) -> None:
        if isinstance(message, FromWorker):
            self._keeping.note(message)
        if not isinstance(message, WorkerDown) or not self._keeping.holds(message):
            self._tell_at_once(message)

    def _tell_at_once(self, message: Noticed | GpuSeen | AboutWorker | FromWorker) -> None:
        if isinstance(message, WorkerDown):
            self._preparations.logs.let_go(message.worker_id)
        elif isinstance(message, FromWorker) and isinstance(message.message, Joined):
            self._preparations.logs.finish(message.message.worker_id)  # where its rank begins in its output
        stepped = isinstance(message, FromWorker) and isinstance(message.message, Stepped)
        may_be_lost = stepped or isinstance(message, WorkerSeen | GpuSeen)
        self._link.send(to_line(message), may_be_lost=may_be_lost)

    def _obey(self, message: Message | BadInput) -> None:
        match message:
            case BadInput():
                self._log(f"refused from the controller: {message}")
            case Welcome():
                if message.node_id == self._facts.node_id and 0 < message.lease_s < math.inf:
                    self._lease_s = message.lease_s
                    self._renew()
                self._frames = message.frames
                self._link.welcomed()
                self._preparations.line_is_new()
                self._keeping.line_is_new()
            case RenewLease():
                self._renew()
            case StartWorker():
                if not self._going:
                    node = {"SUBLET_NODE_ID": self._facts.node_id, "SUBLET_NOTICE_FILE": self._facts.notice_file}
                    self._preparations.start(message, node, self._host)
            case EndWorker():
                if (worker := self._crew.workers.get(message.worker_id)) is not None:
                    self._crew.end(worker, message.grace_s)
                self._preparations.drop(message.worker_id)
                if not message.grace_s:
                    self._keeping.carrying.hurry(message.worker_id)
            case Part() | Kept():
                self._preparations.hear(message)
            case Lacks() | Carried() | Newest():
                self._keeping.hear(message)
                self._preparations.go_on()
            case Regroup() | Meet() | Keep() | Leave() | SaveNow() | Spent():
                self._crew.pass_on(message)
            case Warn():
                self._warn(message.in_s)
            case Dismiss():
                self._go(0.0)
            case _:
                self._log(f"not for an agent: {type(message).__name__}")

    def _warn(self, in_s: float) -> None:
        self._keeping.hasten()
        text = json.dumps({"node": self._facts.node_id, "in_s": in_s, "at_unix_s": self._wall.unix() + in_s})
        try:
            notice = Path(self._facts.notice_file)
            self._machine.files.write(notice, f"{text}\n".encode(), mode=0o644, durable=False)
        except OSError as error:
            self._log(f"the notice file cannot be written: {error}")
