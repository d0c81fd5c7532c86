"""Dealing with agents and workers: what they say becomes knowledge about jobs, bills, and events for the kernel."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.errors import InvalidValue
from sublet.kernel.cluster import NodePhase
from sublet.market.hazard import believed_per_h
from sublet.perf.migration import checkpoint_every_s
from sublet.runtime.controller.addresses import Addresses
from sublet.runtime.controller.attempts import Attempts
from sublet.runtime.controller.blame import Blame
from sublet.runtime.controller.feasibility import STOP_S
from sublet.runtime.controller.history import HistoryRow, gist_of
from sublet.runtime.controller.notice import must_save
from sublet.runtime.controller.records import ASKS, DAMAGED, TOO_WIDE, JobRecord, pools_for
from sublet.runtime.controller.vouching import Vouching, job_of
from sublet.runtime.controller.worker_logs import WorkerLogs
from sublet.runtime.group.build import build_group
from sublet.runtime.group.failures import LEFT_ON_ORDER, ending_of
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.runtime.group.workers import WorkerPhase
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private
from sublet.wire import messages as wire

if TYPE_CHECKING:
    from sublet.runtime.controller.loop import Controller

__all__ = ["Router"]

PROGRESS_S = 2.0  # wall, between two reports of one job to the kernel
LEARN_S = 3.0  # wall, between two changes of what the kernel believes of a job
AWAY_S = 0.5  # wall, to regroup without the node, or to save beside the writing itself
LAST_S = 1.0  # wall, to be ended without a save
TOO_WIDE_S = 3600.0  # wall, for which a width that a job could not train at is not tried again
LEFT_S = 1.0  # wall, for which what is left in the purse is told alike to all who start


class Router:
    """The workers of all jobs."""

    def __init__(self, hub: Controller) -> None:
        self._hub = hub
        self.attempts, self.blame = Attempts(hub), Blame(hub)
        self.agents: set[str] = set()  # nodes whose agent has come
        self.noticed_wall: dict[str, float] = {}  # node -> when its notice came
        self.lost_wall: dict[str, float] = {}  # job -> when it lost a node
        self._last_told: dict[str, float] = defaultdict(float)  # wall
        self._jobs_on: dict[str, set[str]] = defaultdict(set)  # node -> jobs that have, or had, workers there
        self._vouching = Vouching(hub, self._jobs_on)
        self._addresses = Addresses(hub.alarms)
        self._touched: dict[str, JobRecord] = {}  # whose groups may have something to say
        self._logs: dict[str, WorkerLogs] = {}
        self._left: tuple[float, float | None] = (-math.inf, None)  # (wall, what is left in the purse)

    def node_noticed(self, node_id: str, wall_s: float) -> None:
        """A node will be taken."""
        self.noticed_wall[node_id] = wall_s
        node = self._hub.kernel.cluster.nodes.get(node_id)
        for job_id in node.jobs if node is not None else ():
            record = self._hub.records[job_id]
            record.noticed += 1
            self.attempts.let_go(record)
            where = {worker.node_id for worker in record.group.workers.values()}
            if must_save(where, self.noticed_wall.keys(), self._is_spot):
                record.group.save_now()
                self.touch(record)

    def _is_spot(self, node_id: str) -> bool:
        node = self._hub.kernel.cluster.nodes.get(node_id)
        return node is None or node.offer.market is Market.SPOT

    def needs_s(self, node_id: str) -> float:
        """Wall seconds that those on a node need to get away from it, saving included."""
        writes = [self._hub.records[job_id].write_s for job_id in self._jobs_on.get(node_id, ())]
        return 2.0 * max(writes, default=0.0) + AWAY_S

    def evacuate(self, node_id: str) -> None:
        """The end of a noticed node is near: whoever is still on it goes on without it, or saves."""
        wall_s = time.monotonic()
        for job_id in self._jobs_on.get(node_id, ()):
            record = self._hub.records[job_id]
            self._hub.bill.settle_job(record.id, self._hub.now_s())
            record.group.evacuate(node_id, wall_s)
            self.touch(record)
        self._hub.soon()

    def node_lost(self, node_id: str, wall_s: float, why: str = "") -> None:
        """A node is gone with all on it; `why`, if it is known that the cloud did not take it."""
        noticed = self.noticed_wall.pop(node_id, None) is not None
        self.agents.discard(node_id)
        self._vouching.forget(node_id)
        self._addresses.forget(node_id)
        node = self._hub.kernel.cluster.nodes.get(node_id)
        jobs = self._jobs_on.pop(node_id, set()) | set(node.jobs if node is not None else ())
        records = [self._hub.records[job_id] for job_id in jobs]
        there = [r for r in records if any(worker.node_id == node_id for worker in r.group.workers.values())]
        blamed = set() if noticed else self.blame.lost(node_id, there, wall_s, why)
        for record in records:
            self.touch(record)
            self.attempts.let_go(record)
            if record in there:
                self._hub.bill.settle_job(record.id, self._hub.now_s())
                record.unnoticed += not noticed and record.id not in blamed
                self.lost_wall[record.id] = wall_s
            record.group.node_lost(node_id, wall_s)

    def node_released(self, node_id: str, wall_s: float) -> None:
        """A node was given back."""
        self.agents.discard(node_id)
        self._vouching.forget(node_id)
        self._addresses.forget(node_id)
        for job_id in self._jobs_on.pop(node_id, ()):
            self.touch(self._hub.records[job_id])
            self._hub.records[job_id].group.node_released(node_id, wall_s)

    def touch(self, record: JobRecord) -> None:
        """Its group was told something: `drain` will see what it says."""
        self._touched[record.id] = record

    def hear_agent(self, node_id: str, message: wire.ToController) -> None:
        """An agent speaks."""
        wall_s = time.monotonic()
        match message:
            case wire.Hello():
                self._agent_came(node_id, message, wall_s)
            case wire.Noticed():
                self._noticed(node_id, message)
            case wire.WorkerUp() | wire.WorkerDown() | wire.WorkerSeen() if self._vouching.heard(
                node_id, message.worker_id
            ):
                self._worker_said(message, wall_s)
            case wire.FromWorker(message=said) if self._vouching.heard(node_id, said.worker_id):
                self._worker_said(said, wall_s)
            case _:
                return
        self._hub.soon()

    def _noticed(self, node_id: str, message: wire.Noticed) -> None:
        """The cloud has warned the node itself; a node may say so again after it lost its line."""
        node, now_s = self._hub.kernel.cluster.nodes.get(node_id), self._hub.now_s()
        if node is None or not math.isfinite(message.in_s):
            return
        if message.kind == "rebalance":
            text = "the cloud says that it is more likely to be taken than before"
            self._hub.note(HistoryRow(kind="Rebalance", node_id=node_id, text=text))
        elif node.phase is not NodePhase.NOTICED:
            lost_s = now_s + max(0.0, message.in_s) * self._hub.clock.speedup
            self._hub.hear_market(news.NodeNoticed(now_s, node_id, lost_s))

    def _agent_came(self, node_id: str, message: wire.Hello, wall_s: float) -> None:
        if message.trouble:
            self._addresses.refused(node_id, message.trouble)
            return
        self.agents.add(node_id)
        self._addresses.claimed(node_id, message)
        by_job = self._vouching.claimed(node_id, message)
        for job_id in self._jobs_on[node_id] | by_job.keys():
            if (record := self._hub.records.get(job_id)) is not None:
                self._jobs_on[node_id].add(job_id)
                record.group.agent_came(node_id, by_job.get(job_id, []), wall_s)
                self.touch(record)
        node = self._hub.kernel.cluster.nodes.get(node_id)
        if node is None or node.phase is NodePhase.RELEASING:
            self._hub.engine.send(node_id, wire.Dismiss())
        elif node.phase is NodePhase.REQUESTED:
            self._hub.leases.rented_wall.pop(node_id, None)
            self._hub.queue(news.NodeReady(self._hub.now_s(), node_id))

    def _worker_said(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        record = self._hub.records[job_of(message.worker_id)]
        step = record.group.step
        if isinstance(message, wire.WorkerDown):
            self._write_down_end(record, message)
        elif isinstance(message, wire.Joined):
            self.logs_of(record.id).joined(message.worker_id, message.generation, message.printed)
        if isinstance(message, wire.Joined | wire.WorkerDown | wire.Broke | wire.Finished):
            self._hub.bill.settle_job(record.id, self._hub.now_s())  # before it begins or ceases to train
        self.attempts.heard(record, message)
        record.group.hear(message, wall_s)
        self.touch(record)
        match message:
            case wire.Joined() if message is record.group.joined:
                self._joined(record, message, max(step - message.step, 0), wall_s)
            case wire.Stepped() if message is record.group.stepped:
                self._stepped(record, message, wall_s)
            case wire.Damaged():
                self._damaged(record, message)
            case wire.SaveFailed():
                text = f"the checkpoint of step {message.step} was not written, training goes on: {message.why}"
                self._hub.note(HistoryRow(kind="Alarm", job_id=record.id, text=self.hide(record, text)))
            case wire.Saved():
                record.checkpoint_step, record.write_s = message.step, message.seconds
                self._hub.bill.stood_still(record.id, message.blocked_s * self._hub.clock.speedup)
                for node_id, at in self.noticed_wall.items():
                    if any(worker.node_id == node_id for worker in record.group.workers.values()):
                        self._hub.gauges.notice_to_commit_s.add(wall_s - at)
            case _:
                pass

    def _damaged(self, record: JobRecord, message: wire.Damaged) -> None:
        """Checkpoints were passed over; if none is left, its owner decides what now."""
        new = set(message.paths) - record.damaged
        record.damaged |= new
        self._hub.gauges.damaged += len(new)
        if new:
            used = "none is left" if message.step < 0 else f"that of step {message.step} is used"
            text = f"{len(new)} damaged, {used}: {', '.join(sorted(new))} ({message.why})"
            self._hub.note(HistoryRow(kind="Damaged", job_id=record.id, text=self.hide(record, text)))
        if message.step < 0 and not record.paused:
            text = f"is held: {ASKS} next: sublet resume {record.id} tries again, with --start-over it begins at step 0"
            self._hub.note(HistoryRow(kind="Alarm", job_id=record.id, text=text))
            record.paused = DAMAGED
            self._hub.relearn(record)

    def _joined(self, record: JobRecord, message: wire.Joined, lost: int, wall_s: float) -> None:
        lost = max(lost, message.redone_steps)
        if lost:
            record.steps_lost += lost
            self._hub.bill.done_again(record.id, lost, record.steps_made)
        if (at := self.lost_wall.pop(record.id, None)) is not None:
            self._hub.gauges.recovery_s.add(wall_s - at)
            record.pauses_s.append(wall_s - at)
        elif message.formed_s or message.state_s:
            record.pauses_s.append(message.formed_s + message.state_s)
        record.start_over = False
        if record.started_s is None:
            record.started_s = self._hub.now_s()
            self._hub.relearn(record)  # how much work it is, is known now

    def _stepped(self, record: JobRecord, message: wire.Stepped, wall_s: float) -> None:
        state = self._hub.kernel.jobs.get(record.id)
        if state is None or not record.group.work:
            return
        learned = record.measure(message, state.gpu, record.group.size)
        if learned and wall_s - self._last_told[f"learn {record.id}"] > LEARN_S:
            self._last_told[f"learn {record.id}"] = wall_s
            self._hub.relearn(record)
        if wall_s - self._last_told[record.id] > PROGRESS_S:
            self._last_told[record.id] = wall_s
            self._hub.queue(news.ProgressReported(self._hub.now_s(), record.id, self.share(record)))

    def share(self, record: JobRecord) -> float:
        """Done, as a share of the whole: the kernel's unit. Never quite 1 before the end."""
        work = record.group.work or record.spec.work
        return min(record.group.done / work, 1.0 - 1e-9) if work else 0.0

    def drain(self) -> None:
        """Pass on what groups have to say, to agents and to the kernel."""
        while self._touched:
            _, record = self._touched.popitem()
            group = record.group
            while group.outbox or group.news:
                outbox = list(group.outbox)
                group.outbox.clear()
                for node_id, message in outbox:
                    if isinstance(message, wire.StartWorker):
                        self._jobs_on[node_id].add(record.id)
                        if not record.spec.sdk:
                            message = self.attempts.dressed(record, message, time.monotonic())  # noqa: PLW2901
                    self._write_down_rank(record, node_id, message)
                    self._hub.engine.send(node_id, message)
                said = list(group.news)
                group.news.clear()
                for item in said:
                    self._group_said(record, item)
            if not group.workers:
                self.attempts.over(record)

    def _write_down_rank(self, record: JobRecord, node_id: str, message: wire.ToAgent) -> None:
        """Whose output is that of a rank from now on."""
        logs = self.logs_of(record.id)
        if isinstance(message, wire.StartWorker):
            worker = record.group.workers.get(message.worker_id)  # None: its node went in the same moment
            logs.launched(message.worker_id, node_id, 0 if worker is None else worker.rank)
        elif isinstance(message, wire.Regroup):
            logs.ordered(message.worker_id, node_id, message.rank, message.generation)

    def _write_down_end(self, record: JobRecord, message: wire.WorkerDown) -> None:
        """How a worker ended that nobody had told to."""
        self.logs_of(record.id).settle(message.worker_id)
        worker = record.group.workers.get(message.worker_id)
        told = worker is None or worker.phase is WorkerPhase.LEAVING
        if not told and message.code not in (0, LEFT_ON_ORDER):
            self.logs_of(record.id).ended(message.worker_id, ending_of(message.code))

    def logs_of(self, job_id: str) -> WorkerLogs:
        """What its workers print."""
        if job_id not in self._logs:
            self._logs[job_id] = WorkerLogs(self._hub.state_dir / "jobs" / job_id / "logs")
        return self._logs[job_id]

    def _group_said(self, record: JobRecord, item: GroupNews) -> None:
        now_s, state = self._hub.now_s(), self._hub.kernel.jobs.get(record.id)
        match item.outcome:
            case Outcome.MOVED:
                record.in_vain = 0
                self._hub.bill.settle_job(record.id, now_s)
                first = state is not None and state.phase is Phase.STARTING
                answer = news.JobStarted if first else news.JobResized
                self._hub.queue(answer(now_s, record.id, item.generation, self.share(record), now_s))
                self.attempts.moved(record)
            case Outcome.STOPPED:
                self._hub.queue(news.JobStopped(now_s, record.id, item.generation, self.share(record)))
                self._hub.save_facts(record)
            case Outcome.FINISHED:
                self.attempts.finished(record, time.monotonic())
                self._end(record, "finished", now_s, exit_code=0)
                self._hub.queue(news.JobFinished(now_s, record.id))
            case Outcome.FAILED:
                self._hub.bill.hung(record.id, item.silent_s * self._hub.clock.speedup)
                self._hub.throw_away(record)
                record.error = self.hide(record, item.why)
                self._end(record, "failed", now_s, exit_code=item.exit_code)
                self._hub.queue(news.JobFailed(now_s, record.id, _told_end(record.error, item.exit_code)))
            case Outcome.RESTARTED:
                self._hub.bill.hung(record.id, item.silent_s * self._hub.clock.speedup)
                why = _told_end(self.hide(record, item.why), item.exit_code)
                self._hub.note(HistoryRow(kind="Restarted", job_id=record.id, text=f"failed and starts again: {why}"))
                self.lost_wall.setdefault(record.id, time.monotonic())
                record.in_vain, record.in_vain_why = record.in_vain + 1, why
            case Outcome.NARROWED:
                self._narrow(record, item, _told_end(self.hide(record, item.why), item.exit_code))

    def _narrow(self, record: JobRecord, item: GroupNews, why: str) -> None:
        """It cannot train at this width: it is not planned for a while, even if its owner wants no less."""
        width = record.too_wide = item.width
        record.back_to = item.back_to
        record.warnings[TOO_WIDE] = f"cannot train on {width} workers, trains on {item.back_to} instead: {why}"
        text = f"cannot train on {width} workers, goes back to fewer and stays below {width} for an hour: {why}"
        self._hub.note(HistoryRow(kind="Narrowed", job_id=record.id, text=text))
        self._hub.relearn(record)
        asyncio.get_running_loop().call_later(TOO_WIDE_S, self._widen, record, width)

    def _widen(self, record: JobRecord, width: int) -> None:
        """What was in the way may be gone by now."""
        if record.too_wide == width:
            record.any_width()
            self._hub.relearn(record)

    def hide(self, record: JobRecord, text: str) -> str:
        """Without the values of its secrets."""
        for value in record.spec.secrets.values():
            if value:
                text = text.replace(value, "***")
        return text

    def _end(self, record: JobRecord, outcome: str, now_s: float, *, exit_code: int | None) -> None:
        if not record.outcome:
            record.outcome, record.ended_s, record.exit_code = outcome, now_s, exit_code
        self._hub.save_facts(record)

    def why_resize(self, record: JobRecord, action: order.ResizeJob) -> str:
        """In one word, for the counters."""
        if record.group.broken:
            return "loss"
        nodes = self._hub.kernel.cluster.nodes
        if any(
            w.node_id in nodes and nodes[w.node_id].phase is NodePhase.NOTICED for w in record.group.workers.values()
        ):
            return "notice"
        return "grow" if sum(gpus for _, gpus in action.placement) >= record.group.size else "shrink"

    def heal(self, record: JobRecord) -> None:
        """What the kernel ordered and the group follows are the same, or the order is given again."""
        state, group = self._hub.kernel.jobs.get(record.id), record.group
        if state is None or not group.idle:
            return
        placement = self._hub.kernel.tenancy.placement.get(record.id, ())
        if state.phase in (Phase.STARTING, Phase.RESIZING, Phase.RUNNING):
            batch = 0 if state.shape is None or state.shape.batch is None else state.shape.batch
            group.move(state.generation, placement, batch, time.monotonic())
        elif state.phase is Phase.STOPPING:
            group.stop(state.generation, resumable=True, wall_s=time.monotonic())

    def watch_purse(self, record: JobRecord) -> None:
        """A job's own purse: hold it back in time, so that stopping still fits in."""
        purse, state = record.spec.purse_usd, self._hub.kernel.jobs.get(record.id)
        if purse is None or state is None:
            return
        self._hub.bill.settle_job(record.id, self._hub.now_s())
        if record.spent(self._hub.bill.jobs[record.id].total.usd):
            self._hub.relearn(record)
        if not (state.gpus or state.shape):
            return
        burn, speedup = self._hub.bill.burn_usd_per_h(record.id), self._hub.clock.speedup
        spent = self._hub.bill.jobs[record.id].total.usd
        if spent + burn * LAST_S * speedup / 3600.0 >= purse and record.paused:  # it did not get away in time
            record.group.end_now(time.monotonic())
            self.touch(record)
        if spent + burn * (STOP_S + record.write_s) * speedup / 3600.0 >= purse and not record.paused:
            text = f"has spent its budget of USD {purse:g}; it stops, and can be resumed with more"
            self._hub.note(HistoryRow(kind="Budget", job_id=record.id, text=text))
            self._hub.change(record, paused="budget")

    def _environment(self, record: JobRecord, checkpoints: Path) -> dict[str, str]:
        every_s = record.every_s = self._checkpoint_every_s(record)
        left = self._purse_left()
        env = {
            "SUBLET_JOB_ID": record.id,
            "SUBLET_MAX_WORKERS": str(record.spec.max_workers),
            "SUBLET_ATTEMPT": str(record.group.failures.total()),
            "SUBLET_CHECKPOINT_DIR": str(checkpoints),
            "SUBLET_CHECKPOINT_EVERY_S": f"{every_s:.3f}",
            "SUBLET_CHECKPOINT_KEEP": str(record.spec.checkpoint_keep),
            "SUBLET_RESUME": "1" if record.group.step > 0 or record.group.failures else "0",
            "WANDB_RUN_ID": f"{self._hub.server_id}-{record.id}",  # jobs of two state directories share their names
            "WANDB_RESUME": "allow",
            "SLURM_RESTART_COUNT": str(record.group.failures.total()),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # a group that breaks would fill the log with frames
            "OMP_NUM_THREADS": record.spec.env.get("OMP_NUM_THREADS", "1"),  # as torchrun does
        }
        if record.start_over:
            env["SUBLET_START_OVER"] = "1"
        if left is not None:
            env["SUBLET_BUDGET_LEFT_USD"] = f"{left:.4f}"
        return env

    def _purse_left(self) -> float | None:
        wall_s = time.monotonic()
        if wall_s - self._left[0] > LEFT_S:
            left = self._hub.kernel.supply.left(self._hub.now_s())
            self._left = (wall_s, None if left is None else left.usd)
        return self._left[1]

    def _checkpoint_every_s(self, record: JobRecord) -> float:
        """Wall seconds between checkpoints: what the user asked for, or Young and Daly's."""
        if record.spec.checkpoint_every_s is not None:
            return record.spec.checkpoint_every_s / self._hub.clock.speedup
        offers = [o for o in self._hub.provider.offers if not record.pools or o.pool in record.pools]
        workers = record.spec.max_workers
        hits_per_h = max((believed_per_h(o) * -(-workers // o.gpus_per_node) for o in offers), default=0.0)
        write_s = max(record.write_s, 0.05)
        every_s = checkpoint_every_s(write_s * self._hub.clock.speedup, hits_per_h)
        return min(max(every_s / self._hub.clock.speedup, 10 * write_s), 600.0)

    def new_record(self, job_id: str, spec: JobSpec, submitted_s: float) -> JobRecord:
        """A job with its workers-to-be."""
        folder = self._hub.state_dir / "jobs" / job_id
        checkpoints = Path(spec.checkpoint_dir) if spec.checkpoint_dir else folder / "checkpoints"
        make_private(folder / "logs")
        try:
            if spec.checkpoint_dir:
                checkpoints.mkdir(parents=True, exist_ok=True)  # its owner's own place: as their umask has it
            else:
                make_private(checkpoints)
        except OSError as error:
            allowed = f"a directory that can be made ({error.strerror or error})"
            raise InvalidValue("checkpoint.uri", spec.checkpoint_dir, allowed) from None
        group = build_group(
            job_id,
            spec,
            log_of=lambda worker_id: str(self.logs_of(job_id).path(worker_id)),
            env=lambda: self._environment(self._hub.records[job_id], checkpoints),
            life=self._hub.life,
        )
        return JobRecord(job_id, spec, group, submitted_s, pools_for(spec, self._hub.provider.offers))

    def bare_record(self, job_id: str, spec: JobSpec) -> JobRecord:
        """A job that will never run: for what-if."""
        group = build_group(job_id, spec, log_of=str, env=dict)
        return JobRecord(job_id, spec, group, self._hub.now_s(), pools_for(spec, self._hub.provider.offers))


def _told_end(why: str, code: int | None) -> str:
    """What it comes to; how the process ended comes first."""
    last = gist_of(why)
    return last if code is None or ending_of(code) in last else f"{ending_of(code)}: {last}"
