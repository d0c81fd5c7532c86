"""The speed of a job whose batch may change: by worker count and batch, in the samples that it counts.

A sample of a larger batch is worth less: (noise + initial) / (noise + batch) of one at the initial batch. The job
counts samples, whatever they are worth. So its rate elsewhere is told in samples of the batch that it has now: staying
takes as long as it will take, and another batch as long as the same progress would take there.

If the noise grows there are phases (`trend`). A batch is for the first of them: in each later one the best is
reckoned with, since it can be changed then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.job import Speed, Standstill
from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.shape import Grid, Shape, Spread
from sublet.errors import InvalidValue
from sublet.perf.goodput import efficiency
from sublet.perf.learned import MEASURED_DOUBT
from sublet.perf.live.fit import FittedStep, fitted_step
from sublet.perf.live.rows import PREDICTED_ERROR, Source, StepRow, predicted
from sublet.perf.phased import Phased
from sublet.perf.speedup import ConstantRate
from sublet.perf.steptime import iteration_s
from sublet.solve.arrays import Floats

STEP = math.sqrt(2.0)  # between two batches: the best of them costs at most 0.75 % more than the best of all
KEPT = 0.95  # of the best: the batch that it has stays if it is as good as this
MISFIT = 0.1  # where what was measured and the curve differ by more, what was measured counts
MOST_DOUBT = 0.5

# C batches


def batch_steps(initial: int, low: int, high: int) -> tuple[int, ...]:
    """The batches to choose from: the initial one, and steps of the root of two up and down from it, and both ends.

    >>> batch_steps(64, 32, 256)
    (32, 45, 64, 91, 128, 181, 256)
    """
    whole("low", low, 1)
    if not low <= initial <= high:
        raise InvalidValue("batch range", (low, high), f"around the initial batch {initial}")
    down, up = math.ceil(math.log(initial / low, STEP)), math.ceil(math.log(high / initial, STEP))
    steps = {round(initial * STEP**at) for at in range(-down, up + 1)}
    return tuple(sorted({min(max(batch, low), high) for batch in steps}))


def _equal(known: str, gpu: str) -> float:  # noqa: ARG001 - as little is known of one as of the other
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveSpeed(ConstantRate):
    """The speed of one job as it is known now; bound to a shape, it is that at the batch of the shape.

    Without a named batch (`rate`), it is at the best one. A shape without one is at the batch that it has.
    """

    rows: tuple[StepRow, ...]  # of all kinds of GPU
    batches: tuple[int, ...]  # that may be chosen
    initial: int  # at which a sample is worth 1
    batch_now: int
    noise: float | None = None  # gradient noise scale in samples; None = not known: the batch stays
    phases: tuple[tuple[float, float], ...] = ()  # (end, noise) of each, as it grows; () = it stays as it is
    most_samples: int = 0  # at a time on one GPU; 0 = all of its share
    unit: float = 1.0  # samples to one unit of work
    sizes: tuple[int, ...] = ()  # worker counts that the owner allows; () = all
    kinds: tuple[str, ...] = ()  # of GPU on which it runs at all; () = all, with `ratio` for those without rows
    ratio: Callable[[str, str], float] = _equal  # (kind with rows, kind without) -> how many times as long it computes
    _found: dict[tuple[str, Spread, int], tuple[tuple[int, ...], Floats]] = field(
        default_factory=dict, init=False, compare=False
    )
    _curves: dict[int | None, Phased] = field(default_factory=dict, init=False, compare=False)  # by batch; None = best

    def __post_init__(self) -> None:
        whole("batch_now", self.batch_now, 1)
        whole("initial", self.initial, 1)
        whole("most_samples", self.most_samples)
        positive("unit", self.unit)
        if not self.rows:
            raise InvalidValue("rows", self.rows, "at least one")
        if self.noise is not None:
            at_least("noise", self.noise, 0.0)
        elif self.phases:
            raise InvalidValue("phases", len(self.phases), "none where the noise is not known")
        for batch in self.batches:
            whole("batches", batch, 1)

    def __repr__(self) -> str:
        return f"LiveSpeed(rows={len(self.rows)}, batch_now={self.batch_now}, noise={self.noise})"

    # ---------------------------------------------------------------------- as a speed

    @property
    def ends(self) -> tuple[float, ...]:  # type: ignore[override] # read alike: of most speeds it is one constant
        """Ends of its phases, in units of work."""
        return tuple(end for end, _ in self.phases)

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Work per second at the best batch."""
        phase = self.curve(None).phase(done) if self.phases else 0
        return float(self._rates(gpu, spread, phase)[1].max(initial=0.0))

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Time from `done` to `goal`, at the best batch of each phase."""
        return self.at_batch(None).seconds(gpu, spread, done, goal)

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """Progress after so long, alike."""
        return self.at_batch(None).work(gpu, spread, done, seconds)

    def bound_to(self, shape: Shape) -> Speed:
        """At the batch of this shape, or the one that it has."""
        if shape.grid is not None and shape.grid.parts > 1:
            return Standstill()
        return self.at_batch(shape.batch or self.batch_now)

    def at_batch(self, batch: int | None) -> Speed:
        """At one batch, in the first phase; None = the best."""
        return self.curve(batch) if self.phases else _AtBatch(self, batch)

    def curve(self, batch: int | None) -> Phased:
        """The same. Precondition: phases."""
        if batch not in self._curves:
            self._curves[batch] = Phased(ends=self.ends, rates=lambda gpu, spread: self._by_phase(gpu, spread, batch))
        return self._curves[batch]

    def ways(self, gpus: int) -> Sequence[tuple[Grid | None, int | None]]:
        """Batches in which it can train on so many GPUs; the one that it has where nothing speaks for another."""
        if self.noise is None:
            return ((None, None),)
        return tuple((None, batch) for batch in self.batches if batch >= gpus)

    def rate_at(self, gpu: str, spread: Spread, batch: int) -> float:
        """Work per second at this batch, of the range or not, in the first phase."""
        batches, rate_C = self._rates(gpu, spread, 0)
        if batch in batches:
            return float(rate_C[batches.index(batch)])
        return float(self._at(gpu, spread, (batch,), 0)[0])

    def best_batch(self, gpu: str, spread: Spread, had: int | None) -> int | None:
        """The batch with the most progress, or the one that it `had` (None = has now) if that is nearly as good.

        None where no batch is better than the one that it has, or nothing is known.
        """
        now = had or self.batch_now
        batches, rate_C = self._rates(gpu, spread, 0)
        if self.noise is None or not rate_C.max(initial=0.0) > 0.0:
            return had
        if self.rate_at(gpu, spread, now) >= KEPT * float(rate_C.max()):
            return had
        return batches[int(rate_C.argmax())]

    # ---------------------------------------------------------------------- how sure it is

    def doubt(self, gpu: str, spread: Spread) -> float:
        """The standard error of the rate, as a part of it."""
        gpus = sum(spread)
        if self.source(gpu, spread) is Source.MEASURED:
            return MEASURED_DOUBT
        rows = self._rows_of(gpu)
        local_C, _ = self._split(np.array([float(max(self.batch_now, gpus))]), gpus)
        error = float(fitted_step(rows).error(spread, local_C)[0])
        strange = PREDICTED_ERROR if all(row.source is Source.PREDICTED for row in rows) else 0.0
        return min(MOST_DOUBT, math.hypot(MEASURED_DOUBT, error, strange))

    def doubts(self, gpu: str, spread: Spread, batches: Sequence[int | None]) -> Floats:
        """The same at each of these batches: what was measured at one says less of another; None is that of now."""
        gpus, nodes = sum(spread), sum(1 for used in spread if used > 0)
        batch_C = np.array([float(max(batch or self.batch_now, gpus)) for batch in batches])
        known_C = np.array([batch in (None, self.batch_now) for batch in batches])
        share_C = batch_C / max(1, gpus)
        for row in self.rows:
            if row.source is Source.MEASURED and (row.gpu, row.gpus, row.nodes) == (gpu, gpus, nodes):
                known_C |= np.abs(row.samples * row.pieces - share_C) <= row.pieces
        here = self.doubt(gpu, spread)
        if known_C.all() or gpus < 1:
            return np.full(len(batches), here)
        local_C, _ = self._split(batch_C, gpus)
        error_C = fitted_step(self._rows_of(gpu)).error(spread, local_C)
        return np.where(known_C, here, np.minimum(MOST_DOUBT, np.hypot(here, error_C)))

    def source(self, gpu: str, spread: Spread) -> Source:
        """Whence its rate there is known."""
        gpus, nodes = sum(spread), sum(1 for used in spread if used > 0)
        there = {row.source for row in self.rows if (row.gpu, row.gpus, row.nodes) == (gpu, gpus, nodes)}
        return next((source for source in Source if source in there), Source.PREDICTED)

    # ---------------------------------------------------------------------- rates

    def _by_phase(self, gpu: str, spread: Spread, batch: int | None) -> list[float]:
        best = [float(self._rates(gpu, spread, phase)[1].max(initial=0.0)) for phase in range(len(self.phases))]
        return best if batch is None else [self.rate_at(gpu, spread, batch), *best[1:]]

    def _rates(self, gpu: str, spread: Spread, phase: int) -> tuple[tuple[int, ...], Floats]:
        """The batches to choose from there, and the rate at each."""
        found = self._found.get((gpu, spread, phase))
        if found is None:
            batches = (self.batch_now,) if self.noise is None else self.batches
            found = self._found[gpu, spread, phase] = (batches, self._at(gpu, spread, batches, phase))
        return found

    def _at(self, gpu: str, spread: Spread, batches: tuple[int, ...], phase: int) -> Floats:
        gpus = sum(spread)
        if gpus < 1 or (self.sizes and gpus not in self.sizes) or (self.kinds and gpu not in self.kinds):
            return np.zeros(len(batches))
        batch_C = np.array(batches, dtype=np.float64)
        rows = self._rows_of(gpu)
        step_C = self._step_s(fitted_step(rows), rows, spread, batch_C)
        worth_C = np.ones(len(batches))
        noise = self.phases[phase][1] if self.phases else self.noise
        if noise is not None:
            now = efficiency(noise, self.initial, float(self.batch_now))
            worth_C = np.asarray(efficiency(noise, self.initial, batch_C)) / now
        most = self.batch_now if self.noise is None else self.batches[-1]
        fits_C = (batch_C >= gpus) | (most < gpus)  # where no batch has a sample for each, some train without
        return np.where(fits_C, batch_C / step_C * worth_C / self.unit, 0.0)

    def _step_s(self, fit: FittedStep, rows: tuple[StepRow, ...], spread: Spread, batch_C: Floats) -> Floats:
        """Seconds from update to update: by the curve, or as it was measured where the curve is off."""
        gpus, nodes = sum(spread), sum(1 for used in spread if used > 0)
        local_C, pieces_C = self._split(batch_C, gpus)
        step_C = iteration_s(fit, spread, local_C, pieces_C - 1.0)
        for row in rows:
            if row.source is not Source.MEASURED or (row.gpus, row.nodes) != (gpus, nodes):
                continue
            same_C = (local_C == row.samples) & (pieces_C == row.pieces)
            off_C = np.abs(np.log(step_C / row.step_s)) > MISFIT
            step_C = np.where(same_C & off_C, row.step_s, step_C)
        return step_C

    def _split(self, batch_C: Floats, gpus: int) -> tuple[Floats, Floats]:
        """Samples at a time on a GPU, and how many times, as the session cuts its share."""
        share_C = np.ceil(batch_C / gpus)
        pieces_C = np.ceil(share_C / self.most_samples) if self.most_samples else np.ones(len(batch_C))
        return np.ceil(share_C / pieces_C), pieces_C

    def _rows_of(self, gpu: str) -> tuple[StepRow, ...]:
        """Rows of this kind; for a kind without any they are reckoned from those of the best known one."""
        own = tuple(row for row in self.rows if row.gpu == gpu)
        if own:
            return own
        kinds = [row.gpu for row in self.rows]
        known = max(sorted(set(kinds)), key=kinds.count)
        ratio = self.ratio(known, gpu)
        return tuple(predicted(row, gpu, ratio) for row in self.rows if row.gpu == known)


@dataclass(frozen=True, slots=True)
class _AtBatch(ConstantRate):
    """At one batch, or the best, where there are no phases."""

    speed: LiveSpeed
    batch: int | None

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Work per second."""
        return self.speed.rate(gpu, spread, done) if self.batch is None else self.speed.rate_at(gpu, spread, self.batch)
