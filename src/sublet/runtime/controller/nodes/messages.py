"""Messages of agents: each goes to the part that it is for, if the node may say it.

An agent has shown the token of its node and of no other one, so what it says is believed of the workers that were
started there. A node that says something of another node's workers is broken, or broken into: it is not heard, and
people are told.
"""

from __future__ import annotations

import math

from sublet.domain import events as news
from sublet.kernel.cluster import NodePhase
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context, JobRecord, job_of
from sublet.runtime.controller.nodes.heartbeats import Heartbeats
from sublet.runtime.controller.watch import AlarmKind
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire
from sublet.wire.files import Lacks, Offered, Part, Preparing, Printed, Uncarried, Wants
from sublet.wire.messages import Hello


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
                self._alarm(node_id, f"claims to run {worker_id}, which nobody started there: not believed, and ended")
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


AGENT = "agent"  # the warning of a job that waits for a node whose agent cannot serve


class Agents:
    """Of all nodes; `first_life`: there was no controller before this one."""

    def __init__(self, context: Context, groups: Groups, engine: Engine, *, first_life: bool) -> None:
        self._inbox, self._table, self._nodes = context.inbox, context.table, context.nodes
        self._clock, self._groups, self._sync, self._engine = context.host.clock, groups, groups.sync, engine
        self._addresses, self._auth = Addresses(context), AgentAuth(context, engine, first_life=first_life)
        self.heartbeats = Heartbeats(context, groups.attempts)

    def receive(self, node_id: str, message: wire.ToController) -> None:
        """An agent speaks."""
        wall_s = self._clock.wall.monotonic()
        if not self.heartbeats.note(node_id, message, wall_s) or self._sync.holds(node_id, message, wall_s):
            return
        match message:
            case wire.Hello():
                self._came(node_id, message, wall_s)
            case wire.Noticed():
                self._noticed(node_id, message)
            case wire.GpuSeen():
                self._auth.note_gpu(node_id, message)
                return
            case Lacks() | Part() | Printed() | Offered() | Wants() | Uncarried():
                self._sync.receive(node_id, message, self._auth.may_speak)
                return
            case Preparing() | wire.WorkerUp() | wire.WorkerDown() | wire.WorkerSeen() if self._auth.may_speak(
                node_id, message.worker_id
            ):
                self._groups.worker_said(message, wall_s)
            case wire.FromWorker(message=said) if self._auth.may_speak(node_id, said.worker_id):
                self._groups.worker_said(self._sync.judge(self._table.records, said), wall_s)
            case _:
                return
        self._inbox.wake()

    def forget(self, node_id: str) -> set[str]:
        """A node is gone; jobs that have, or had, workers there."""
        self._nodes.gone.add(node_id)
        self._nodes.doomed_s.pop(node_id, None)
        self._nodes.noticed_wall.pop(node_id, None)
        self._nodes.agents.discard(node_id)
        self.heartbeats.forget(node_id)
        self._auth.forget(node_id)
        self._sync.forget_node(node_id)
        self._addresses.forget(node_id)
        return self._nodes.jobs_on.pop(node_id, set())

    def _noticed(self, node_id: str, message: wire.Noticed) -> None:
        """The cloud has warned the node itself; a node may say so again after it lost its line."""
        node, now_s = self._inbox.kernel.cluster.nodes.get(node_id), self._inbox.now_s()
        if node is None or not math.isfinite(message.in_s):
            return
        if message.kind == "rebalance":
            self._inbox.queue(news.NodeThreatened(now_s, node_id))
        elif node.phase is not NodePhase.NOTICED:
            lost_s = now_s + max(0.0, message.in_s) * self._clock.speedup
            self._inbox.queue(news.NodeNoticed(now_s, node_id, lost_s))

    def _came(self, node_id: str, message: wire.Hello, wall_s: float) -> None:
        if message.trouble:
            self._addresses.report_trouble(node_id, message.trouble)
            for waiting in self._waiting_for(node_id):
                waiting.warnings[AGENT] = f"{node_id} cannot serve: {message.trouble}"
            return
        self._nodes.agents.add(node_id)
        for warned in self._table.live.values():
            warned.warnings.pop(AGENT, None)
        self._addresses.claim(node_id, message)
        by_job = self._auth.accept_claims(node_id, message)
        for job_id in self._nodes.jobs_on[node_id] | by_job.keys():
            if (record := self._table.records.get(job_id)) is not None:
                self._nodes.jobs_on[node_id].add(job_id)
                record.group.agent_came(node_id, by_job.get(job_id, []), wall_s)
                self._groups.touch(record)
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        if node is None or node.phase is NodePhase.RELEASING:
            self._engine.send(node_id, wire.Dismiss())
        elif node.phase is NodePhase.REQUESTED:
            self._inbox.queue(news.NodeReady(self._inbox.now_s(), node_id))

    def _waiting_for(self, node_id: str) -> list[JobRecord]:
        """Jobs that are on a node, or were; where it never came, those that wait for some."""
        nodes, jobs = self._inbox.kernel.cluster.nodes, self._inbox.kernel.jobs
        if (there := self._nodes.jobs_on.get(node_id)) or node_id not in nodes:
            return self._table.at_hand(there or ())
        return self._table.at_hand(job_id for job_id, state in jobs.items() if not state.gpus)
