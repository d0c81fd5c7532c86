"""Between the kernel, the groups and the agents: orders go down to groups and nodes, what agents say comes up.

Nothing goes out before the orders behind it are written down: groups leave their messages in an outbox, and `drain`
sends them once the controller has committed.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.domain.shape import Placement
from sublet.kernel.cluster import NodePhase
from sublet.runtime.clock import Clock
from sublet.runtime.controller.addresses import Addresses
from sublet.runtime.controller.alarms import Alarms
from sublet.runtime.controller.answers import Answers
from sublet.runtime.controller.attempts import Attempts
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.blame import Blame
from sublet.runtime.controller.carrier import Carrier
from sublet.runtime.controller.forms import told
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.hearing import Hearing
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.logs import JobLogs
from sublet.runtime.controller.node_loss import NodeLosses
from sublet.runtime.controller.notice import can_save, must_save
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.reports import Reports
from sublet.runtime.controller.resizes import why_resize
from sublet.runtime.controller.states import Hold
from sublet.runtime.controller.stragglers import Stragglers
from sublet.runtime.controller.table import JobTable
from sublet.runtime.controller.unsized import LearnedSizes
from sublet.runtime.controller.vouching import Vouching, job_of
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire
from sublet.wire.saves import Offered, Saved, Uncarried, Wants
from sublet.wire.travel import Lacks, Part, Preparing, Printed

__all__ = ["Router"]

AGENT = "agent"  # the warning of a job that waits for a node whose agent cannot serve
EXPIRES = 0.8  # of a lease without a word: an agent whose job has ended it spoke a moment before
AWAY_S = 0.5  # wall, to regroup without the node, or to save beside the writing itself
AGAIN_S = 0.1  # wall, after which a group that was just forming is told once more to leave the node


class Router:
    """The workers of all jobs, and the nodes that they are on."""

    def __init__(  # noqa: PLR0913 - whom orders go to, and who hears of what comes back
        self,
        inbox: Inbox,
        *,
        table: JobTable,
        jobs: Lifecycle,
        bill: Bill,
        engine: Engine,
        logs: JobLogs,
        carrier: Carrier,
        gauges: Gauges,
        alarms: Alarms,
        addresses: Addresses,
        clock: Clock,
        first_life: bool,
        paces: Paces = PACES,
    ) -> None:
        self._inbox, self._table, self._jobs, self._bill, self._addresses = inbox, table, jobs, bill, addresses
        self._engine, self._logs, self._carrier, self._gauges, self._clock = engine, logs, carrier, gauges, clock
        self.agents: set[str] = set()  # nodes whose agent has come
        self.doomed_s: dict[str, float] = {}  # node -> when it will be taken
        self._noticed_wall: dict[str, float] = {}  # node -> when its notice came
        self._jobs_on: dict[str, set[str]] = defaultdict(set)  # node -> jobs that have, or had, workers there
        self._gone: set[str] = set()  # nodes that were lost or given back; an id is never used again
        self._touched: dict[str, JobRecord] = {}  # whose groups may have something to say
        self._vouching = Vouching(
            inbox,
            records=table.records,
            jobs_on=self._jobs_on,
            engine=engine,
            alarms=alarms,
            first_life=first_life,
        )
        self.attempts = Attempts(inbox, jobs=jobs, bill=bill, clock=clock, carries=carrier.carries)
        self.hearing = Hearing(inbox, table, self.attempts, paces)
        self.blame = Blame(inbox, jobs)
        self._losses = NodeLosses(inbox, jobs=jobs, bill=bill, attempts=self.attempts, clock=clock)
        self._reports = Reports(
            inbox,
            jobs=jobs,
            bill=bill,
            gauges=gauges,
            clock=clock,
            stragglers=Stragglers(inbox, jobs=jobs, bill=bill, alarms=alarms, clock=clock, paces=paces),
            noticed_wall=self._noticed_wall,
            paces=paces,
        )
        self._sizes = LearnedSizes(inbox, jobs=jobs, beliefs=jobs.sizes, paces=paces)
        self._answers = Answers(
            inbox,
            jobs=jobs,
            bill=bill,
            attempts=self.attempts,
            losses=self._losses,
            sizes=self._sizes,
            clock=clock,
        )

    # ------------------------------------------------------------------ orders of the kernel

    def carry_out(self, action: order.StartJob | order.ResizeJob | order.StopJob) -> None:
        """Its group sees to it."""
        record = self._table.records[action.job_id]
        self.touch(record)
        if isinstance(action, order.StopJob):
            record.group.stop(action.generation, resumable=action.resumable, wall_s=self._clock.wall.monotonic())
            return
        if self._is_void(action.placement):
            return
        if isinstance(action, order.ResizeJob):
            record.resizes += 1
            self._gauges.count_resize(why_resize(record, action, self._inbox.kernel.cluster.nodes))
        seats, form = told(self._inbox.kernel, record, action.shape, action.placement)
        record.group.move(action.generation, seats, action.shape.batch or 0, self._clock.wall.monotonic(), form)

    def _is_void(self, placement: Placement) -> bool:
        """It sends somebody where nobody is any more: the kernel did not know, hears of it next, and orders anew."""
        return any(node_id in self._gone or node_id in self.hearing.silent for node_id, _ in placement)

    def heal(self, record: JobRecord, *, held: bool = False) -> None:
        """What the kernel ordered and the group follows (if orders were `held` back, an older one) are the same."""
        state, group = self._inbox.kernel.jobs.get(record.id), record.group
        if state is None or not (group.idle or (held and group.generation < state.generation)):
            return
        kernel = self._inbox.kernel
        placement, form = told(kernel, record, state.runs_in, kernel.tenancy.placement.get(record.id, ()))
        if state.phase in (Phase.STARTING, Phase.RESIZING, Phase.RUNNING) and not self._is_void(placement):
            batch = 0 if state.shape is None or state.shape.batch is None else state.shape.batch
            group.move(state.generation, placement, batch, self._clock.wall.monotonic(), form)
        elif state.phase is Phase.STOPPING:
            group.stop(state.generation, resumable=True, wall_s=self._clock.wall.monotonic())

    def tick(self, record: JobRecord, wall_s: float) -> None:
        """Time has passed for a job that lives."""
        trained = record.group.training
        record.group.tick(wall_s)
        self.heal(record)
        if record.group.training != trained:
            self._bill.settle_job(record.id, self._inbox.now_s(), trained=trained)
        if self._jobs.watch_purse(record):
            record.group.end_now(self._clock.wall.monotonic())
        self.attempts.tick(record, wall_s)
        if record.paused is Hold.CANCEL:
            self._jobs.cancel(record)  # if it has left by now
        elif why := record.preempted_too_often or record.blamed:
            self._jobs.give_up(record, why)
        self.blame.tick(record, wall_s)
        self._losses.tick(record)
        self._answers.tick(record)
        self._sizes.tick(record, wall_s)
        self.touch(record)

    # ------------------------------------------------------------------ nodes come and go

    def node_noticed(self, event: news.NodeNoticed) -> None:
        """A node will be taken, and the kernel knows: its agent is warned, and whoever must, saves."""
        node_id = event.node_id
        if node_id in self._gone:
            return
        self._noticed_wall[node_id], self.doomed_s[node_id] = self._clock.wall.monotonic(), event.lost_s
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        for job_id in node.jobs if node is not None else ():
            record = self._table.records[job_id]
            record.noticed += 1
            self.attempts.unpin(record)
            where = {worker.node_id for worker in record.group.workers.values()}
            if must_save(where, self._noticed_wall.keys(), self._is_spot):
                self._save_in_time(record, where)
        in_s = self._clock.wall_s(max(0.0, event.lost_s - self._inbox.now_s()))
        self._engine.send(node_id, wire.Warn(in_s=in_s))
        late_s = max(in_s / 2, in_s - self._needs_s(node_id))  # the plan comes first, if it can
        asyncio.get_running_loop().call_later(late_s, self._evacuate, node_id)

    def _save_in_time(self, record: JobRecord, where: Collection[str]) -> None:
        now_s = self._inbox.now_s()
        left_s = {node_id: self._clock.wall_s(self.doomed_s[node_id] - now_s) for node_id in self._noticed_wall}
        if can_save(where, left_s, record.write_s + record.carry_s):
            record.group.save_now()
        else:
            text = f"not saved at the notice: the last checkpoint took {record.write_s:.1f} s, and all nodes go sooner"
            self._inbox.note(HistoryRow(kind="NotSaved", job_id=record.id, text=text))
        self.touch(record)

    def _is_spot(self, node_id: str) -> bool:
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        return node is None or node.offer.market is Market.SPOT

    def _needs_s(self, node_id: str) -> float:
        """Wall seconds that those on a node need to get away from it, saving included."""
        writes = [r.write_s + r.carry_s for r in self._table.at_hand(self._jobs_on.get(node_id, ()))]
        return 2.0 * max(writes, default=0.0) + AWAY_S

    def _evacuate(self, node_id: str) -> None:
        """The end of a noticed node is near: whoever is still on it goes on without it, or saves.

        Said again until it is gone: a group that is just forming has to be through with that first.
        """
        if node_id in self._gone:
            return
        if self.doomed_s[node_id] > self._inbox.now_s():
            asyncio.get_running_loop().call_later(AGAIN_S, self._evacuate, node_id)
        wall_s, others = self._clock.wall.monotonic(), self._go_with(node_id)
        for record in self._table.at_hand(self._jobs_on.get(node_id, ())):
            self._bill.settle_job(record.id, self._inbox.now_s())
            record.group.evacuate(node_id, wall_s, others)
            self.touch(record)
        self._inbox.wake()

    def _go_with(self, node_id: str) -> list[str]:
        """Nodes that nobody could leave any more once this one is gone."""
        last_s = self.doomed_s[node_id]
        return [n for n, lost_s in self.doomed_s.items() if self._clock.wall_s(lost_s - last_s) <= self._needs_s(n)]

    def node_lost(self, node_id: str, wall_s: float, why: str = "") -> list[Event]:
        """A node is gone with all on it; `why`, if it is known that the cloud did not take it.

        Said again, of a node that is known to be gone, it changes nothing. What the kernel is to hear before it.
        """
        if node_id in self._gone:
            return []
        noticed = self._noticed_wall.pop(node_id, None) is not None
        unheard = not self.hearing.has_spoken(node_id, wall_s - EXPIRES * self._engine.lease_s)
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        jobs = self._forget_node(node_id) | set(node.jobs if node is not None else ())
        records = self._table.at_hand(jobs)
        there = [r for r in records if any(worker.node_id == node_id for worker in r.group.workers.values())]
        blamed = set() if noticed else self.blame.judge_loss(node_id, there, wall_s, why, unheard=unheard)
        for record in there:
            record.unnoticed += not noticed and record.id not in blamed
        self.touch(*records)
        return self._losses.go_on_without(node_id, records, wall_s)

    def node_silent(self, node_id: str, wall_s: float) -> list[Event]:
        """A node is cut off: whoever is there is of no group any more, and ends when it is heard. See `node_lost`."""
        self.hearing.silent.add(node_id)
        self.touch(*(records := self._table.at_hand(self._jobs_on[node_id])))
        return self._losses.go_on_without(node_id, records, wall_s, cut_off=True)

    def node_released(self, node_id: str, wall_s: float) -> None:
        """A node was given back."""
        for record in self._table.at_hand(self._forget_node(node_id)):
            self.touch(record)
            record.group.node_released(node_id, wall_s)

    def _forget_node(self, node_id: str) -> set[str]:
        """It is gone; jobs that have, or had, workers there."""
        self._gone.add(node_id)
        self.doomed_s.pop(node_id, None)
        self._noticed_wall.pop(node_id, None)
        self.agents.discard(node_id)
        self.hearing.forget(node_id)
        self._vouching.forget(node_id)
        self._carrier.forget_node(node_id)
        self._addresses.forget(node_id)
        return self._jobs_on.pop(node_id, set())

    # ------------------------------------------------------------------ what agents say

    def hear_agent(self, node_id: str, message: wire.ToController) -> None:
        """An agent speaks."""
        wall_s = self._clock.wall.monotonic()
        if not self.hearing.note(node_id, message, wall_s) or self._carrier.holds(node_id, message, wall_s):
            return
        match message:
            case wire.Hello():
                self._agent_came(node_id, message, wall_s)
            case wire.Noticed():
                self._agent_noticed(node_id, message)
            case wire.GpuSeen():
                self._vouching.note_gpu(node_id, message)
                return
            case Lacks() | Part() | Printed() | Offered() | Wants() | Uncarried():
                self._carrier.hear(node_id, message, self._vouching.may_speak)
                return
            case Preparing() | wire.WorkerUp() | wire.WorkerDown() | wire.WorkerSeen() if self._vouching.may_speak(
                node_id, message.worker_id
            ):
                self._worker_said(message, wall_s)
            case wire.FromWorker(message=said) if self._vouching.may_speak(node_id, said.worker_id):
                self._worker_said(self._carrier.judge(self._table.records, said), wall_s)
            case _:
                return
        self._inbox.wake()

    def note_carried(self, saved: Saved, ago_s: float) -> None:
        """The controller has a checkpoint that was on a node's disk, after so many seconds of carrying."""
        record = self._table.records[job_of(saved.worker_id)]
        record.carry_s = saved.seconds
        self.attempts.note_carried(record, saved.worker_id, ago_s)
        self._worker_said(replace(saved, seconds=record.write_s), self._clock.wall.monotonic())
        self._inbox.wake()

    def _agent_noticed(self, node_id: str, message: wire.Noticed) -> None:
        """The cloud has warned the node itself; a node may say so again after it lost its line."""
        node, now_s = self._inbox.kernel.cluster.nodes.get(node_id), self._inbox.now_s()
        if node is None or not math.isfinite(message.in_s):
            return
        if message.kind == "rebalance":
            self._inbox.queue(news.NodeThreatened(now_s, node_id))
        elif node.phase is not NodePhase.NOTICED:
            lost_s = now_s + max(0.0, message.in_s) * self._clock.speedup
            self._inbox.queue(news.NodeNoticed(now_s, node_id, lost_s))

    def _agent_came(self, node_id: str, message: wire.Hello, wall_s: float) -> None:
        if message.trouble:
            self._addresses.report_trouble(node_id, message.trouble)
            for waiting in self._waiting_for(node_id):
                waiting.warnings[AGENT] = f"{node_id} cannot serve: {message.trouble}"
            return
        self.agents.add(node_id)
        for warned in self._table.live.values():
            warned.warnings.pop(AGENT, None)
        self._addresses.claim(node_id, message)
        by_job = self._vouching.accept_claims(node_id, message)
        for job_id in self._jobs_on[node_id] | by_job.keys():
            if (record := self._table.records.get(job_id)) is not None:
                self._jobs_on[node_id].add(job_id)
                record.group.agent_came(node_id, by_job.get(job_id, []), wall_s)
                self.touch(record)
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        if node is None or node.phase is NodePhase.RELEASING:
            self._engine.send(node_id, wire.Dismiss())
        elif node.phase is NodePhase.REQUESTED:
            self._inbox.queue(news.NodeReady(self._inbox.now_s(), node_id))

    def _waiting_for(self, node_id: str) -> list[JobRecord]:
        """Jobs that are on a node, or were; where it never came, those that wait for some."""
        nodes, jobs = self._inbox.kernel.cluster.nodes, self._inbox.kernel.jobs
        if (there := self._jobs_on.get(node_id)) or node_id not in nodes:
            return self._table.at_hand(there or ())
        return self._table.at_hand(job_id for job_id, state in jobs.items() if not state.gpus)

    def _worker_said(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        record = self._table.records[job_of(message.worker_id)]
        step = record.group.step
        if isinstance(message, wire.WorkerDown):
            self._logs.note_end(record, message)
        elif isinstance(message, wire.Joined):
            self._logs.of(record.id).confirm_join(message.worker_id, message.generation, message.printed)
        if isinstance(message, wire.Joined | wire.WorkerDown | wire.Broke | wire.Finished):
            self._bill.settle_job(record.id, self._inbox.now_s())  # before it begins or ceases to train
        self.attempts.hear(record, message)
        record.group.hear(message, wall_s)
        self.touch(record)
        self._reports.learn(record, message, step, wall_s)

    # ------------------------------------------------------------------ what groups say

    def touch(self, *records: JobRecord) -> None:
        """Their groups were told something: `drain` will see what they say."""
        self._touched |= {record.id: record for record in records}

    def drain(self) -> None:
        """Pass on what groups have to say, to agents and to the kernel."""
        while self._touched:
            _, record = self._touched.popitem()
            group = record.group
            while group.outbox or group.news:
                outbox = list(group.outbox)
                group.outbox.clear()
                for node_id, message in outbox:
                    self._send(record, node_id, message)
                said = list(group.news)
                group.news.clear()
                for item in said:
                    self._answers.take(record, item)
            if not group.workers:
                self.attempts.end_attempt(record)

    def _send(self, record: JobRecord, node_id: str, message: wire.ToAgent) -> None:
        if isinstance(message, wire.StartWorker):
            self._jobs_on[node_id].add(record.id)
            message = self._carrier.load(message, record.spec)
            if not record.spec.sdk:
                message = self.attempts.prepare_start(record, message, self._clock.wall.monotonic())
        self._logs.note_rank(record, node_id, message)
        self._engine.send(node_id, message)
