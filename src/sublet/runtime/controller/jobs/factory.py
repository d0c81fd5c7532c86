"""Makes the record of a job: its folders, its group of workers, and what they find in their environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sublet.domain.offer import Offer
from sublet.domain.saving import MOST_SLOWDOWN
from sublet.errors import InvalidValue
from sublet.machine.remote import is_remote
from sublet.runtime.agent.disk import Disk
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.controller.files import CARRIED, JobLogs, has_checkpoints
from sublet.runtime.controller.inbox import Hold
from sublet.runtime.controller.jobs.sizes import SizeBeliefs, SizeFiles, group_of
from sublet.runtime.controller.memory import (
    OUTWARD,
    Context,
    Every,
    Identity,
    JobRecord,
    Losses,
    Pace,
    intervals,
    losses_of,
    pools_for,
)
from sublet.runtime.group.build import build_group
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private
from sublet.runtime.profiles.store import ProfileStore
from sublet.wire import files
from sublet.wire.messages import FITS

LEFT_S = 1.0  # wall, for which what is left in the budget is told alike to all that start


class RecordFactory:
    """Of one controller."""

    def __init__(
        self,
        context: Context,
        identity: Identity,
        *,
        offers: Sequence[Offer],
        logs: JobLogs,
        host_of: Callable[[str], str],
        carries: Callable[[JobSpec, str], bool] = lambda *_: False,
    ) -> None:
        self._inbox, self._table = context.inbox, context.table
        self._clock, self._disk = context.host.clock, context.host.disk
        self._identity, self._offers, self._logs = identity, tuple(offers), logs
        self._state_dir, self._host_of, self._carries = context.host.state_dir, host_of, carries
        inbox, state_dir = self._inbox, self._state_dir
        self.profiles = ProfileStore(state_dir / "profiles")
        self.sizes = SizeBeliefs(
            SizeFiles(state_dir / "sizes"),
            there=lambda: inbox.kernel.jobs,
            ended=lambda: inbox.kernel.tenancy.census.ended,
        )
        self._left: tuple[float, float | None] = (-math.inf, None)  # (wall, what is left in the budget)

    def record(self, job_id: str, spec: JobSpec, submitted_s: float) -> JobRecord:
        """A job with its workers-to-be."""
        folder = self._state_dir / "jobs" / job_id
        checkpoints = spec.checkpoint_dir or str(folder / "checkpoints")
        make_private(folder / "logs")
        try:
            if not spec.checkpoint_dir:
                make_private(folder / "checkpoints")
            elif not is_remote(checkpoints):  # a bucket is its workers' to write: no call here waits for a network
                Path(checkpoints).mkdir(parents=True, exist_ok=True)  # its owner's own place: as their umask has it
        except OSError as error:
            allowed = f"a directory that can be made ({error.strerror or error})"
            raise InvalidValue("checkpoint.uri", spec.checkpoint_dir, allowed) from None
        group = build_group(
            job_id,
            spec,
            log_of=lambda worker_id: str(self._logs.of(job_id).path(worker_id)),
            env=lambda: self._environment(self._table.records[job_id], checkpoints),
            host_of=self._host_of,
            era=self._identity.era,
        )
        pools = pools_for(spec, self._offers)
        profile, size_group = self.profiles.begin(spec), group_of(spec)
        size_h = self.sizes.size_h(size_group, spec.min_workers)
        record = JobRecord(
            job_id, spec, group, submitted_s, pools, profile=profile, size_group=size_group, size_h=size_h
        )
        self.hold_without_checkpoints(record)
        return record

    def place(self, record: JobRecord) -> str:
        """Where its checkpoints are."""
        if self._carries(record.spec, record.id):
            return f"{CARRIED}{self._state_dir / 'checkpoints' / record.id}"
        return record.spec.checkpoint_dir or str(self._state_dir / "jobs" / record.id / "checkpoints")

    def carry_s(self, spec: JobSpec) -> float:
        """For so long the end of its workers may be held, in a hurry, while what they saved is carried."""
        return files.HURRY_S if self._carries(spec, "") else 0.0

    def hold_without_checkpoints(self, record: JobRecord) -> None:
        """Of one that has them copied to a bucket: if there are none here, they may be there."""
        may = record.spec.checkpoint_copy and not record.outcome and not record.paused
        if may and not has_checkpoints(self.place(record), self._disk):
            record.paused = Hold.COPY

    def bare_record(self, job_id: str, spec: JobSpec) -> JobRecord:
        """A job that will never run: for what-if."""
        group = build_group(job_id, spec, log_of=str, env=dict)
        size_group = group_of(spec)
        return JobRecord(
            job_id,
            spec,
            group,
            self._inbox.now_s(),
            pools_for(spec, self._offers),
            size_group=size_group,
            size_h=self.sizes.size_h(size_group, spec.min_workers),
        )

    def _environment(self, record: JobRecord, checkpoints: str) -> dict[str, str]:
        every_s = record.every_s = self._checkpoint_every_s(record)
        limit = {} if record.spec.checkpoint_every_s else {"SUBLET_CHECKPOINT_MOST_SLOWDOWN": str(MOST_SLOWDOWN)}
        left = self._purse_left()
        env = {
            "SUBLET_JOB_ID": record.id,
            "SUBLET_MAX_WORKERS": str(record.spec.max_workers),
            "SUBLET_SHARDS": str(record.spec.shards),
            "SUBLET_STAGES": str(record.spec.stages or "auto"),
            "SUBLET_ATTEMPT": str(record.group.failures.total()),
            "SUBLET_CHECKPOINT_DIR": checkpoints,
            "SUBLET_CHECKPOINT_EVERY_S": f"{every_s:.3f}",
            **limit,
            "SUBLET_CHECKPOINT_KEEP": str(record.spec.checkpoint_keep),
            "SUBLET_RESUME": "1" if _resumes(record, checkpoints, self._disk) else "0",
            "SUBLET_RUN_ID": f"{self._identity.server_id}-{record.id}",  # jobs of two controllers share names
            "WANDB_RUN_ID": f"{self._identity.server_id}-{record.id}",
            "WANDB_RESUME": "allow",
            "SLURM_RESTART_COUNT": str(record.group.failures.total()),
            "TORCH_CPP_LOG_LEVEL": "FATAL",  # a group that breaks would fill the log with frames of C++
            "OMP_NUM_THREADS": record.spec.env.get("OMP_NUM_THREADS", "1"),  # as torchrun does
        }
        if record.start_over:
            env["SUBLET_START_OVER"] = "1"
        state = self._inbox.kernel.jobs.get(record.id)
        if state is not None and (fits := record.profile.fits(state.gpu)):
            env[FITS] = str(fits)
        if left is not None:
            env["SUBLET_BUDGET_LEFT_USD"] = f"{left:.4f}"
        return env

    def _purse_left(self) -> float | None:
        wall_s = self._clock.wall.monotonic()
        if wall_s - self._left[0] > LEFT_S:
            left = self._inbox.kernel.supply.purse.left(self._inbox.now_s())
            self._left = (wall_s, None if left is None else left.usd)
        return self._left[1]

    def _checkpoint_every_s(self, record: JobRecord) -> float:
        """Wall seconds between checkpoints: what the user asked for, or what loses the least."""
        if record.spec.checkpoint_every_s is not None:
            return record.spec.checkpoint_every_s / self._clock.speedup
        return self.intervals(record).worker_s

    def intervals(self, record: JobRecord) -> Every:
        """By the model of tiers, with the last copies of this job and the nodes that it has, or may get."""
        tiers = record.tiers
        nearest = next((tier for tier in OUTWARD[1:] if tier in tiers.tallies), files.ANCHOR)
        pace = Pace(
            blocked_s=tiers.of(nearest).last_blocked_s,
            write_s=record.write_s,
            carry_s=record.carry_s,
            copy_s=tiers.of(files.BUCKET).seconds,
        )
        copies = bool(record.spec.checkpoint_copy)
        return intervals(pace, self._losses(record), speedup=self._clock.speedup, copies=copies)

    def _losses(self, record: JobRecord) -> Losses:
        """Of the nodes that it has; else of the worst that it may get."""
        kernel, spec = self._inbox.kernel, record.spec
        survives = spec.sdk and spec.on_node_loss in (OnNodeLoss.CONTINUE, OnNodeLoss.REPLACE)
        nodes = (kernel.cluster.nodes.get(node_id) for node_id, _ in kernel.tenancy.placement.get(record.id, ()))
        if held := Counter(node.offer.id for node in nodes if node is not None):
            has = [(kernel.supply.offering.state(offer, kernel.now_s), count) for offer, count in held.items()]
            return losses_of(has, survives=survives)
        offers = [offer for offer in self._offers if not record.pools or offer.pool in record.pools]
        states = [kernel.supply.offering.state(offer.id, kernel.now_s) for offer in offers]
        each = [
            losses_of([(state, -(-spec.max_workers // state.offer.gpus_per_node))], survives=survives)
            for state in states
        ]
        return max(each, key=lambda losses: losses.all_per_h, default=Losses(some_per_h=0.0, all_per_h=0.0))


def _resumes(record: JobRecord, checkpoints: str, disk: Disk) -> bool:
    """Whether the worker that is about to start finds something to go on from.

    A script without a session never says how far it is; what it saved is there to be seen. All workers of a start are
    told what the first was told, which may have written something since.
    """
    group = record.group
    if record.spec.sdk:
        return group.step > 0 or bool(group.failures)
    if record.resumes is None or len(group.workers) <= 1:
        record.resumes = holds_files(checkpoints, disk)
    return record.resumes
