"""The record of a run: a row per job, the GPUs and dollars over time, and the purpose of every GPU-second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.money import Money
from sublet.domain.shape import Grid, Shape
from sublet.kernel.kernel import Kernel


@dataclass(slots=True)
class JobRow:
    """One job's life, in seconds of virtual time; None = it has not come to that."""

    job_id: str
    model: str
    submit_s: float
    gpus_asked: int
    start_s: float | None = None
    finish_s: float | None = None
    gpu_s: float = 0.0  # held
    paused_gpu_s: float = 0.0  # of these: starting, resizing or broken
    starts: int = 0
    resizes: int = 0
    losses: int = 0  # nodes lost under it
    done: float = 0.0  # work, by its end or by the end of the run

    @property
    def completion_s(self) -> float:
        """From submission to the end; only for jobs that have ended."""
        if self.finish_s is None:
            raise ValueError(self.job_id)
        return self.finish_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Segment:
    """`job_id` held `gpus` GPUs from `start_s` to `end_s`."""

    job_id: str
    start_s: float
    end_s: float
    gpus: int
    grid: Grid | None = None  # that it trained in; None = data parallel, or broken


@dataclass(slots=True)
class Recorder:
    """Watches a run and writes down what the figures and plots need."""

    keep_segments: bool = True
    jobs: dict[str, JobRow] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    held: list[tuple[float, int]] = field(default_factory=list)  # (time, GPUs paid for from then on)
    spend: list[tuple[float, Money]] = field(default_factory=list)
    held_gpu_s: float = 0.0
    job_seconds: float = 0.0  # integral of the number of jobs present, for Little's law
    told: list[str] = field(default_factory=list)  # what the user was told, in order
    refusals: int = 0
    losses: int = 0
    plans: int = 0
    _present: int = 0
    _held_gpus: int = 0
    _since_s: float = 0.0
    _running: dict[str, tuple[float, int, float]] = field(default_factory=dict)  # job -> since, GPUs, trains from
    _node_gpus: dict[str, int] = field(default_factory=dict)
    _shapes: dict[str, Shape] = field(default_factory=dict)  # job -> what it trains in
    _work: dict[str, float] = field(default_factory=dict)  # job -> all of it
    _trains_s: dict[str, float] = field(default_factory=dict)  # job -> when it would, had its spares not changed

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:
        """One event and the orders that followed."""
        now_s = event.at_s
        if now_s > self._since_s:
            self.job_seconds += self._present * (now_s - self._since_s)
            self.held_gpu_s += self._held_gpus * (now_s - self._since_s)
            self._since_s = now_s
        self._note_event(event, kernel)
        for action in actions:
            if isinstance(action, order.RentNode):
                gpus = self._node_gpus[action.node_id] = kernel.supply.offers[action.offer_id].gpus_per_node
                self._hold(now_s, gpus, kernel)
            elif isinstance(action, order.StartJob | order.ResizeJob):
                self._move(action, now_s)
            elif isinstance(action, order.MakePlan):
                self.plans += 1
            elif isinstance(action, order.TellUser):
                self.told.append(action.text)

    def _move(self, action: order.StartJob | order.ResizeJob, now_s: float) -> None:
        job_id, shape, row = action.job_id, action.shape, self.jobs[action.job_id]
        _, _, trains_s = self._running.get(job_id, (0.0, 0, now_s))
        self._leave(job_id, now_s)
        self._running[job_id] = (now_s, sum(gpus for _, gpus in action.placement), now_s)
        self._trains_s.pop(job_id, None)
        if isinstance(action, order.StartJob):
            row.starts += 1
            row.start_s = now_s if row.start_s is None else row.start_s
        elif shape.grid is not None and shape.trains_like(self._shapes.get(job_id)):
            self._trains_s[job_id] = max(trains_s, now_s)  # of spares alone, unless it pauses for longer
        else:
            row.resizes += 1
        self._shapes[job_id] = shape

    def _note_event(self, event: Event, kernel: Kernel) -> None:
        now_s = event.at_s
        if isinstance(event, news.JobSubmitted):
            job = event.job
            self.jobs[job.id] = JobRow(job.id, job.model, now_s, job.gpus)
            self._work[job.id] = job.work
            self._present += 1
        elif isinstance(event, news.JobFinished | news.JobFailed | news.JobCancelled):
            self._leave(event.job_id, now_s)
            self._present -= 1
            if isinstance(event, news.JobFinished):
                self.jobs[event.job_id].finish_s = now_s
                self.jobs[event.job_id].done = self._work[event.job_id]
        elif isinstance(event, news.JobStarted | news.JobResized):
            if event.job_id in self._running:
                since_s, gpus, _ = self._running[event.job_id]
                self._running[event.job_id] = (since_s, gpus, event.resumes_s)
                if event.resumes_s > self._trains_s.pop(event.job_id, math.inf):
                    self.jobs[event.job_id].resizes += 1
        elif isinstance(event, news.JobStopped):
            self._leave(event.job_id, now_s)
        elif isinstance(event, news.NodeReleased | news.NodeLost | news.RentRefused):
            if isinstance(event, news.RentRefused):
                self.refusals += 1
            elif isinstance(event, news.NodeLost):
                self._lost_node(event, kernel)
            self._hold(now_s, -self._node_gpus.pop(event.node_id), kernel)

    def _lost_node(self, event: news.NodeLost, kernel: Kernel) -> None:
        self.losses += 1
        for job_id, (_, gpus, trains_s) in list(self._running.items()):
            left = sum(g for _, g in kernel.tenancy.placement.get(job_id, ()))
            if left < gpus and kernel.jobs[job_id].phase == "running":  # spares: it trains on
                self._leave(job_id, event.at_s)
                self._running[job_id] = (event.at_s, left, max(trains_s, event.at_s))
            elif left < gpus and kernel.jobs[job_id].phase == "broken":
                self._leave(job_id, event.at_s)
                self.jobs[job_id].losses += 1
                self._shapes.pop(job_id, None)  # whatever comes next is a change
                if left:  # it holds what survived, paused until it is moved
                    self._running[job_id] = (event.at_s, left, float("inf"))

    def _hold(self, now_s: float, change: int, kernel: Kernel) -> None:
        self._held_gpus += change
        spent = kernel.ledger.spent(now_s)
        if self.held and self.held[-1][0] == now_s:
            self.held[-1] = (now_s, self._held_gpus)
            self.spend[-1] = (now_s, spent)
        else:
            self.held.append((now_s, self._held_gpus))
            self.spend.append((now_s, spent))

    def _leave(self, job_id: str, now_s: float) -> None:
        if job_id not in self._running:
            return
        since_s, gpus, trains_s = self._running.pop(job_id)
        row = self.jobs[job_id]
        row.gpu_s += gpus * (now_s - since_s)
        row.paused_gpu_s += gpus * (min(trains_s, now_s) - since_s)
        if self.keep_segments and now_s > since_s:
            shape = self._shapes.get(job_id)
            self.segments.append(Segment(job_id, since_s, now_s, gpus, None if shape is None else shape.grid))

    def close(self, kernel: Kernel, done: Mapping[str, float]) -> None:
        """The run is over: settle what is still open, and note how far each is that has not ended."""
        for job_id, work in done.items():
            self.jobs[job_id].done = work
        for job_id in list(self._running):
            self._leave(job_id, kernel.now_s)
        self._hold(kernel.now_s, 0, kernel)
