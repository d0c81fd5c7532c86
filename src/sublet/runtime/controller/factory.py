"""Makes the record of a job: its folders, its group of workers, and what they find in their environment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sublet.domain.offer import Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.machine.remote import is_remote
from sublet.perf.preemption import checkpoint_interval_s, expected_hits_per_h
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.clock import Clock
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.logs import JobLogs
from sublet.runtime.controller.profile_store import ProfileStore
from sublet.runtime.controller.records import JobRecord, pools_for
from sublet.runtime.controller.size_files import SizeFiles, group_of
from sublet.runtime.controller.table import JobTable
from sublet.runtime.group.build import build_group
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private
from sublet.wire.profile import FITS

__all__ = ["RecordFactory"]

LEFT_S = 1.0  # wall, for which what is left in the purse is told alike to all who start


class RecordFactory:
    """Of one controller: `era` numbers its groups, `server_id` names its state directory."""

    def __init__(  # noqa: PLR0913 - each is a fact about this controller
        self,
        inbox: Inbox,
        *,
        table: JobTable,
        host_of: Callable[[str], str],
        logs: JobLogs,
        offers: Sequence[Offer],
        clock: Clock,
        state_dir: Path,
        server_id: str,
        era: int,
        disk: Disk = DISK,
    ) -> None:
        self._inbox, self._table, self._logs, self._offers, self._clock = inbox, table, logs, tuple(offers), clock
        self._state_dir, self._server_id, self._era = state_dir, server_id, era
        self._disk, self._host_of = disk, host_of
        self.profiles = ProfileStore(state_dir / "profiles")
        self.sizes = SizeFiles(state_dir / "sizes")
        self._left: tuple[float, float | None] = (-math.inf, None)  # (wall, what is left in the purse)

    def record(self, job_id: str, spec: JobSpec, submitted_s: float) -> JobRecord:
        """A job with its workers-to-be."""
        folder = self._state_dir / "jobs" / job_id
        checkpoints = spec.checkpoint_dir or str(folder / "checkpoints")
        make_private(folder / "logs")
        try:
            if not spec.checkpoint_dir:
                make_private(folder / "checkpoints")
            elif not is_remote(checkpoints):  # a bucket is its workers' to write: nobody here waits for a network
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
            era=self._era,
        )
        pools = pools_for(spec, self._offers)
        profile, size_group = self.profiles.begin(spec), group_of(spec)
        size_h = self.sizes.of(size_group).expected_h(0.0)
        return JobRecord(job_id, spec, group, submitted_s, pools, profile=profile, size_group=size_group, size_h=size_h)

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
            size_h=self.sizes.of(size_group).expected_h(0.0),
        )

    def _environment(self, record: JobRecord, checkpoints: str) -> dict[str, str]:
        every_s = record.every_s = self._checkpoint_every_s(record)
        left = self._purse_left()
        env = {
            "SUBLET_JOB_ID": record.id,
            "SUBLET_MAX_WORKERS": str(record.spec.max_workers),
            "SUBLET_ATTEMPT": str(record.group.failures.total()),
            "SUBLET_CHECKPOINT_DIR": checkpoints,
            "SUBLET_CHECKPOINT_EVERY_S": f"{every_s:.3f}",
            "SUBLET_CHECKPOINT_KEEP": str(record.spec.checkpoint_keep),
            "SUBLET_RESUME": "1" if _resumes(record, checkpoints, self._disk) else "0",
            "WANDB_RUN_ID": f"{self._server_id}-{record.id}",  # jobs of two state directories share their names
            "WANDB_RESUME": "allow",
            "SLURM_RESTART_COUNT": str(record.group.failures.total()),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # a group that breaks would fill the log with frames
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
        """Wall seconds between checkpoints: what the user asked for, or Young and Daly's."""
        speedup = self._clock.speedup
        if record.spec.checkpoint_every_s is not None:
            return record.spec.checkpoint_every_s / speedup
        offers = [offer for offer in self._offers if not record.pools or offer.pool in record.pools]
        workers = record.spec.max_workers
        kernel = self._inbox.kernel
        states = [kernel.supply.offering.state(offer.id, kernel.now_s) for offer in offers]
        hits_per_h = max((expected_hits_per_h(s, -(-workers // s.offer.gpus_per_node)) for s in states), default=0.0)
        write_s = max(record.write_s, 0.05)
        every_s = float(checkpoint_interval_s(write_s * speedup, np.array(hits_per_h / SECONDS_PER_H)))
        return min(max(every_s / speedup, 10 * write_s), 600.0)


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
