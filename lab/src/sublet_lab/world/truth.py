"""The real state and acts of jobs: laws compare them with the controller's beliefs."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.runtime.controller.files.checkpoints import Anchor
from sublet.runtime.controller.memory.table import job_of
from sublet.wire.files import Saved


@dataclass
class JobTruth:
    """One job. Its steps are counted; the state in a checkpoint is their number."""

    steps: int
    step_s: float  # of one worker
    boot_s: float = 2.0  # from the start of its process to its session
    write_s: float = 0.5  # of a checkpoint
    sdk: bool = True
    fails: int = 0  # starts that end with an error of its own, from now on
    failed: int = 0  # ... and did
    saved: int = 0  # the step of the last checkpoint that is committed
    told: int = 0  # the step of the last checkpoint that was acknowledged: no later reader may find less
    top: int = 0  # most steps ever made
    newest: int = -1  # the highest generation that ever made a step
    done: bool = False  # all steps were made, and the last checkpoint is committed
    redone: int = 0  # steps made twice
    started: int = 0  # workers, ever
    blocks: int = 0  # of a model that is cut
    reached: int = 0  # steps by a grid, since it was made or restored
    held: dict[int, set[int]] = field(default_factory=dict)  # generation -> blocks with a holder of it
    seated: dict[int, int] = field(default_factory=dict)  # generation -> steps that are applied when it begins


@dataclass
class Truth:
    """The truth of all jobs, by id."""

    jobs: dict[str, JobTruth] = field(default_factory=dict)
    complaints: list[tuple[str, str]] = field(default_factory=list)  # (law, what): workers see laws broken, too

    def carried(self, saved: Saved, anchor: Anchor) -> None:
        """The controller says that it has a checkpoint: no later reader may find less than what it has there."""
        job, commit = self.jobs[job_of(saved.worker_id)], anchor.head.newest
        step = saved.step
        if commit is not None and step < 0:  # of a script, which writes its step into a file
            step = max(int(b"".join(anchor.read(entry))) for entry in anchor.entries(commit))
        job.told = max(job.told, step)

    def stepped(self, job_id: str, generation: int) -> None:
        """A group makes a step: no older one may, ever after."""
        job = self.jobs[job_id]
        if generation < job.newest:
            self.complaints.append(("I5", f"{job_id}: generation {generation} makes a step after {job.newest}"))
        job.newest = max(job.newest, generation)
