"""Times of a step on this worker, measured without synchronising.

On a CPU the work is done when the call returns, so the clock tells. On a GPU events are recorded in the stream of its
work, and read once the device is past them. While events are pending, steps are not measured.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sublet.machine.wall import WALL
from sublet.wire.messages import Profile

BEGUN, COMPUTED, SUMMED, UPDATED = range(4)  # marks on a GPU


class Stopwatch:
    """Told by `Steps` what happens; `take` gives what it took since the last time."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = WALL.monotonic) -> None:
        self._clock = clock
        self._marks = _Marks() if device.type == "cuda" else None
        self._at_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Drop what was measured: a new group, or a dropped step."""
        self._clear()
        self._last_s: float | None = None  # when the step before was over
        self._begin()
        if self._marks is not None:
            self._marks.forget()

    def loads(self) -> None:
        """The samples of a micro-batch are about to be loaded."""
        if self._marks is not None and not self._open_pieces:
            self._read_marks(self._marks)
        self._at_s = self._clock()

    def gives(self) -> None:
        """They go to the script."""
        now_s = self._clock()
        self._open_data_s += now_s - self._at_s
        self._at_s = now_s
        if self._marks is not None and not self._open_pieces:
            self._marks.put(BEGUN)

    def computed(self, samples: int, *, last: bool) -> None:
        """Backward has come back from them."""
        now_s = self._clock()
        self._open_compute_s += now_s - self._at_s
        self._open_pieces += 1
        self._open_samples += samples
        self._at_s = now_s
        if self._marks is not None and last:
            self._marks.put(COMPUTED)

    def summed(self) -> None:
        """The gradients of all are here."""
        now_s = self._clock()
        self._open_wait_s, self._at_s = now_s - self._at_s, now_s
        if self._marks is not None:
            self._marks.put(SUMMED)

    def updated(self, *, full: bool) -> None:
        """The step is over. Neither the first one counts, nor one that is not `full`: the last of an epoch."""
        now_s, last_s = self._clock(), self._last_s
        self._last_s = now_s
        if not self._open_pieces:  # it had no samples: what it waited is not its own
            return
        counts = full and last_s is not None
        if counts:
            self._count_step(now_s, now_s - (last_s or 0.0))
        if self._marks is not None:
            self._marks.put(UPDATED)
            self._marks.close(self._open_pieces, self._open_samples, counts=counts)
        self._begin()

    def _count_step(self, now_s: float, span_s: float) -> None:
        self._step_s += span_s
        self._spans += 1
        self._loaded += self._open_pieces
        self._data_s += self._open_data_s  # the host waits for data, whatever the device does
        if self._marks is None:
            self._add(self._open_compute_s, self._open_wait_s, now_s - self._at_s)

    @property
    def measured(self) -> int:
        """Whole steps since the last time."""
        return min(self._steps, self._spans)

    def take(self) -> Profile | None:
        """Since the last time; None if no whole step was measured."""
        if not self.measured:
            return None
        found = Profile(
            step_s=self._step_s / self._spans,
            pieces=max(1, round(self._pieces / self._steps)),
            samples=max(1, round(self._samples / self._pieces)),
            data_s=self._data_s / self._loaded,
            compute_s=self._compute_s / self._pieces,
            wait_s=self._wait_s / self._steps,
            update_s=self._update_s / self._steps,
        )
        self._clear()
        return found

    def _clear(self) -> None:
        self._steps = self._spans = self._pieces = self._samples = self._loaded = 0
        self._step_s = self._data_s = self._compute_s = self._wait_s = self._update_s = 0.0

    def _begin(self) -> None:
        self._open_pieces = self._open_samples = 0
        self._open_data_s = self._open_compute_s = self._open_wait_s = 0.0

    def _add(self, compute_s: float, wait_s: float, update_s: float) -> None:
        self._steps += 1
        self._pieces += self._open_pieces
        self._samples += self._open_samples
        self._compute_s += compute_s
        self._wait_s += wait_s
        self._update_s += update_s

    def _read_marks(self, marks: _Marks) -> None:
        found = marks.read()
        if found is not None:
            self._open_pieces, self._open_samples, *times = found
            self._add(*times)
            self._open_pieces = self._open_samples = 0


class _Marks:
    """Four events in the stream of a GPU; put again once they have been read."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]  # torch gives it no type
        self._next = BEGUN
        self._closed: tuple[int, int] | None = None

    def forget(self) -> None:
        self._next, self._closed = BEGUN, None

    def put(self, mark: int) -> None:
        if self._closed is None and mark == self._next:
            self._events[mark].record()
            self._next = mark + 1

    def close(self, pieces: int, samples: int, *, counts: bool) -> None:
        """All four are on their way, if they were put in this very step."""
        if self._closed is None:
            self._closed = (pieces, samples) if counts and self._next > UPDATED else None
            self._next = self._next if self._closed else BEGUN

    def read(self) -> tuple[int, int, float, float, float] | None:
        """Micro-batches, samples, and seconds of computing, waiting and updating; None while they are under way."""
        if self._closed is None or not self._events[UPDATED].query():  # type: ignore[no-untyped-call]  # torch gives it no type
            return None
        times = [self._events[at].elapsed_time(self._events[at + 1]) / 1e3 for at in range(3)]
        pieces, samples = self._closed
        self.forget()
        return pieces, samples, times[0], times[1], times[2]
