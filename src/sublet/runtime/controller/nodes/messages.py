"""Messages of agents: each goes to the part that it is for, if the node may say it."""

from __future__ import annotations

import math

from sublet.domain import events as news
from sublet.kernel.cluster import NodePhase
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.controller.nodes.agent_auth import Addresses, AgentAuth
from sublet.runtime.controller.nodes.heartbeats import Heartbeats
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire
from sublet.wire.saves import Offered, Uncarried, Wants
from sublet.wire.travel import Lacks, Part, Preparing, Printed

__all__ = ["Agents"]

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
