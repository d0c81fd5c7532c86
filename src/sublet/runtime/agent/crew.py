"""The workers of one agent: begun, listened to, ended, seen off."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent.devices import VISIBLE, Devices
from sublet.runtime.agent.host import free_port, network_env
from sublet.runtime.agent.processes import ticks_by_parent
from sublet.runtime.agent.watching import LOOK_S
from sublet.runtime.agent.worker import CANNOT_START, Worker, start
from sublet.runtime.logfile import keep_small
from sublet.wire.lines import LONGEST_LINE, to_line
from sublet.wire.messages import (
    AboutWorker,
    Finished,
    FromWorker,
    FromWorkerMessage,
    Leave,
    Meet,
    Regroup,
    SaveNow,
    StartWorker,
    WorkerDown,
    WorkerUp,
)
from sublet.wire.text import plain_text

__all__ = ["Crew", "log"]

REMEMBERED_ENDS = 64  # workers whose end is told again to a controller that comes back
MOST_COMPLAINTS = 100  # about one worker, in the log
MOST_BAD_LINES = 1000  # of one worker, before its line is closed: it does not speak our language
LAST_READS = 64  # of a line that somebody else may still hold and write to
MOST_LOG = 1 << 20  # bytes of the agent's own log, and as many of the one before it
CHUNK = 1 << 16

Tell = Callable[[AboutWorker | FromWorker], None]
Word = TypeVar("Word")


class Crew:
    """`workers` run; `ended` have, lately; `finished` have said that all is done. News goes to `tell`."""

    def __init__(self, selector: selectors.BaseSelector, tell: Tell, devices: Devices) -> None:
        self.workers: dict[str, Worker] = {}
        self.ended: dict[str, WorkerDown] = {}
        self.finished: dict[str, FromWorker] = {}
        self._selector, self._tell, self._devices = selector, tell, devices
        self._look_s = math.inf  # when to look at those without a session

    def start(self, order: StartWorker, node_env: Mapping[str, str], host: str) -> None:
        """A new one, unless it was started before: then the order was said twice."""
        if order.worker_id in self.workers or order.worker_id in self.ended:
            return
        own_env = {**node_env, "SUBLET_WORKER_ID": order.worker_id, "SUBLET_JOB_ID": order.job_id}
        gpus = self._devices.take(order.worker_id, count=order.gpus, together=order.together)
        if gpus and VISIBLE not in order.env:  # whoever chooses in the job file knows better
            own_env[VISIBLE] = ",".join(gpus)
        try:
            if not order.argv:
                raise InvalidValue("argv", order.argv, "a command")
            port = free_port({w.up.port for w in self.workers.values() if w.up is not None}) if order.offers else 0
            if port:
                own_env |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
            worker = start(replace(order, defaults={**network_env(host), **order.defaults}), own_env)
        except (OSError, ValueError) as error:
            self._devices.give_back(order.worker_id)
            self._tell_end(WorkerDown(worker_id=order.worker_id, code=CANNOT_START, error=f"cannot start: {error}"))
            return
        self.workers[worker.worker_id] = worker
        if worker.line is not None:
            self._selector.register(worker.line, selectors.EVENT_READ, worker)
        if worker.watch is not None:
            self._look_s = min(self._look_s, time.monotonic() + LOOK_S)
        worker.up = WorkerUp(worker_id=worker.worker_id, pid=worker.pid, host=host if port else "", port=port)
        self._tell(worker.up)

    # ------------------------------------------------------------------ their lines

    def attend(self, worker: Worker, events: int) -> None:
        """Its line is ready. Whatever comes on it is this worker's doing, and costs no other anything."""
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(worker)
            if events & selectors.EVENT_READ:
                self._listen(worker)
        except Exception as error:  # noqa: BLE001 - the agent and all other workers live on
            _complain(worker, f"the line of {worker.worker_id} is closed: {error!r}")
            self._hang_up(worker)

    def pass_on(self, message: Regroup | Meet | Leave | SaveNow) -> None:
        """To the worker that it is for, if that is there and reads."""
        worker = self.workers.get(message.worker_id)
        if worker is None or worker.line is None:
            return  # its end has been told, or will be
        line = to_line(message)
        if len(worker.unsent) + len(line) > LONGEST_LINE:
            _complain(worker, f"{worker.worker_id} does not read its line: {type(message).__name__} is dropped")
            return
        worker.unsent += line
        self._flush(worker)

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
                _complain(worker, f"refused from {worker.worker_id}: {what}")
            elif message.worker_id != worker.worker_id:
                _complain(worker, f"refused from {worker.worker_id}: it speaks for {message.worker_id}")
            else:
                said = FromWorker(message=message)
                if isinstance(message, Finished):
                    _remember(self.finished, worker.worker_id, said)
                self._tell(said)
        if worker.complaints > MOST_BAD_LINES:
            log(f"{worker.worker_id} says nothing that can be read: its line is closed")
            self._hang_up(worker)
            return False
        return True

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

    # ------------------------------------------------------------------ their ends

    def end(self, worker: Worker, grace_s: float) -> None:
        """SIGTERM to the worker alone, which may have to tidy up its own; SIGKILL to its whole group."""
        if not 0 < grace_s < math.inf:
            _kill_group(worker.pid)
            return
        kill_at_s = time.monotonic() + grace_s
        worker.kill_at_s = kill_at_s if worker.kill_at_s is None else min(kill_at_s, worker.kill_at_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)

    def due_s(self) -> float:
        """When the next grace is over, or a look is due."""
        graces = (w.kill_at_s for w in self.workers.values() if w.kill_at_s is not None)
        return min([self._look_s, *graces])

    def keep_time(self, now_s: float) -> None:
        """Kill those whose grace is over; look at those that have no session."""
        if now_s >= self._look_s:
            self._look(now_s)
        for worker in self.workers.values():
            if worker.kill_at_s is not None and now_s >= worker.kill_at_s:
                worker.kill_at_s = None
                _kill_group(worker.pid)

    def _look(self, now_s: float) -> None:
        watched = [worker.watch for worker in self.workers.values() if worker.watch is not None]
        self._look_s = now_s + LOOK_S if watched else math.inf
        everybody = ticks_by_parent() if watched else {}
        for watch in watched:
            self._tell(watch.look(now_s, everybody))

    def reap(self) -> None:
        """See off all children that have ended: workers, and orphans that came to us."""
        by_pid = {worker.pid: worker for worker in self.workers.values()}
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
                self._bury(worker, seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status)

    def _bury(self, worker: Worker, code: int) -> None:
        for _ in range(LAST_READS):  # its last words come before the news of its end
            if not self._listen(worker):
                break
        self._hang_up(worker)
        del self.workers[worker.worker_id]
        self._devices.give_back(worker.worker_id)
        if worker.watch is not None:
            self._tell(worker.watch.last_look())
        self._tell_end(WorkerDown(worker_id=worker.worker_id, code=code, error=worker.last_words() if code else ""))

    def _tell_end(self, down: WorkerDown) -> None:
        _remember(self.ended, down.worker_id, down)
        self._tell(down)


def _remember(found: dict[str, Word], worker_id: str, word: Word) -> None:
    found[worker_id] = word
    while len(found) > REMEMBERED_ENDS:
        del found[next(iter(found))]


def log(text: str) -> None:
    """A line in the agent's own log, which does not grow without bound."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {plain_text(text)}", file=sys.stderr, flush=True)  # noqa: T201 - standard error is the agent's log
    keep_small(sys.stderr.fileno(), MOST_LOG)


def _complain(worker: Worker, text: str) -> None:
    """A worker must not be able to fill the disk with what we have to say about it."""
    worker.complaints += 1
    if worker.complaints <= MOST_COMPLAINTS:
        log(text)


def _kill_group(pid: int) -> None:
    for send in (os.killpg, os.kill):  # the group may not exist yet, a moment after the fork
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)
