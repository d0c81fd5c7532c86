"""Nodes that go: noticed, silent, lost or given back, and what jobs with workers there do about it.

At a notice the agent of the node is warned at once, and jobs save where `must_save` says so; the plan moves them.
Shortly before the end `_evacuate` takes away what is left. A loss reaches jobs before the kernel, which forgets the
tenants of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.domain.offer import Market
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.controller.nodes.messages import Agents
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire

log = logging.getLogger("sublet.controller")
EXPIRES = 0.8  # of a lease without a word: an agent whose job has ended it spoke a moment before
AWAY_S = 0.5  # wall, to regroup without the node, or to save beside the writing itself
AGAIN_S = 0.1  # wall, after which a group that was just forming is told once more to leave the node


class Notices:
    """Of all nodes."""

    def __init__(self, context: Context, groups: Groups, agents: Agents, engine: Engine) -> None:
        self._inbox, self._table, self._nodes = context.inbox, context.table, context.nodes
        self._bill, self._clock = context.bill, context.host.clock
        self._groups, self._agents, self._engine = groups, agents, engine

    def after_notice(self, event: news.NodeNoticed) -> None:
        """A node will be taken, and the kernel knows. Raises nothing: what the kernel orders is done all the same."""
        try:
            self._save_and_warn(event)
            self._prepare(event.node_id)
        except Exception:
            log.exception("NodeNoticed of %s went wrong", event.node_id)

    def before_loss(self, event: news.NodeLost | news.NodeSilent) -> Sequence[Event]:
        """A node goes; what the kernel is to hear before it hears of that. Raises nothing."""
        try:
            wall_s = self._clock.wall.monotonic()
            if isinstance(event, news.NodeLost):
                return self.node_lost(event.node_id, wall_s, event.why)
            return self._cut_off(event.node_id, wall_s)
        except Exception:
            log.exception("%s of %s went wrong", type(event).__name__, event.node_id)
        return ()

    # ------------------------------------------------------------------ a notice

    def _save_and_warn(self, event: news.NodeNoticed) -> None:
        """The agent is warned; jobs that must, save."""
        node_id = event.node_id
        if node_id in self._nodes.gone:
            return
        self._nodes.noticed_wall[node_id] = self._clock.wall.monotonic()
        self._nodes.doomed_s[node_id] = event.lost_s
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        for job_id in node.jobs if node is not None else ():
            record = self._table.records[job_id]
            record.noticed += 1
            self._groups.attempts.unpin(record)
            where = {worker.node_id for worker in record.group.workers.values()}
            if must_save(where, self._nodes.noticed_wall.keys(), self._is_spot):
                self._save_in_time(record, where)
        in_s = self._clock.wall_s(max(0.0, event.lost_s - self._inbox.now_s()))
        self._engine.send(node_id, wire.Warn(in_s=in_s))
        late_s = max(in_s / 2, in_s - self._needs_s(node_id))  # the plan comes first, if it can
        asyncio.get_running_loop().call_later(late_s, self._evacuate, node_id)

    def _save_in_time(self, record: JobRecord, where: Collection[str]) -> None:
        now_s, doomed_s = self._inbox.now_s(), self._nodes.doomed_s
        left_s = {node_id: self._clock.wall_s(doomed_s[node_id] - now_s) for node_id in self._nodes.noticed_wall}
        if can_save(where, left_s, record.write_s + record.carry_s):
            record.group.save_now()
        else:
            text = f"not saved at the notice: the last checkpoint took {record.write_s:.1f} s, and all nodes go sooner"
            self._inbox.note(HistoryRow(kind="NotSaved", job_id=record.id, text=text))
        self._groups.touch(record)

    def _prepare(self, node_id: str) -> None:
        """Jobs that are cut copy parts of their model that would go with the node."""
        for job_id, record in self._table.live.items():
            if any(worker.node_id == node_id for worker in record.group.workers.values()):
                self._groups.prepare(job_id, None)

    def _is_spot(self, node_id: str) -> bool:
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        return node is None or node.offer.market is Market.SPOT

    def _needs_s(self, node_id: str) -> float:
        """Wall seconds that those on a node need to get away from it, saving included."""
        writes = [r.write_s + r.carry_s for r in self._table.at_hand(self._nodes.jobs_on.get(node_id, ()))]
        return 2.0 * max(writes, default=0.0) + AWAY_S

    def _evacuate(self, node_id: str) -> None:
        """The end of a noticed node is near: what is still on it goes on without it, or saves.

        Said again until it is gone: a group that is just forming has to be through with that first.
        """
        if node_id in self._nodes.gone:
            return
        if self._nodes.doomed_s[node_id] > self._inbox.now_s():
            asyncio.get_running_loop().call_later(AGAIN_S, self._evacuate, node_id)
        wall_s, others = self._clock.wall.monotonic(), self._go_with(node_id)
        for record in self._table.at_hand(self._nodes.jobs_on.get(node_id, ())):
            self._bill.settle_job(record.id, self._inbox.now_s())
            record.group.evacuate(node_id, wall_s, others)
            self._groups.touch(record)
        self._inbox.wake()

    def _go_with(self, node_id: str) -> list[str]:
        """Nodes that cannot be left in time once this one is gone."""
        doomed_s = self._nodes.doomed_s
        last_s = doomed_s[node_id]
        return [n for n, lost_s in doomed_s.items() if self._clock.wall_s(lost_s - last_s) <= self._needs_s(n)]

    # ------------------------------------------------------------------ a loss

    def node_lost(self, node_id: str, wall_s: float, why: str = "") -> list[Event]:
        """A node is gone with all on it; `why`, if it is known that the cloud did not take it.

        Said again, of a node that is known to be gone, it changes nothing. What the kernel is to hear before it.
        """
        if node_id in self._nodes.gone:
            return []
        noticed = self._nodes.noticed_wall.pop(node_id, None) is not None
        unheard = not self.has_spoken(node_id, wall_s - EXPIRES * self._engine.lease_s)
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        jobs = self._agents.forget(node_id) | set(node.jobs if node is not None else ())
        records = self._table.at_hand(jobs)
        there = [r for r in records if any(worker.node_id == node_id for worker in r.group.workers.values())]
        blame = self._groups.blame
        blamed = set() if noticed else blame.judge_loss(node_id, there, wall_s, why, unheard=unheard)
        for record in there:
            record.unnoticed += not noticed and record.id not in blamed
        self._groups.touch(*records)
        return self._groups.losses.go_on_without(node_id, records, wall_s)

    def _cut_off(self, node_id: str, wall_s: float) -> list[Event]:
        """A node is silent: workers there are of no group any more, and end when they are heard. See `node_lost`."""
        self._nodes.silent.add(node_id)
        self._groups.touch(*(records := self._table.at_hand(self._nodes.jobs_on[node_id])))
        return self._groups.losses.go_on_without(node_id, records, wall_s, cut_off=True)

    def node_released(self, node_id: str, wall_s: float) -> None:
        """A node was given back."""
        for record in self._table.at_hand(self._agents.forget(node_id)):
            self._groups.touch(record)
            record.group.node_released(node_id, wall_s)

    def has_spoken(self, node_id: str, since_s: float) -> bool:
        """The agent of a node, since then (wall)."""
        return self._agents.heartbeats.has_spoken(node_id, since_s)


def must_save(nodes: Collection[str], doomed: Collection[str], is_spot: Callable[[str], bool]) -> bool:
    """`nodes` are those of its workers, `doomed` all that will be taken.

    Workers on other nodes hold the whole state, so nothing need be written while they last: as long as there are two
    such nodes at least, and not all of them are the cloud's to take. Spot nodes are often taken together.
    """
    stay = set(nodes) - set(doomed)
    if stay == set(nodes):
        return False
    return len(stay) <= 1 or all(is_spot(node_id) for node_id in stay)


def can_save(nodes: Collection[str], left_s: Mapping[str, float], write_s: float) -> bool:
    """`left_s` of each node that will be taken, `write_s` of the last checkpoint; 0 = there was none yet.

    Nodes that stay write as long as it takes. Where all go, one that takes longer than the last of them stays would be
    begun in vain: training goes on from the one before it.
    """
    return any(node_id not in left_s for node_id in nodes) or write_s <= max(left_s[node_id] for node_id in nodes)
