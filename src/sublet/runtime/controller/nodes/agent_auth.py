"""Authority of agents: a node speaks for the workers that run on it and no others, and has one address.

An agent has shown the token of its node and of no other one, so what it says is believed of the workers that were
started there. A node that says something of another node's workers is broken, or broken into: it is not heard, and
people are told.
"""

from __future__ import annotations

from sublet.runtime.controller.memory import Context, job_of
from sublet.runtime.controller.watch import AlarmKind
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire
from sublet.wire.messages import Hello

__all__ = ["Addresses", "AgentAuth"]


class AgentAuth:
    """Of all nodes; `first_life`: there was no controller before this one."""

    def __init__(self, context: Context, engine: Engine, *, first_life: bool) -> None:
        self._inbox, self._records, self._jobs_on = context.inbox, context.table.records, context.nodes.jobs_on
        self._engine, self._alarms, self._first_life = engine, context.alarms, first_life
        self._met: set[str] = set()  # nodes that have said Hello to this controller

    def may_speak(self, node_id: str, worker_id: str) -> bool:
        """Whether what this node says of this worker may be true."""
        record = self._records.get(job_of(worker_id))
        if record is None:
            return False
        worker = record.group.workers.get(worker_id)
        if worker is None:  # one that has ended, or whom an earlier controller started
            return self._holds(node_id, record.id)
        if worker.node_id != node_id:
            self._alarm(node_id, f"speaks for {worker_id}, which runs on {worker.node_id}: not believed")
            return False
        return True

    def note_gpu(self, node_id: str, seen: wire.GpuSeen) -> None:
        """It is kept with the worker, and no decision follows from it."""
        if self.may_speak(node_id, seen.worker_id):
            worker = self._records[job_of(seen.worker_id)].group.workers.get(seen.worker_id)
            if worker is not None:
                worker.gpu = seen

    def accept_claims(self, node_id: str, hello: wire.Hello) -> dict[str, list[str]]:
        """Job -> workers of it that the node says it runs, as far as that may be true; others there are ended."""
        first = node_id not in self._met
        self._met.add(node_id)
        by_job: dict[str, list[str]] = {}
        for worker_id, job_id in hello.workers.items():
            record = self._records.get(job_id) if job_of(worker_id) == job_id else None
            known = None if record is None else record.group.workers.get(worker_id)
            if known.node_id == node_id if known is not None else record is not None and self._holds(node_id, job_id):
                by_job.setdefault(job_id, []).append(worker_id)
                continue
            self._engine.send(node_id, wire.EndWorker(worker_id=worker_id))
            if known is not None or not first or self._first_life:  # else an earlier controller may have had it there
                self._alarm(node_id, f"claims to run {worker_id}, which was not started there: not believed, and ended")
        return by_job

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._met.discard(node_id)

    def _holds(self, node_id: str, job_id: str) -> bool:
        """The job has, or had, workers there, as this controller or the log knows."""
        if job_id in self._jobs_on.get(node_id, ()):
            return True
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        return node is not None and job_id in node.jobs

    def _alarm(self, node_id: str, text: str) -> None:
        self._alarms.sound(AlarmKind.IMPOSTOR, text, node_id=node_id)


NEXT = "next: name each node's own by --host or SUBLET_HOST"


class Addresses:
    """The address and the machine of every node whose agent has come."""

    def __init__(self, context: Context) -> None:
        self._alarms, self._hosts = context.alarms, context.nodes.hosts
        self._claims: dict[str, tuple[str, str]] = {}  # node -> (address, machine)

    def claim(self, node_id: str, hello: Hello) -> None:
        """Two machines cannot have one address: workers there would look for each other on their own machine."""
        self.forget(node_id)
        self._hosts[node_id] = hello.host
        if not hello.machine:
            return
        rivals = [
            other for other, (host, machine) in self._claims.items() if host == hello.host and machine != hello.machine
        ]
        if rivals:
            both = f"is at {hello.host}, it says, and so is {rivals[0]} on another machine"
            text = f"{both}: their workers cannot meet; {NEXT}"
            self._alarms.sound(AlarmKind.ADDRESS, text, node_id=node_id)
        self._claims[node_id] = (hello.host, hello.machine)

    def report_trouble(self, node_id: str, why: str) -> None:
        """An agent came only to say that it cannot serve."""
        self._alarms.sound(AlarmKind.ADDRESS, f"cannot serve: {why}", node_id=node_id)

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._claims.pop(node_id, None)
        self._hosts.pop(node_id, None)
