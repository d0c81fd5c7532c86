"""What ranks tell the controller while they train: rank 0 a few times a second, means since the last time.

What the job measures of itself goes along about once a second, and in a new group after its first few steps.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from sublet.train.checkpoint.saving import Saver
from sublet.train.link.devices import device_model
from sublet.train.link.peers import PeerGroup
from sublet.train.numerics.memory import Cut
from sublet.train.sessions.steps import Steps
from sublet.train.state.state import Progress
from sublet.wire.lines import Message
from sublet.wire.messages import Saved, ShortOfMemory, Stepped
from sublet.wire.profile import PROFILED, Profile

__all__ = ["EVERY_S", "Report", "printed"]

EVERY_S = 0.2
PROFILE_EVERY_S = 1.0
EARLY = EARLY_STEPS = 3  # so many of a group go along once they have so many full steps: a short job is planned by them
OTHERS_EVERY_S = 2.0  # ranks above 0: what keeps a group waiting is seen within seconds, and a wide one says little


class Report:
    """Counts steps and says what they took."""

    def __init__(self, worker_id: str, say: Callable[[Message], None], *, logs: bool = False) -> None:
        self._worker_id, self._say, self._logs = worker_id, say, logs
        self._profile_every_s = float(os.environ.get(PROFILED, PROFILE_EVERY_S))
        self._profiled_s = -self._profile_every_s
        self.restart()

    def restart(self) -> None:
        """A new group: times of the old one are not its own."""
        self._early = EARLY
        self._begin()

    def _begin(self) -> None:
        self._since_s = time.perf_counter()
        self._steps, self._comm_s = 0, 0.0

    def count(self, comm_s: float) -> None:
        """A step was applied."""
        self._steps += 1
        self._comm_s += comm_s

    def tick(self, group: PeerGroup, steps: Steps, loss: float, saver: Saver) -> None:
        """Say something if it is time and there is something to say."""
        now_s, progress = time.perf_counter(), steps.progress
        every_s = EVERY_S if group.rank == 0 else OTHERS_EVERY_S
        if now_s - self._since_s < every_s or not self._steps:
            return
        self._say(
            Stepped(
                worker_id=self._worker_id,
                generation=group.generation,
                step=progress.steps,
                done=float(progress.done),
                epoch=progress.epoch,
                loss=loss,
                step_s=(now_s - self._since_s - saver.blocked_s) / self._steps,
                comm_s=self._comm_s / self._steps,
                saved_s=saver.blocked_s,
                global_batch=progress.batch,
                local_batch=-(-progress.batch // group.world),
                noise=progress.noise.scale,
                profile=self._profile(steps, now_s) if group.rank == 0 else None,
                logs=self._logs and group.rank == 0,
            )
        )
        saver.blocked_s = 0.0
        self._begin()

    def _profile(self, steps: Steps, now_s: float) -> Profile | None:
        """What was measured since the last one; None if that was a moment ago."""
        early = self._early > 0 and steps.watch.measured >= EARLY_STEPS
        due = early or now_s - self._profiled_s >= self._profile_every_s
        if not due or (times := steps.watch.take()) is None:
            return None
        self._profiled_s, self._early = now_s, self._early - 1
        adaptive = steps.adaptive
        return replace(
            times,
            memory_bytes=steps.look_at_memory(),
            most_samples=steps.memory.micro_batch or 0,
            noise_growth=steps.progress.noise.growth,
            torch=torch.__version__,
            device=device_model(steps.device),
            batch_initial=0 if adaptive is None else adaptive.initial,
            batch_low=0 if adaptive is None else adaptive.low,
            batch_high=0 if adaptive is None else adaptive.high,
        )

    def tell_short(self, group: PeerGroup, progress: Progress, cut: Cut, *, ends: bool = False) -> None:
        """A step did not fit into memory: all members are to take fewer samples at a time."""
        told = f"{cut.samples} samples at a time did not fit into memory: {cut.micro_batch} from now on"
        print(f"sublet: {told}, accumulated to the same batch", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
        self._say(
            ShortOfMemory(
                worker_id=self._worker_id,
                generation=group.generation,
                step=progress.steps,
                samples=cut.samples,
                micro_batch=cut.micro_batch,
                ends=ends,
            )
        )

    def tell_nothing_to_save(self, progress: Progress) -> None:
        """The answer to whoever wants a checkpoint of a profile before it goes on: nothing of this would be missed."""
        step, done = progress.steps, float(progress.done)
        self._say(Saved(worker_id=self._worker_id, step=step, done=done, seconds=0.0, blocked_s=0.0, size_bytes=0))


def printed() -> int:
    """Bytes that this process has printed into its file; -1 where its output goes elsewhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        found = os.fstat(1)
        if stat.S_ISREG(found.st_mode):
            return found.st_size
    return -1
