"""The workers of one agent: begun, listened to, ended, seen off."""

from __future__ import annotations

import math
import selectors
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent.devices import VISIBLE, Devices
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.reading import Reading, Resuming
from sublet.runtime.agent.worker import LOOK_S, AgentWorker, Looks, Watch, newest_below, why_not_started
from sublet.wire.files import Wants
from sublet.wire.lines import LONGEST_LINE, to_line
from sublet.wire.messages import (
    AboutWorker,
    Finished,
    FromWorker,
    FromWorkerMessage,
    GpuSeen,
    StartWorker,
    ToWorker,
    WorkerDown,
    WorkerUp,
)

REMEMBERED_ENDS = 64  # workers whose end is told again to a controller that comes back
MOST_COMPLAINTS = 100  # about one worker, in the log
MOST_BAD_LINES = 1000  # of one worker, before its line is closed: it does not speak our language
LAST_READS = 64  # of a line that another process may still hold and write to
CHUNK = 1 << 16

Tell = Callable[[GpuSeen | AboutWorker | FromWorker], None]
Word = TypeVar("Word")


class Crew:
    """`workers` run; `ended` have, lately; `finished` have said that all is done. News goes to `tell`."""

    def __init__(self, machine: Machine, tell: Tell, devices: Devices) -> None:
        self.workers: dict[str, AgentWorker] = {}
        self.ended: dict[str, WorkerDown] = {}
        self.finished: dict[str, FromWorker] = {}
        self._machine, self._tell, self._devices = machine, tell, devices
        self._selector, self._processes = machine.selector, machine.processes
        self._look_s = math.inf  # when to look at those without a session
        self._gauge_s = math.inf  # when to look at GPUs
        self.asked: Callable[[Wants], None] = lambda _: None  # hears of workers that are to go on from a checkpoint

    def knows(self, worker_id: str) -> bool:
        """It runs, or has ended."""
        return worker_id in self.workers or worker_id in self.ended

    def start(self, order: StartWorker, node_env: Mapping[str, str], host: str) -> None:
        """A new one, unless it was started before: then the order was said twice."""
        if self.knows(order.worker_id):
            return
        own_env = {**node_env, "SUBLET_WORKER_ID": order.worker_id, "SUBLET_JOB_ID": order.job_id}
        gpus = self._devices.take(order.worker_id, count=order.gpus, together=order.together)
        if gpus and VISIBLE not in order.env:  # a choice in the job file goes first
            own_env[VISIBLE] = ",".join(gpus)
        try:
            if not order.argv:
                raise InvalidValue("argv", order.argv, "a command")
            port = self._free_port() if order.offers else 0
            if port:
                own_env |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
            defaults = {**self._machine.place.network_env(host), **order.defaults}
            worker = self._begin(replace(order, defaults=defaults), own_env)
        except (OSError, ValueError) as error:
            self._devices.give_back(order.worker_id)
            self.never_began(order.worker_id, why_not_started(error), f"cannot start: {error}")
            return
        self.workers[worker.worker_id] = worker
        if worker.line is not None:
            self._selector.register(worker.line, selectors.EVENT_READ, worker)
        if worker.watch is not None:
            self._look_s = min(self._look_s, self._machine.wall.monotonic() + LOOK_S)
        if gpus and self._machine.gauge is not None:
            self._gauge_s = min(self._gauge_s, self._machine.wall.monotonic() + LOOK_S)
        worker.up = WorkerUp(worker_id=worker.worker_id, pid=worker.pid, host=host if port else "", port=port)
        self._tell(worker.up)

    def _begin(self, order: StartWorker, own_env: Mapping[str, str]) -> AgentWorker:
        """Its process, and the eyes on it where it has no session."""
        machine, env = self._machine, {**order.env, **own_env}
        folder = env.get("SUBLET_CHECKPOINT_DIR", "")
        reading = Reading(folder, machine.disk) if order.reads else None  # before it can read anything, or save
        newest = newest_below(folder, machine.disk) if order.watch and folder else None
        own = self._own_files(order, folder) if order.reads and order.cwd not in ("", "/") else None
        try:
            worker = self._processes.start(order, own_env)
        except OSError:
            for each in (reading, own):
                if each is not None:
                    each.let_go()
            raise
        if order.watch:
            met_at, are_alone = self._processes.met_at, self._processes.are_alone
            looks = Looks(reading, own, newest, met_at, are_alone, machine.disk, machine.wall)
            worker.watch = Watch(order.worker_id, worker.pid, order.log, env, machine.wall.monotonic(), looks)
        return worker

    def _own_files(self, order: StartWorker, checkpoints: str) -> Resuming:
        """Those below its directory, without ours: a state directory may lie there, with its log in it."""
        inner = order.log.removeprefix(f"{order.cwd.rstrip('/')}/")
        ours = "" if inner == order.log else f"{order.cwd.rstrip('/')}/{inner.split('/')[0]}"
        wall, apart = self._machine.wall, (checkpoints, ours)
        disk, began_ago_s = self._machine.disk, order.began_ago_s
        return Resuming(order.cwd, wall.monotonic(), began_ago_s=began_ago_s, apart=apart, disk=disk, wall=wall)

    def _free_port(self) -> int:
        return self._machine.place.free_port({w.up.port for w in self.workers.values() if w.up is not None})

    # ------------------------------------------------------------------ their lines

    def attend(self, worker: AgentWorker, events: int) -> None:
        """Its line is ready. Events on it are this worker's doing, and cost no other anything."""
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(worker)
            if events & selectors.EVENT_READ:
                self._listen(worker)
        except Exception as error:  # noqa: BLE001 - the agent and all other workers live on
            self._complain(worker, f"the line of {worker.worker_id} is closed: {error!r}")
            self._hang_up(worker)

    def pass_on(self, message: ToWorker) -> None:
        """To the worker that it is for, if that is there and reads."""
        worker = self.workers.get(message.worker_id)
        if worker is None or worker.line is None:
            return  # its end has been told, or will be
        line = to_line(message)
        if len(worker.unsent) + len(line) > LONGEST_LINE:
            self._complain(worker, f"{worker.worker_id} does not read its line: {type(message).__name__} is dropped")
            return
        worker.unsent += line
        self._flush(worker)

    def _listen(self, worker: AgentWorker) -> bool:
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
            if not isinstance(message, FromWorkerMessage | Wants):
                what = str(message) if isinstance(message, BadInput) else f"a {type(message).__name__} from a worker"
                self._complain(worker, f"refused from {worker.worker_id}: {what}")
            elif message.worker_id != worker.worker_id:
                self._complain(worker, f"refused from {worker.worker_id}: it speaks for {message.worker_id}")
            elif isinstance(message, Wants):
                self.asked(message)
            else:
                said = FromWorker(message=message)
                if isinstance(message, Finished):
                    _remember(self.finished, worker.worker_id, said)
                self._tell(said)
        if worker.complaints > MOST_BAD_LINES:
            self._machine.log(f"{worker.worker_id} says nothing that can be read: its line is closed")
            self._hang_up(worker)
            return False
        return True

    def _flush(self, worker: AgentWorker) -> None:
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

    def _hang_up(self, worker: AgentWorker) -> None:
        if worker.line is not None:
            self._selector.unregister(worker.line)
            worker.close()

    # ------------------------------------------------------------------ their ends

    def end(self, worker: AgentWorker, grace_s: float) -> None:
        """SIGTERM to the worker alone, which may have to tidy up its own; SIGKILL to its whole group."""
        if not 0 < grace_s < math.inf:
            self._processes.end(worker.pid, signal.SIGKILL)
            return
        kill_at_s = self._machine.wall.monotonic() + grace_s
        worker.kill_at_s = kill_at_s if worker.kill_at_s is None else min(kill_at_s, worker.kill_at_s)
        self._processes.end(worker.pid, signal.SIGTERM)

    def due_s(self) -> float:
        """When the next grace is over, or a look is due."""
        graces = (w.kill_at_s for w in self.workers.values() if w.kill_at_s is not None)
        return min([self._look_s, self._gauge_s, *graces])

    def keep_time(self, now_s: float) -> None:
        """Kill those whose grace is over; look at those that have no session, and at everybody's GPUs."""
        if now_s >= self._look_s:
            self._look(now_s)
        if now_s >= self._gauge_s:
            self._gauge(now_s)
        for worker in self.workers.values():
            if worker.kill_at_s is not None and now_s >= worker.kill_at_s:
                worker.kill_at_s = None
                self._processes.end(worker.pid, signal.SIGKILL)

    def _look(self, now_s: float) -> None:
        watched = [worker.watch for worker in self.workers.values() if worker.watch is not None]
        self._look_s = now_s + LOOK_S if watched else math.inf
        everybody = self._processes.ticks() if watched else {}
        for watch in watched:
            self._tell(watch.look(now_s, everybody))

    def _gauge(self, now_s: float) -> None:
        """Those that tell nothing now are asked again with the next worker."""
        gpus = {worker_id: self._devices.of(worker_id) for worker_id in self.workers}
        names = sorted({name for given in gpus.values() for name in given})
        found = self._machine.gauge(names) if names and self._machine.gauge is not None else {}
        self._gauge_s = now_s + LOOK_S if found else math.inf
        for worker_id, given in gpus.items():
            if readings := [found[name] for name in given if name in found]:
                self._tell(
                    GpuSeen(
                        worker_id=worker_id,
                        gpus=len(readings),
                        busy=sum(each.busy for each in readings) / len(readings),
                        memory_bytes=sum(each.memory_bytes for each in readings),
                        memory_of_bytes=sum(each.memory_of_bytes for each in readings),
                    )
                )

    def reap(self) -> list[tuple[int, int]]:
        """See off all that have ended: (pid, code) of those that were no workers."""
        others = []
        for pid, code in self._processes.ended():
            if (worker := next((each for each in self.workers.values() if each.pid == pid), None)) is not None:
                self._bury(worker, code)
            else:
                others.append((pid, code))
        return others

    def never_began(self, worker_id: str, code: int, why: str) -> None:
        """It was to start, and did not."""
        self._tell_end(WorkerDown(worker_id=worker_id, code=code, error=why))

    def _bury(self, worker: AgentWorker, code: int) -> None:
        for _ in range(LAST_READS):  # its last words come before the news of its end
            if not self._listen(worker):
                break
        self._hang_up(worker)
        del self.workers[worker.worker_id]
        self._devices.give_back(worker.worker_id)
        if worker.watch is not None:
            self._tell(worker.watch.last_look())
        error = worker.last_words(self._machine.disk) if code else ""
        self._tell_end(WorkerDown(worker_id=worker.worker_id, code=code, error=error))

    def _tell_end(self, down: WorkerDown) -> None:
        _remember(self.ended, down.worker_id, down)
        self._tell(down)

    def _complain(self, worker: AgentWorker, text: str) -> None:
        """A worker must not be able to fill the disk with what we have to say about it."""
        worker.complaints += 1
        if worker.complaints <= MOST_COMPLAINTS:
            self._machine.log(text)


def _remember(found: dict[str, Word], worker_id: str, word: Word) -> None:
    found[worker_id] = word
    while len(found) > REMEMBERED_ENDS:
        del found[next(iter(found))]
