"""A training process in virtual time: where it is, how far, and what is left of it when nodes are taken."""

from __future__ import annotations

import math

from sublet.domain.job import Change, Job
from sublet.domain.seats import Seats, has_all_parts, is_spare
from sublet.domain.shape import Placement, Shape, Spread


class TrainingRun:
    """A training process: where it is and how far."""

    __slots__ = (
        "before",
        "changed_s",
        "done",
        "gpu",
        "job",
        "left_s",
        "lost",
        "placement",
        "prepared",
        "resumes_s",
        "saved",
        "seats",
        "shape",
        "spread",
        "unsaved_s",
        "version",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = 0.0
        self.resumes_s = math.inf  # trains from here on; inf = it does not
        self.gpu = ""
        self.spread: Spread = ()
        self.placement: Placement = ()
        self.shape: Shape | None = None  # of the last order; None = its state lies in storage
        self.seats: Seats = {}  # the seats, less those taken since; empty where all are alike
        self.lost = 0  # of its GPUs, taken since
        self.left_s = 0.0  # of a pause that was cut short
        self.saved = 0.0  # of its work, what a checkpoint held when it last stood still
        self.unsaved_s = 0.0  # how long it had trained since then when it last stood still
        self.changed_s = -1.0  # when it was last moved, and
        self.before: tuple[Shape | None, int, float] = (None, 0, 0.0)  # shape, GPUs lost and pause left until then
        self.prepared: tuple[Shape, float] | None = None  # what it gets, or then got, ready for, and since when
        self.version = 0  # a planned end belongs to one version

    def done_at(self, now_s: float) -> float:
        """Work done by now."""
        if now_s <= self.resumes_s:
            return self.done
        return self.job.speed_on(self.shape).work(self.gpu, self.spread, self.done, now_s - self.resumes_s)

    def change_to(self, shape: Shape, now_s: float) -> float:
        """It goes on in this shape; when it trains again. All that happens to it at one instant is one change."""
        if self.changed_s < now_s and self.prepared is not None and self.prepared[1] <= self.changed_s:
            self.prepared = None  # it was for the change before
        was, lost, left_s = self.before if self.changed_s == now_s else (self.shape, 0, self.left_s)
        self.before = (was, lost + self.lost, left_s)
        self.changed_s, self.shape, self.lost, self.left_s = now_s, shape, 0, 0.0
        lost, ready_s = self.before[1], self._ready_s(shape, now_s)
        return now_s + self.job.pause_s(Change(was=was, now=shape, lost=lost, left_s=left_s, ready_s=ready_s))

    def prepare(self, shape: Shape, now_s: float) -> None:
        """Get ready for this shape; what was made ready for another is of no use."""
        self.prepared = (shape, now_s)

    def _ready_s(self, shape: Shape, now_s: float) -> float:
        """For how long it has been prepared for this shape."""
        if self.prepared is None:
            return 0.0
        prepared, since_s = self.prepared
        return now_s - since_s if shape == prepared or (shape.grid and shape.trains_like(prepared)) else 0.0

    def lose(self, node_id: str) -> None:
        """A node was taken, or is left since it will be: those on it are lost, unless they were spare."""
        if node_id not in self.seats or not is_spare(self.seats.pop(node_id)):
            self.lost += dict(self.placement)[node_id]

    @property
    def is_alive(self) -> bool:
        """Whether the survivors have its state between them; what pauses of its own restore is in these."""
        if self.shape is None or self.shape.grid is None or not self.seats or self.job.pauses is not None:
            return bool(self.placement)
        return has_all_parts(self.seats, self.shape.grid)

    def halt(self, now_s: float) -> None:
        """It does not train from here on; a planned end is void."""
        if self.resumes_s < math.inf:
            self.saved, self.left_s = self.saved_at(now_s), max(0.0, self.resumes_s - now_s)
            trained_s = self.unsaved_s + max(0.0, now_s - self.resumes_s)
            self.unsaved_s = math.fmod(trained_s, self.job.checkpoint_every_s) if self.job.survives else 0.0
            self.done = self.done_at(now_s)
        self.resumes_s = math.inf
        self.version += 1

    def save(self) -> None:
        """Write a checkpoint while it stands still."""
        self.saved, self.unsaved_s = self.done, 0.0

    def step_back(self) -> None:
        """Nothing is left but the last checkpoint."""
        self.done, self.unsaved_s = self.saved, 0.0

    def forget(self) -> None:
        """Its knowledge lies in storage."""
        self.save()
        self.shape, self.lost, self.left_s, self.changed_s, self.seats = None, 0, 0.0, -1.0, {}

    def saved_at(self, now_s: float) -> float:
        """Work that the last periodic checkpoint holds."""
        trained_s = now_s - self.resumes_s
        every_s = self.job.checkpoint_every_s
        if trained_s <= 0 or every_s > self.unsaved_s + trained_s:
            return self.saved if self.job.survives else self.done  # a change from peers to peers writes none
        last_s = (self.unsaved_s + trained_s) // every_s * every_s - self.unsaved_s
        return self.job.speed_on(self.shape).work(self.gpu, self.spread, self.done, last_s)
