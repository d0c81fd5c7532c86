"""Workers that keep their group waiting: seen in what each needs for its own part of a step, told, replaced if cheaper.

Every rank says now and then how long a step took and how much of that it waited for the others. Only rank 0 did before,
so of a group with an old SDK nothing is known but that all of it has become slow.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from sublet.domain import events as news
from sublet.planning.straggling import STRAGGLES, Straggler, saved_by_replacing_s_usd, straggler_among
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.controller.watch import AlarmKind
from sublet.wire.messages import Stepped

TURNS = 8  # of reports by every rank: a node that was not the slowest in so many is none that stands out
REPORTS = 3  # of each rank, the median of which counts: one slow step is no news
LONGEST_STEP_S = 1e6  # a worker may say anything; what is beyond this is not believed
FORGETS = 0.05  # of what a step usually takes, per report that is not slow
STRAGGLER = "straggler"  # kind of warning
SCRIPT = "another node was no faster: it is the script's own work, not the node, and none is replaced for it any more"


@dataclass(slots=True)
class _Seen:
    """Of one group, in one generation."""

    generation: int
    own_s: dict[str, deque[float]] = field(default_factory=dict)  # worker -> its own part of a step, lately
    slow_since: float | None = None  # wall: all of it takes far longer than is usual
    looks: int = 0  # at all of them
    suspects: dict[str, tuple[float, int]] = field(default_factory=dict)  # node -> wall: since when; the last look
    told: set[str] = field(default_factory=set)  # nodes

    def suspect(self, node_id: str, wall_s: float, *, forget: int) -> float:
        """Since when it stands out. Slow workers take turns at being the slowest, and so do slow nodes."""
        self.looks += 1
        kept = {node: seen for node, seen in self.suspects.items() if self.looks - seen[1] <= forget}
        since_s, _ = kept.get(node_id, (wall_s, 0))
        self.suspects = {**kept, node_id: (since_s, self.looks)}
        return since_s


class Stragglers:
    """Of all jobs."""

    def __init__(self, context: Context, jobs: Lifecycle) -> None:
        self._inbox, self._bill, self._alarms, self._jobs = context.inbox, context.bill, context.alarms, jobs
        self._clock, self._paces = context.host.clock, context.host.paces
        self._seen: dict[str, _Seen] = {}  # by job
        self._usual_s: dict[tuple[str, str, int], float] = {}  # job, GPU kind, workers -> seconds per sample

    def compare(self, record: JobRecord, message: Stepped, wall_s: float) -> None:
        """One rank says what its steps take."""
        group = record.group
        worker = group.workers.get(message.worker_id)
        believed = 0.0 < message.step_s < LONGEST_STEP_S and 0.0 <= message.comm_s <= message.step_s
        if worker is None or not believed or message.generation != group.round.number:
            return
        seen = self._seen.get(record.id)
        if seen is None or seen.generation != message.generation:
            self._forget_ended()
            seen = self._seen[record.id] = _Seen(message.generation)
            record.warnings.pop(STRAGGLER, None)
        lately = seen.own_s.setdefault(worker.id, deque(maxlen=REPORTS))
        lately.append(message.step_s - message.comm_s)
        if worker.rank == 0:
            self._compare_with_past(record, seen, message, wall_s)
        members = {each.id for each in group.workers.values() if each.rank >= 0}
        if len(lately) < REPORTS or not members <= {w for w, times in seen.own_s.items() if len(times) == REPORTS}:
            return
        found = straggler_among({w: median(seen.own_s[w]) for w in members}, message.step_s)
        if found is None:
            if seen.told:  # it has caught up
                record.warnings.pop(STRAGGLER, None)
            seen.suspects, seen.told = {}, set()
            return
        node_id, long_s = group.workers[found.worker_id].node_id, self._paces.straggles_s
        since_s = seen.suspect(node_id, wall_s, forget=TURNS * len(members))
        if node_id not in seen.told and wall_s - since_s >= long_s:
            seen.told.add(node_id)
            self._tell(record, found, message)

    def _forget_ended(self) -> None:
        jobs = self._inbox.kernel.jobs
        self._seen = {job_id: seen for job_id, seen in self._seen.items() if job_id in jobs}
        self._usual_s = {key: usual_s for key, usual_s in self._usual_s.items() if key[0] in jobs}

    def _compare_with_past(self, record: JobRecord, seen: _Seen, message: Stepped, wall_s: float) -> None:
        """Where no worker stands out, all may have become slow: a disk, a network, a neighbour."""
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None or message.global_batch <= 0:
            return
        key, sample_s = (record.id, state.gpu, record.group.size), message.step_s / message.global_batch
        usual_s = self._usual_s.setdefault(key, sample_s)
        if sample_s < STRAGGLES * usual_s:
            self._usual_s[key] = min(usual_s + FORGETS * (sample_s - usual_s), sample_s * STRAGGLES)
            seen.slow_since = None
            return
        if seen.slow_since is None:
            seen.slow_since = wall_s
        long = wall_s - seen.slow_since >= 2.0 * self._paces.straggles_s  # by then the worker would be known
        if long and not seen.suspects and STRAGGLER not in record.warnings:
            text = f"steps take {sample_s / usual_s:.1f} x as long as they did, and no worker stands out"
            record.warnings[STRAGGLER] = text
            self._alarms.sound(AlarmKind.STRAGGLER, text, job_id=record.id, reason="past")

    def _tell(self, record: JobRecord, found: Straggler, message: Stepped) -> None:
        worker, before = record.group.workers[found.worker_id], record.replacements
        node_id = worker.node_id
        text = f"{found.worker_id} on {node_id} takes {found.times:.1f} x as long as its peers"
        if before.in_vain or before.brought_nothing(worker.rank, node_id, found.times):
            self._let_be(record, found, text, node_id)
            return
        saved_s, usd = self._saved(record, node_id, found, message)
        alone = self._is_alone(record.id, node_id)
        if usd > 0.0 and saved_s > 0.0 and alone:
            verdict = f"another node saves about USD {usd:.2f} and {saved_s / 60.0:.0f} min"
            before.add(worker.rank, node_id, found.times, (each.node_id for each in record.group.workers.values()))
            self._jobs.save_facts(record)  # or the next controller would begin again
            self._inbox.queue(news.NodeSlow(self._inbox.now_s(), node_id, f"{text}; {verdict}"))
        elif alone:
            verdict = f"it stays: to replace the node would cost USD {-usd:.2f} more than it saves"
        else:
            verdict = "it stays: other jobs are on that node"
        record.warnings[STRAGGLER] = f"{text}; {verdict}"
        self._alarms.sound(
            AlarmKind.STRAGGLER, f"{text}; {verdict}", job_id=record.id, node_id=node_id, reason=found.worker_id
        )

    def _let_be(self, record: JobRecord, found: Straggler, text: str, node_id: str) -> None:
        """Another node was as slow: it is told once, and no node of this job is replaced for it any more."""
        text = record.warnings[STRAGGLER] = f"{text}; {SCRIPT}"
        if record.replacements.in_vain:
            return
        record.replacements.in_vain = True
        self._jobs.save_facts(record)
        self._alarms.sound(AlarmKind.STRAGGLER, text, job_id=record.id, node_id=node_id, reason=found.worker_id)

    def _saved(self, record: JobRecord, node_id: str, found: Straggler, message: Stepped) -> tuple[float, float]:
        kernel, work = self._inbox.kernel, record.group.work
        node, state = kernel.cluster.nodes.get(node_id), kernel.jobs.get(record.id)
        if node is None or state is None or not work or message.global_batch <= 0:
            return 0.0, -math.inf
        steps = max(work - record.group.done, 0.0) / message.global_batch
        return saved_by_replacing_s_usd(
            left_s=steps * message.step_s * self._clock.speedup,
            slowdown=found.slowdown,
            pause_s=state.job.restart_s,
            boot_s=max(node.offer.boot_s, node.offer.minimum_billing_s),
            job_usd_per_h=self._bill.burn_usd_per_h(record.id),
            node_usd_per_h=kernel.ledger.believed(node.offer.id).usd_per_h,
        )

    def _is_alone(self, job_id: str, node_id: str) -> bool:
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        return node is not None and set(node.jobs) <= {job_id}
