"""Messages of a worker to the controller while it trains: it has joined, a few times a second how far it is.

Times are means since the last message. What the job measures of itself goes along about once a second, and in a new
group after its first few steps.
"""

from __future__ import annotations

import contextlib
import os
import stat
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch

from sublet.machine.wall import WALL
from sublet.train.checkpoint.saving import Saver
from sublet.train.link.agent_line import ControllerLink
from sublet.train.link.devices import device_model
from sublet.train.numerics.memory import gauge_of
from sublet.train.sessions.steps import Steps
from sublet.train.state.state import Progress
from sublet.wire.lines import Message
from sublet.wire.messages import EXIT_MEMORY, PROFILED, Finished, Joined, Profile, Saved, ShortOfMemory, Stepped

EVERY_S = 0.2
PROFILE_EVERY_S = 1.0
EARLY = EARLY_STEPS = 3  # so many of a group go along once they have so many full steps: a short job is planned by them
OTHERS_EVERY_S = 2.0  # ranks above 0: a slow worker is seen within seconds, and a large group sends little


class Report:
    """Counts steps of one worker, and says how far it is when a message is due."""

    def __init__(self, link: ControllerLink, saver: Saver, *, logs: bool = False) -> None:
        self._link, self._saver, self._logs, self._generation = link, saver, logs, 0
        self._profile_every_s = float(os.environ.get(PROFILED, PROFILE_EVERY_S))
        self._profiled_s = -self._profile_every_s
        self._early = EARLY
        self._begin()

    def joined(self, progress: Progress, *, generation: int, **facts: Any) -> None:
        """In a new group: times of the old one are dropped."""
        self._generation, self._early = generation, EARLY
        self._begin()
        done, batch = float(progress.done), progress.batch
        self._say(Joined, progress, generation=generation, done=done, global_batch=batch, printed=_printed(), **facts)

    def count(self, *, steps: int = 1, units: tuple[float, ...] = (), **times_s: float) -> None:
        """Steps that were applied, and their times; `units`: those of a step, as in `Stepped`."""
        self._steps += steps
        self._times_s.update(times_s)
        if units:
            self._units.append(units)

    def is_due(self, *, first: bool = True, at_once: bool = False) -> bool:
        """Whether a message is, after any step; `first`: of the worker that logs."""
        every_s = 0.0 if at_once else EVERY_S if first else OTHERS_EVERY_S
        return self._steps > 0 and WALL.monotonic() - self._since_s >= every_s

    def stepped(self, progress: Progress, *, loss: float, workers: int, first: bool, **facts: Any) -> None:
        """How far training is; `first`: of the worker that logs."""
        saved_s, passed_s = self._saver.blocked_s, WALL.monotonic() - self._since_s
        means_s: dict[str, Any] = {name: took_s / self._steps for name, took_s in self._times_s.items()}
        self._say(
            Stepped,
            progress,
            generation=self._generation,
            done=float(progress.done),
            epoch=progress.epoch,
            loss=loss,
            step_s=(passed_s - saved_s) / self._steps,
            saved_s=saved_s,
            global_batch=progress.batch,
            local_batch=-(-progress.batch // workers),
            units=tuple(statistics.fmean(column) for column in zip(*self._units, strict=True)),
            logs=self._logs and first,
            **means_s,
            **facts,
        )
        self._saver.blocked_s = 0.0
        self._begin()

    def profile(self, steps: Steps) -> Profile | None:
        """Measurements since the last one; None if that was a moment ago."""
        now_s = WALL.monotonic()
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

    def short(self, progress: Progress, *, samples: int, micro_batch: int, ends: bool = False) -> None:
        """This many samples at a time did not fit into memory; `micro_batch` from now on (0: no fewer would help)."""
        if micro_batch:
            told = f"{samples} samples at a time did not fit into memory: {micro_batch} from now on"
            print(f"sublet: {told}, accumulated to the same batch", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
        facts = {"generation": self._generation, "samples": samples, "micro_batch": micro_batch}
        self._say(ShortOfMemory, progress, ends=ends, **facts)

    def end_short(self, progress: Progress, *, samples: int, micro_batch: int) -> NoReturn:
        """As `short`, where this process cannot go on: another one does."""
        self.short(progress, samples=samples, micro_batch=micro_batch, ends=True)
        raise SystemExit(EXIT_MEMORY)

    def finished(self, progress: Progress, loss: float) -> None:
        """The last checkpoint is committed."""
        self._say(Finished, progress, done=float(progress.done), loss=loss)

    def beside_bytes(self, device: torch.device) -> int:
        """Memory that steps took beside what stays, since the last call; 0 on a CPU."""
        gauge = gauge_of(device)
        return 0 if gauge is None else max(0, gauge.take_peak() - gauge.resident())

    def nothing_to_save(self, progress: Progress) -> None:
        """The answer of a profile that is asked for a checkpoint: none of its state is needed."""
        self._say(Saved, progress, done=float(progress.done), seconds=0.0, blocked_s=0.0, size_bytes=0)

    def _say(self, message: Callable[..., Message], progress: Progress, /, **facts: Any) -> None:
        self._link.say(message(worker_id=self._link.worker_id, step=progress.steps, **facts))

    def _begin(self) -> None:
        self._since_s, self._steps = WALL.monotonic(), 0
        self._times_s, self._units = Counter[str](), list[tuple[float, ...]]()


def _printed() -> int:
    """Bytes that this process has printed into its file; -1 where its output goes elsewhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        found = os.fstat(1)
        if stat.S_ISREG(found.st_mode):
            return found.st_size
    return -1
