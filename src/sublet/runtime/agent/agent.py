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
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent import processes
from sublet.runtime.agent.link import Link
from sublet.runtime.agent.worker import CANNOT_START, Worker, start
from sublet.wire.lines import LONGEST_LINE, Message, to_line
from sublet.wire.messages import (
    Dismiss,
    EndWorker,
    FromWorker,
    FromWorkerMessage,
    Hello,
    Leave,
    Meet,
    Regroup,
    RenewLease,
    SaveNow,
    StartWorker,
    Stepped,
    Warn,
    Welcome,
    WorkerDown,
    WorkerUp,
)

__all__ = ["AgentFacts", "run"]

FIRST_LEASE_S = 60.0  # until the controller has said how long a lease is
GRACE_S = 5.0  # for workers whose agent must go, between SIGTERM and SIGKILL
REMEMBERED_ENDS = 64  # workers whose end is told again to a controller that comes back
LONGEST_WAIT_S = 60.0  # the poll behind the loop takes no infinity
MOST_COMPLAINTS = 100  # about one worker, in the log
LAST_READS = 64  # of a line that somebody else may still hold and write to
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Whose agent it is, and where its controller listens (`unix:/path` or `tcp:host:port`)."""

    node_id: str
    token: str
    address: str
    notice_file: str
    host: str = "127.0.0.1"
    lease_s: float = FIRST_LEASE_S
    boot_s: float = 0.0  # seconds on the wall before it is there, as a cloud's machine takes


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
        self._workers: dict[str, Worker] = {}
        self._ended: dict[str, WorkerDown] = {}
        self._selector = selectors.DefaultSelector()
        self._link = Link(facts.address, self._selector)
        self._ends_at_s = time.monotonic() + facts.boot_s + facts.lease_s
        self._lease_s = facts.lease_s
        self._going = False  # no new workers; gone with the last one
        self._asked = False  # by SIGTERM, to go
        self._wake, wake = socket.socketpair()
        for end in (self._wake, wake):
            end.settimeout(0.0)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake_writer = wake  # kept open
        signal.signal(signal.SIGCHLD, lambda *_: None)
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
        while not (self._going and not self._workers):
            for key, events in self._selector.select(self._patience_s()):
                self._attend(key.data, events)
            self._reap()
            self._keep_time()
        self._link.flush()

    def _attend(self, whose: object, events: int) -> None:
        if whose is self._link:
            if self._link.attend(events):
                self._greet()
            for message in self._link.heard():
                try:
                    self._obey(message)
                except Exception as error:  # noqa: BLE001 - no message may cost the node
                    _log(f"{type(message).__name__} could not be carried out: {error!r}")
        elif isinstance(whose, Worker):
            self._attend_worker(whose, events)
        else:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(CHUNK)

    # ------------------------------------------------------------------ time

    def _patience_s(self) -> float:
        """How long nothing is due."""
        due = [self._ends_at_s, self._link.due_s()]
        due += [worker.kill_at_s for worker in self._workers.values() if worker.kill_at_s is not None]
        return min(max(0.0, min(due) - time.monotonic()), LONGEST_WAIT_S)

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self._asked and not self._going:
            self._go(GRACE_S)
        if now_s >= self._ends_at_s and not self._going:
            _log(f"no word from the controller for {self._lease_s:g} s: this node ends")
            self._go(GRACE_S)
        for worker in self._workers.values():
            if worker.kill_at_s is not None and now_s >= worker.kill_at_s:
                worker.kill_at_s = None
                _kill_group(worker.pid)
        if self._link.due_s() <= now_s and self._link.connect():
            self._greet()

    def _asked_to_go(self, *_: object) -> None:
        """A handler runs between any two lines of the loop, so it only leaves word; the wake-up socket wakes it."""
        self._asked = True

    def _renew(self) -> None:
        self._ends_at_s = time.monotonic() + self._lease_s

    def _go(self, grace_s: float) -> None:
        self._going = True
        self._ends_at_s = math.inf
        for worker in self._workers.values():
            self._end(worker, grace_s)

    # ------------------------------------------------------------------ the controller

    def _greet(self) -> None:
        """First of all on every connection; ends that the last controller may not have read are told again."""
        running = {worker.worker_id: worker.job_id for worker in self._workers.values()}
        hello = Hello(
            node_id=self._facts.node_id,
            token=self._facts.token,
            pid=os.getpid(),
            host=self._facts.host,
            workers=running,
        )
        waiting = self._link.waiting()
        ends = [line for line in map(to_line, self._ended.values()) if line not in waiting]
        self._link.begin([to_line(hello), *ends])

    def _tell(self, message: WorkerUp | WorkerDown | FromWorker) -> None:
        may_be_lost = isinstance(message, FromWorker) and isinstance(message.message, Stepped)
        self._link.send(to_line(message), may_be_lost=may_be_lost)

    def _obey(self, message: Message | BadInput) -> None:
        match message:
            case BadInput():
                _log(f"refused from the controller: {message}")
            case Welcome():
                if message.node_id == self._facts.node_id and 0 < message.lease_s < math.inf:
                    self._lease_s = message.lease_s
                    self._renew()
                self._link.welcomed()
            case RenewLease():
                if not self._going:
                    self._renew()
            case StartWorker():
                self._start(message)
            case EndWorker():
                if (worker := self._workers.get(message.worker_id)) is not None:
                    self._end(worker, message.grace_s)
            case Regroup() | Meet() | Leave() | SaveNow():
                self._pass_on(message)
            case Warn():
                self._warn(message.in_s)
            case Dismiss():
                self._go(0.0)
            case _:
                _log(f"not for an agent: {type(message).__name__}")

    def _start(self, order: StartWorker) -> None:
        if order.worker_id in self._workers or order.worker_id in self._ended or self._going:
            return  # said twice, or too late
        own_env = {
            "SUBLET_NODE_ID": self._facts.node_id,
            "SUBLET_WORKER_ID": order.worker_id,
            "SUBLET_JOB_ID": order.job_id,
            "SUBLET_NOTICE_FILE": self._facts.notice_file,
        }
        try:
            if not order.argv:
                raise InvalidValue("argv", order.argv, "a command")
            worker = start(order, own_env)
        except (OSError, ValueError) as error:
            down = WorkerDown(worker_id=order.worker_id, code=CANNOT_START, error=f"cannot start: {error}")
            self._remember(down)
            self._tell(down)
            return
        self._workers[worker.worker_id] = worker
        if worker.line is not None:
            self._selector.register(worker.line, selectors.EVENT_READ, worker)
        self._tell(WorkerUp(worker_id=worker.worker_id, pid=worker.pid))

    def _warn(self, in_s: float) -> None:
        path = Path(self._facts.notice_file)
        draft = path.with_name(path.name + ".new")
        text = json.dumps({"node": self._facts.node_id, "in_s": in_s, "at_unix_s": time.time() + in_s})
        try:
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            _log(f"the notice file cannot be written: {error}")

    # ------------------------------------------------------------------ workers

    def _attend_worker(self, worker: Worker, events: int) -> None:
        if worker.line is None:
            return
        if events & selectors.EVENT_WRITE:
            self._flush(worker)
        if events & selectors.EVENT_READ and worker.line is not None:
            self._listen(worker)

    def _listen(self, worker: Worker) -> bool:
        """Read once; whether there may be more."""
        if worker.line is None:
            return False
        try:
            data = worker.line.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._hang_up(worker)
            return False
        for message in worker.reader.feed(data):
            if not isinstance(message, FromWorkerMessage):
                what = str(message) if isinstance(message, BadInput) else f"a {type(message).__name__} from a worker"
                self._complain(worker, f"refused from {worker.worker_id}: {what}")
            elif message.worker_id != worker.worker_id:
                self._complain(worker, f"refused from {worker.worker_id}: it speaks for {message.worker_id}")
            else:
                self._tell(FromWorker(message=message))
        return True

    def _complain(self, worker: Worker, text: str) -> None:
        """A worker must not be able to fill the disk with what we have to say about it."""
        worker.complaints += 1
        if worker.complaints <= MOST_COMPLAINTS:
            _log(text)

    def _pass_on(self, message: Regroup | Meet | Leave | SaveNow) -> None:
        worker = self._workers.get(message.worker_id)
        if worker is None or worker.line is None:
            return  # its end has been told, or will be
        line = to_line(message)
        if len(worker.unsent) + len(line) > LONGEST_LINE:
            self._complain(worker, f"{worker.worker_id} does not read its line: {type(message).__name__} is dropped")
            return
        worker.unsent += line
        self._flush(worker)

    def _flush(self, worker: Worker) -> None:
        if worker.line is None:
            return
        try:
            while worker.unsent:
                del worker.unsent[: worker.line.send(worker.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up(worker)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        self._selector.modify(worker.line, wanted, worker)

    def _hang_up(self, worker: Worker) -> None:
        if worker.line is not None:
            self._selector.unregister(worker.line)
            worker.close()

    def _end(self, worker: Worker, grace_s: float) -> None:
        """SIGTERM to the worker alone, which may have to tidy up its own; SIGKILL to its whole group."""
        if not 0 < grace_s < math.inf:
            _kill_group(worker.pid)
            return
        kill_at_s = time.monotonic() + grace_s
        worker.kill_at_s = kill_at_s if worker.kill_at_s is None else min(kill_at_s, worker.kill_at_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)

    def _reap(self) -> None:
        by_pid = {worker.pid: worker for worker in self._workers.values()}
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            worker = by_pid.get(seen.si_pid)
            if worker is not None:
                _kill_group(worker.pid)  # its own children; before it is reaped, while its number is still its own
            os.waitpid(seen.si_pid, 0)
            if worker is not None:
                code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
                self._bury(worker, code)

    def _bury(self, worker: Worker, code: int) -> None:
        for _ in range(LAST_READS):  # its last words come before the news of its end
            if not self._listen(worker):
                break
        self._hang_up(worker)
        del self._workers[worker.worker_id]
        down = WorkerDown(worker_id=worker.worker_id, code=code, error=worker.last_words() if code else "")
        self._remember(down)
        self._tell(down)

    def _remember(self, down: WorkerDown) -> None:
        self._ended[down.worker_id] = down
        while len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]


def _kill_group(pid: int) -> None:
    for send in (os.killpg, os.kill):  # the group may not exist yet, a moment after the fork
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}"[:2000], file=sys.stderr, flush=True)  # noqa: T201
