"""Fits speed models to measured step times, and says how well they fit.

All fits minimise squared errors of the logarithm (or of the relative size) of the step time, so that fast and slow
rows count alike; all are bounded and deterministic. A report comes with each: read its warnings before the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from sublet.domain.quantity import at_least, named, positive, whole
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue
from sublet.perf.pollux.fit import fitted_pollux
from sublet.perf.speedup import Amdahl, ConstantRate, PowerLaw
from sublet.perf.steptime import PolluxStep, RingStep, StepTime
from sublet.perf.tables import ProfileTable
from sublet.solve.arrays import Floats

Model = TypeVar("Model")
WORST = 3  # rows named in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement: a step of `local_batch` samples per GPU took `step_time_s`, of which `sync_time_s` exchange."""

    gpu: str
    spread: Spread
    local_batch: int
    step_time_s: float
    sync_time_s: float | None = None

    def __post_init__(self) -> None:
        named("gpu", self.gpu)
        whole("GPUs in spread", sum(self.spread), 1)
        whole("local_batch", self.local_batch, 1)
        positive("step_time_s", self.step_time_s)
        if self.sync_time_s is not None:
            at_least("sync_time_s", self.sync_time_s, 0.0)
            if self.sync_time_s >= self.step_time_s:
                raise InvalidValue("sync_time_s", self.sync_time_s, f"below the step time {self.step_time_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """Relative errors of the predicted step time over the rows fitted to."""

    rows: int
    median_error: float
    p90_error: float
    max_error: float
    rms_log_error: float
    worst: tuple[tuple[Row, float], ...]  # with predicted / measured - 1
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit(Generic[Model]):
    """A fitted model and how well it fits."""

    model: Model
    report: FitReport


def even_spread(nodes: int, gpus: int) -> Spread:
    """`gpus` over `nodes` as evenly as can be: `even_spread(3, 8) == (3, 3, 2)`."""
    whole("nodes", nodes, 1)
    whole("gpus", gpus, nodes)
    each, more = divmod(gpus, nodes)
    return (each + 1,) * more + (each,) * (nodes - more)


def rows_from_steps(table: ProfileTable, gpu: str) -> list[Row]:
    """Rows of a step-time table of Pollux or Sia, already cut to one model and one GPU kind."""
    nodes, gpus, local = (table.columns[name].tolist() for name in ("nodes", "gpus", "local_bsz"))
    times = zip(table.floats("step_time_s").tolist(), table.floats("sync_time_s").tolist(), strict=True)
    placements = table.texts("placement")
    return [
        Row(
            gpu=gpu,
            spread=tuple(map(int, placements[at])) if placements[at] else even_spread(nodes[at], gpus[at]),
            local_batch=local[at],
            step_time_s=step_s,
            sync_time_s=sync_s,
        )
        for at, (step_s, sync_s) in enumerate(times)
    ]


def fit_amdahl(rows: Sequence[Row]) -> Fit[Amdahl]:
    """Amdahl's law in samples per second: one parallel part for all kinds, one speed of a single GPU for each.

    The part is searched over a grid that is fine near 1, then by golden section around the best point.
    """
    gpus, log_rate, kind, kinds = _log_rates(rows)

    def loss(serial: float) -> float:
        residual = log_rate + np.log(serial + (1.0 - serial) / gpus)
        return float(np.sum((residual - _kind_means(residual, kind)[kind]) ** 2))

    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 121)])
    best = int(np.argmin([loss(float(serial)) for serial in grid]))
    serial = _golden(loss, float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    one = np.exp(_kind_means(log_rate + np.log(serial + (1.0 - serial) / gpus), kind))
    model = Amdahl(parallel=1.0 - serial, kinds=dict(zip(kinds, one.tolist(), strict=True)))
    return Fit(model, _report(rows, _steps_at_rate(model, rows), _curve_warnings(rows, gpus)))


def fit_power_law(rows: Sequence[Row]) -> Fit[PowerLaw]:
    """A power of the number of GPUs in samples per second: a straight line in logarithms, its slope cut to 0..1."""
    gpus, log_rate, kind, kinds = _log_rates(rows)
    log_gpus = np.log(gpus)
    x = log_gpus - _kind_means(log_gpus, kind)[kind]
    y = log_rate - _kind_means(log_rate, kind)[kind]
    exponent = float(np.clip(x @ y / (x @ x), 0.0, 1.0)) if x @ x > 0 else 1.0
    one = np.exp(_kind_means(log_rate - exponent * log_gpus, kind))
    model = PowerLaw(exponent=exponent, kinds=dict(zip(kinds, one.tolist(), strict=True)))
    return Fit(model, _report(rows, _steps_at_rate(model, rows), _curve_warnings(rows, gpus)))


def fit_ring(rows: Sequence[Row], *, gradient_bytes: float) -> Fit[RingStep]:
    """Compute line, bandwidths and latencies by non-negative least squares on relative errors; one GPU kind.

    The step time is linear in all six unknowns, so this is exact. A link that was not measured costs nothing.
    """
    from scipy.optimize import nnls  # slow to import

    positive("gradient_bytes", gradient_bytes)
    gpus, nodes, local, step_s, compute_s = _one_kind(rows)
    ring = 2.0 * (gpus - 1.0)
    inter = (nodes > 1).astype(float)
    design = np.column_stack(
        [np.ones(len(rows)), local, (1 - inter) * ring / gpus, (1 - inter) * ring, inter * ring / gpus, inter * ring]
    )
    seen = np.isfinite(compute_s)  # rows that say how long the compute part alone takes
    alone = design[seen] * np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    stacked = np.vstack([design / step_s[:, None], alone / compute_s[seen][:, None]])
    scale = np.maximum(np.abs(stacked).max(axis=0), 1e-300)  # columns of one size keep the solver's tolerance honest
    solution, _ = nnls(stacked / scale, np.ones(len(stacked)))
    alpha_s, beta_s, intra_s, intra_hop_s, inter_s, inter_hop_s = (solution / scale).tolist()
    model = RingStep(
        alpha_s=alpha_s,
        beta_s=beta_s,
        gradient_bytes=gradient_bytes,
        intra_bytes_per_s=gradient_bytes / intra_s if intra_s > 0 else np.inf,
        inter_bytes_per_s=gradient_bytes / inter_s if inter_s > 0 else np.inf,
        intra_latency_s=intra_hop_s,
        inter_latency_s=inter_hop_s,
    )
    return Fit(model, _report(rows, _steps_of(model, rows), _step_warnings(gpus, nodes, local, unknowns=6)))


def fit_pollux(rows: Sequence[Row]) -> Fit[PolluxStep]:
    """Pollux's seven parameters by bounded least squares on logarithms; one GPU kind. See `pollux_fit.py`."""
    gpus, nodes, local, step_s, compute_s = _one_kind(rows)
    model = fitted_pollux(gpus, nodes, local, step_s, compute_s)
    return Fit(model, _report(rows, _steps_of(model, rows), _step_warnings(gpus, nodes, local, unknowns=7)))


def _one_kind(rows: Sequence[Row]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """GPUs, nodes, local batch, step time and compute time (NaN = not known) of each row."""
    if not rows:
        raise InvalidValue("rows", 0, "at least one measurement")
    kinds = sorted({row.gpu for row in rows})
    if len(kinds) > 1:
        raise InvalidValue("GPU kinds", kinds, "one kind: fit a step-time model to each kind by itself")
    gpus = np.array([float(sum(row.spread)) for row in rows])
    nodes = np.array([float(sum(used > 0 for used in row.spread)) for row in rows])
    step_s = np.array([row.step_time_s for row in rows])
    sync_s = np.array([np.nan if row.sync_time_s is None else row.sync_time_s for row in rows])
    sync_s[(gpus == 1) & np.isnan(sync_s)] = 0.0  # one GPU exchanges with no other
    return gpus, nodes, np.array([float(row.local_batch) for row in rows]), step_s, step_s - sync_s


def _log_rates(rows: Sequence[Row]) -> tuple[Floats, Floats, np.ndarray[tuple[int], np.dtype[np.intp]], list[str]]:
    """GPUs, logarithm of samples per second and index of the kind of each row; and the kinds."""
    if not rows:
        raise InvalidValue("rows", 0, "at least one measurement")
    kinds = sorted({row.gpu for row in rows})
    gpus = np.array([float(sum(row.spread)) for row in rows])
    samples = gpus * np.array([float(row.local_batch) for row in rows])
    log_rate = np.log(samples / np.array([row.step_time_s for row in rows]))
    return gpus, log_rate, np.array([kinds.index(row.gpu) for row in rows], dtype=np.intp), kinds


def _kind_means(values: Floats, kind: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
    return np.asarray(np.bincount(kind, values) / np.bincount(kind))


def _golden(loss: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a function with one valley between `low` and `high`."""
    ratio = (np.sqrt(5.0) - 1.0) / 2.0
    for _ in range(80):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return float(low + high) / 2.0


def _steps_of(model: StepTime, rows: Sequence[Row]) -> Floats:
    return np.array([model.times(row.spread, np.array([float(row.local_batch)]))[0][0] for row in rows])


def _steps_at_rate(model: ConstantRate, rows: Sequence[Row]) -> Floats:
    return np.array(
        [sum(row.spread) * row.local_batch / model.rate(row.gpu, row.spread, 0.0) for row in rows], dtype=np.float64
    )


def _report(rows: Sequence[Row], predicted_s: Floats, warnings: Sequence[str]) -> FitReport:
    ratio = predicted_s / np.array([row.step_time_s for row in rows])
    error = np.abs(ratio - 1.0)
    worst = np.argsort(-error, kind="stable")[:WORST].tolist()
    return FitReport(
        rows=len(rows),
        median_error=float(np.median(error)),
        p90_error=float(np.quantile(error, 0.9)),
        max_error=float(error.max()),
        rms_log_error=float(np.sqrt(np.mean(np.log(ratio) ** 2))),
        worst=tuple((rows[at], float(ratio[at] - 1.0)) for at in worst),
        warnings=tuple(warnings),
    )


def _curve_warnings(rows: Sequence[Row], gpus: Floats) -> list[str]:
    found = []
    local = {row.local_batch for row in rows}
    total = {row.local_batch * sum(row.spread) for row in rows}
    if len(np.unique(gpus)) < 3:  # noqa: PLR2004 - a curve through two points fits whatever they are
        found.append("fewer than three numbers of GPUs: the curve fits whatever it is")
    if len(local) > 1 and len(total) > 1:
        found.append("rows differ in local and in global batch: the fit averages over batch sizes")
    return found


def _step_warnings(gpus: Floats, nodes: Floats, local: Floats, *, unknowns: int) -> list[str]:
    found = []
    if len(gpus) < unknowns:
        found.append(f"{len(gpus)} rows for {unknowns} unknowns")
    if len(np.unique(local)) == 1:
        found.append("one local batch only: fixed and per-sample time cannot be told apart")
    if not (gpus > 1).any():
        found.append("one GPU only: nothing is known of the gradient exchange")
    elif not (nodes > 1).any():
        found.append("one node only: the network between nodes is a guess")
    elif len(np.unique(gpus[nodes > 1])) == 1:
        found.append("one number of GPUs between nodes: latency and bandwidth cannot be told apart")
    return found
