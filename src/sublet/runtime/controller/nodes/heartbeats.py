"""Heartbeats of agents, and the nodes that their jobs go on without.

A host that is cut off says nothing, and its peers stand in a collective that does not end. Its lease may last for a
quarter of an hour; its job need not wait for that. After `silence_s` without a word the others go on without it, if
each job on it makes no step and has a member elsewhere that is heard. As long as steps are told of at all, it is only
our own line that is gone. Where no member of the group is elsewhere, those on the node may train on, and would twice:
they are never left. Newcomers do not count, nor do workers of a script that were not seen to speak together.

Whatever a node says after that is of a group that is no more, until its agent has said anew what runs there. All times
are wall time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sublet.domain import events as news
from sublet.kernel.cluster import Node, NodePhase
from sublet.runtime.agent.link import PING_S
from sublet.runtime.controller.jobs import Attempts
from sublet.runtime.controller.memory import Context, JobRecord, job_of
from sublet.runtime.group.workers import WorkerPhase
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.wire import messages as wire

AWAY_S = 2 * PING_S  # between two looks: the controller itself was away
STEPS = 2  # one that is being made, and the one before it, which may not have been told yet


class Heartbeats:
    """Of all agents."""

    def __init__(self, context: Context, attempts: Attempts) -> None:
        self._inbox, self._table, self._nodes = context.inbox, context.table, context.nodes
        self._paces, self._attempts = context.host.paces, attempts
        self._heard_s: dict[str, float] = {}  # by node
        self._pinged_s: dict[str, float] = {}  # by node
        self._often: set[str] = set()  # nodes that ping every few seconds, as seen: their silence means something
        self._stepped_s: dict[str, float] = {}  # job -> when any of its workers last told of a step
        self._looked_s = -math.inf

    def note(self, node_id: str, message: wire.ToController, wall_s: float) -> bool:
        """A word of its agent; False = it is not to be listened to."""
        if isinstance(message, wire.Hello):
            self._nodes.silent.discard(node_id)
        elif node_id in self._nodes.silent:
            return False
        self._heard_s[node_id] = wall_s
        if isinstance(message, wire.Ping):
            if wall_s - self._pinged_s.get(node_id, -math.inf) < 2 * PING_S:
                self._often.add(node_id)
            self._pinged_s[node_id] = wall_s
        elif isinstance(message, wire.FromWorker) and isinstance(message.message, wire.Stepped):
            self._stepped_s[job_of(message.message.worker_id)] = wall_s
        return True

    def has_spoken(self, node_id: str, since_s: float) -> bool:
        """Its agent, since then."""
        return self._heard_s.get(node_id, -math.inf) >= since_s

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._heard_s.pop(node_id, None)
        self._pinged_s.pop(node_id, None)
        self._nodes.silent.discard(node_id)
        self._often.discard(node_id)

    def leave_silent(self, wall_s: float) -> None:
        """Tell the kernel of nodes that are to be left."""
        away = wall_s - self._looked_s > AWAY_S
        self._looked_s = wall_s
        if away:
            self._heard_s = dict.fromkeys(self._heard_s, wall_s)
            return
        self._stepped_s = {job_id: at_s for job_id, at_s in self._stepped_s.items() if job_id in self._table.live}
        for node in self._unheard(wall_s):
            records = self._table.at_hand(node.jobs)
            if records and all(self._stands(record, node.id, wall_s) for record in records):
                why = f"was not heard for {wall_s - self._heard_s[node.id]:.0f} s"
                self._inbox.queue(news.NodeSilent(self._inbox.now_s(), node.id, why))

    def _unheard(self, wall_s: float) -> Iterator[Node]:
        nodes = self._inbox.kernel.cluster.nodes
        for node_id in self._often & nodes.keys():
            if nodes[node_id].phase is NodePhase.READY and not self.has_spoken(node_id, wall_s - self._paces.silence_s):
                yield nodes[node_id]

    def _stands(self, record: JobRecord, node_id: str, wall_s: float) -> bool:
        """It waits for this node, and others of it are there that could go on."""
        if record.spec.on_node_loss is OnNodeLoss.FAIL or record.outcome:
            return False  # its owner wants it ended where a node is lost, and this one is not yet
        group, others = record.group, self._peers(record) - {node_id}
        step_s = 0.0 if group.stepped is None else group.stepped.step_s
        patience_s = self._paces.silence_s + STEPS * max(0.0, step_s)
        stood_s = wall_s - self._stepped_s.get(record.id, -math.inf)
        return stood_s > patience_s and self._is_any_heard(others, wall_s)

    def _peers(self, record: JobRecord) -> set[str]:
        """Nodes of workers without which the others make no step."""
        members = [worker for worker in record.group.workers.values() if worker.phase is WorkerPhase.MEMBER]
        if record.spec.sdk:
            return {worker.node_id for worker in members if worker.met}
        return {worker.node_id for worker in members} if self._attempts.have_met(record) else set()

    def _is_any_heard(self, node_ids: Iterable[str], wall_s: float) -> bool:
        """Of late: had we lost all of them at once, they would have fallen silent within a ping of each other."""
        return any(self.has_spoken(node_id, wall_s - self._paces.silence_s / 2) for node_id in node_ids)
