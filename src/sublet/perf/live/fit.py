"""The step time of one job on one kind of GPU, fitted to what was measured of it, with an error.

Rows of earlier runs and predicted ones are priors: rows as well, less sure, left out where the same form was measured.
Facts that no row tells are hoped for: an exchange costs nothing before two GPUs were tried, and a network is little
slower than the inside of a node. So growing is tried once, and then known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.shape import Spread
from sublet.errors import InvalidValue
from sublet.perf.live.rows import Source, StepRow
from sublet.perf.pollux.fit import PolluxFit, pollux_fit
from sublet.perf.steptime import PolluxStep
from sublet.solve.arrays import Floats

HOPE = 0.2  # error of the step time where the exchange was never seen: what two to four workers often lose by it


@dataclass(frozen=True, slots=True, eq=False)
class FittedStep:
    """A step-time model (`perf.steptime.StepTime`) that says how far off it may be."""

    _fit: PolluxFit
    other_s: float  # once a step, whatever its size
    least: float  # samples at a time: fewer take no less
    _seen: frozenset[int]  # how many nodes were tried with several GPUs: 0 = one GPU, 1 = one node, 2 = several

    @property
    def model(self) -> PolluxStep:
        """The curve alone."""
        return self._fit.model

    def times(self, spread: Spread, local_C: Floats) -> tuple[Floats, Floats]:
        """Seconds of a step with and without its gradient exchange, for each local batch."""
        full_C, compute_C = self._fit.model.times(spread, np.maximum(local_C, self.least))
        return full_C + self.other_s, compute_C

    def error(self, spread: Spread, local_C: Floats) -> Floats:
        """The standard error of the step time, as a part of it."""
        gpus, nodes = np.full(len(local_C), float(sum(spread))), np.full(len(local_C), float(_nodes(spread)))
        hope = 0.0 if _reach(sum(spread), _nodes(spread)) in self._seen else HOPE
        return np.asarray(np.hypot(self._fit.error(gpus, nodes, np.maximum(local_C, self.least)), hope))


def surest(rows: Sequence[StepRow]) -> tuple[StepRow, ...]:
    """Without those beside which there is a surer one of the same form; in an order of their own."""
    order = list(Source)
    best: dict[tuple[str, int, int, int, int], StepRow] = {}
    for row in rows:
        other = best.get(row.form)
        if other is None or order.index(row.source) < order.index(other.source):
            best[row.form] = row
    return tuple(sorted(best.values(), key=lambda row: row.form))


@lru_cache(maxsize=512)  # what is known of a job changes a few times in its life, and is asked for all the time
def fitted_step(rows: tuple[StepRow, ...]) -> FittedStep:
    """Fitted to rows of one kind of GPU. Cost: a bounded least squares of seven unknowns, some tens of milliseconds."""
    kinds = {row.gpu for row in rows}
    if len(kinds) != 1:
        raise InvalidValue("rows", sorted(kinds), "of one kind of GPU, and at least one")
    rows = surest(rows)
    gpus, nodes, local, piece_s, wait_s, other_s, error = np.array(
        [(row.gpus, row.nodes, row.samples, row.piece_s, row.wait_s, row.other_s, row.error) for row in rows],
        dtype=np.float64,
    ).T
    wait_s = np.where(gpus > 1, wait_s, 0.0)  # one GPU does not wait
    least = least_samples(local, piece_s, error)
    fit = pollux_fit(gpus, nodes, np.maximum(local, least), piece_s + wait_s, piece_s, error)
    seen = frozenset(_reach(row.gpus, row.nodes) for row in rows)
    return FittedStep(fit, float(np.average(other_s, weights=error**-2.0)), least, seen)


def _nodes(spread: Spread) -> int:
    return max(1, sum(1 for used in spread if used > 0))


def _reach(gpus: int, nodes: int) -> int:
    return 0 if gpus <= 1 else min(nodes, 2)


ON_LINE = 3  # sizes at least: two are on a line whatever they are
SURE = 9.0  # so much better, in squared errors, than a line through all: three standard errors


def least_samples(local: Floats, piece_s: Floats, error: Floats) -> float:
    """Samples below which a micro-batch takes no less; 0 where the rows do not show it. O(rows x sizes)."""
    weight = 1.0 / (piece_s * error)
    sizes = np.unique(local)
    if len(sizes) <= ON_LINE:
        return 0.0
    found = [(_misfit(local, piece_s, weight, least), least) for least in _candidates(local, piece_s, weight, sizes)]
    if not found:
        return 0.0
    best, least = min(found)
    plain = _misfit(local, piece_s, weight, 0.0)
    scatter = max(1.0, best / max(1, len(local) - 3))  # rows may be further off than they say: other things differ too
    return least if plain - best >= SURE * scatter else 0.0


def _candidates(local: Floats, piece_s: Floats, weight: Floats, sizes: Floats) -> list[float]:
    found = []
    for at in range(1, len(sizes) - ON_LINE + 1):
        low, high = float(sizes[at - 1]), float(sizes[at])
        found.append(high)
        below = local <= low
        alpha, beta = _line(local[~below], piece_s[~below], weight[~below])
        level = float(np.average(piece_s[below], weights=weight[below] ** 2))
        if beta > 0.0 and low < (level - alpha) / beta < high:
            found.append((level - alpha) / beta)
    return found


def _misfit(local: Floats, piece_s: Floats, weight: Floats, least: float) -> float:
    above = np.maximum(local, least)
    alpha, beta = _line(above, piece_s, weight)
    return float(np.sum((weight * (alpha + beta * above - piece_s)) ** 2))


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """The line alpha + beta x with the least weighted squares: both, neither below 0."""
    w = weight**2
    total, mean_x, mean_y = float(np.sum(w)), float(np.average(x, weights=w)), float(np.average(y, weights=w))
    spread = float(np.sum(w * (x - mean_x) ** 2))
    beta = float(np.sum(w * (x - mean_x) * (y - mean_y))) / spread if spread > 1e-12 * total * mean_x**2 else 0.0
    if beta <= 0.0:
        return mean_y, 0.0
    if mean_y - beta * mean_x < 0.0:
        return 0.0, float(np.sum(w * x * y) / np.sum(w * x * x))
    return mean_y - beta * mean_x, beta
