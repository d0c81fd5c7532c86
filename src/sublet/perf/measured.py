"""Speeds from the step-time and gradient tables of Pollux and Sia.

The tables hold six models, measured on up to 64 GPUs, and full training runs at several batch sizes. The meaning of
their columns, and the rules below, are those of the simulators they were published with: petuum/adaptdl (branch
osdi21-artifact) and siasosp23/artifacts. If those stop with an assertion, the rate here is 0.

>>> speed = measured_goodput("bert")
>>> round(speed.rate("T4", (4, 4), 0.0) / speed.rate("T4", (1,), 0.0), 1)
5.5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from sublet.domain.quantity import positive
from sublet.domain.shape import Spread
from sublet.errors import UnknownName
from sublet.perf.goodput import BatchLimits, Goodput
from sublet.perf.phased import Phased
from sublet.perf.tables import ProfileTable, read_profile
from sublet.solve.arrays import Floats

Source = Literal["pollux", "sia"]

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
MOST_NODES = 16  # the widest measurement; more nodes are taken for 16
LOCAL_LIMITS: Mapping[tuple[Source, str, str], int] = {  # limits that are not the largest measured local batch
    ("pollux", "yolov3", "T4"): 8,  # the simulator's own setting; 16 was measured
    ("sia", "deepspeech2", "RTX-2080Ti"): 57,
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MeasuredStepTime:
    """Step times of one model on one GPU kind: exact for placements that were measured, interpolated for others.

    A placement is known by its GPUs per node up to rotation. For one that was measured, times are linear between its
    local batches. For any other they are linear over a triangulation of all points (nodes, GPUs, local batch).
    Outside either the answer is infinite: cannot run.
    """

    exact: Mapping[str, tuple[Floats, Floats, Floats]]  # placement -> local batch, step time, time without exchange
    points: Floats  # rows of (nodes, GPUs, local batch)
    values: Floats  # rows of (step time, time without exchange)
    _triangulated: list[_Triangulated] = field(default_factory=list, init=False)  # at most one

    def __repr__(self) -> str:
        return f"MeasuredStepTime(placements={len(self.exact)}, points={len(self.points)})"

    def times(self, spread: Spread, local_C: Floats) -> tuple[Floats, Floats]:
        """Seconds of a step with and without its gradient exchange, for each local batch."""
        used = tuple(gpus for gpus in spread if gpus > 0)
        if not used:
            nothing_C = np.full(len(local_C), np.inf)
            return nothing_C, nothing_C
        measured = self.exact.get(_placement(used))
        if measured is not None:
            local, step, compute = measured
            return (
                np.interp(local_C, local, step, left=np.inf, right=np.inf),
                np.interp(local_C, local, compute, left=np.inf, right=np.inf),
            )
        if not self._triangulated:
            self._triangulated.append(_Triangulated(self.points, self.values))
        nodes, gpus = min(len(used), MOST_NODES), sum(used)
        both = self._triangulated[0].at([(float(nodes), float(gpus), local) for local in local_C.tolist()])
        return np.array([step for step, _ in both]), np.array([compute for _, compute in both])


class _Triangulated:
    """Linear interpolation over the Delaunay triangulation of points in space.

    Points on a grid have more than one triangulation, and the tetrahedra that qhull makes do not always meet face to
    face. There SciPy's answer depends on the tetrahedron its search starts from, which is that of the query before, and
    the first one for the first query. The published simulators ask for each point by itself; asking for the middle of
    the first tetrahedron before each point gives the same answers in a third of the time.
    """

    __slots__ = ("_anchor", "_interpolator", "_known")

    def __init__(self, points: Floats, values: Floats) -> None:
        from scipy.interpolate import LinearNDInterpolator  # takes 0.4 s, and most spreads do not need it
        from scipy.spatial import Delaunay

        mesh = Delaunay(points)
        # SciPy inverts one small matrix per tetrahedron through a threaded LAPACK: 20 ms, but seconds when the cores
        # are busy. It keeps the inverses under this name; should it ever not, it works them out itself.
        mesh.__dict__["_transform"] = _barycentric(points[mesh.simplices])
        self._interpolator = LinearNDInterpolator(mesh, values, fill_value=np.inf)
        self._anchor = points[mesh.simplices[0]].mean(axis=0)
        self._known: dict[tuple[float, float, float], tuple[float, float]] = {}

    def at(self, points: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
        """The values at some points; infinite outside the convex hull."""
        unknown = [point for point in points if point not in self._known]
        if unknown:
            where = np.empty((2 * len(unknown), 3))
            where[0::2], where[1::2] = self._anchor, unknown
            found = self._interpolator(where)[1::2].tolist()
            self._known.update((point, (step, compute)) for point, (step, compute) in zip(unknown, found, strict=True))
        return [self._known[point] for point in points]


def _barycentric(corners_SKX: Floats) -> Floats:
    """For each tetrahedron the inverse of its edge matrix, by cross products, and its last corner; NaN if it is flat.

    The coordinates are whole numbers, so that the volume of a flat one is exactly 0.
    """
    last_SX = corners_SKX[:, 3]
    edges = [corners_SKX[:, corner] - last_SX for corner in range(3)]
    normals_SKX = np.stack(
        [np.cross(edges[1], edges[2]), np.cross(edges[2], edges[0]), np.cross(edges[0], edges[1])], 1
    )
    volume_S = (edges[0] * normals_SKX[:, 0]).sum(axis=1)
    volume_S[volume_S == 0.0] = np.nan
    inverse_SKX = normals_SKX / volume_S[:, None, None]
    return np.concatenate([inverse_SKX, np.where(np.isnan(volume_S)[:, None], np.nan, last_SX)[:, None]], axis=1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StatEfficiency:
    """The worth of a sample in each epoch, from training runs at several batch sizes.

    Squared norm and variance of the gradient are linear between the two nearest batch sizes that were run. Then gain =
    (var + sqr) / (var / s + sqr) with s = B / B0 is the progress of a step in steps at B0, and gain / s the worth of a
    sample.
    """

    batches: Floats  # B batch sizes that were run, increasing
    ends: tuple[float, ...]  # E epochs: least progress over all runs at the end of each, in steps at B0
    grad_sqr: Floats  # epochs x batches
    grad_var: Floats

    def __repr__(self) -> str:
        return f"StatEfficiency(initial={self.initial}, largest={self.largest}, epochs={len(self.ends)})"

    @property
    def initial(self) -> int:
        """B0, the smallest batch that was run."""
        return int(self.batches[0])

    @property
    def largest(self) -> int:
        """The largest batch that was run."""
        return int(self.batches[-1])

    def worth(self, total_C: Floats) -> Floats:
        """Efficiency in each epoch (rows) at each global batch (columns); 0 outside the batches that were run."""
        inside_C = (total_C >= self.batches[0]) & (total_C <= self.batches[-1])
        upper_C = np.clip(np.searchsorted(self.batches, total_C), 1, len(self.batches) - 1)
        low_C, high_C = self.batches[upper_C - 1], self.batches[upper_C]
        share_C = (total_C - low_C) / (high_C - low_C)
        sqr_EC = self.grad_sqr[:, upper_C - 1] * (1.0 - share_C) + self.grad_sqr[:, upper_C] * share_C
        var_EC = self.grad_var[:, upper_C - 1] * (1.0 - share_C) + self.grad_var[:, upper_C] * share_C
        scale_C = total_C / self.batches[0]
        return np.where(inside_C, (var_EC + sqr_EC) / (var_EC + sqr_EC * scale_C), 0.0)


def measured_goodput(
    model: str, *, source: Source = "pollux", batch: int | None = None, slowdown: float = 1.0
) -> Phased:
    """The speed of one of the six models in iterations at its initial batch per second; its phases are epochs.

    `batch=None` takes the best batch in every epoch and shape; a number keeps that global batch. `slowdown` divides
    every rate (Sia's simulator has 1.2 to 1.8 there). The same arguments give the same object, so that all jobs of a
    workload share what was worked out for one.
    """
    return _speed(model, source, batch, slowdown)


def goodput_model(model: str, *, source: Source = "pollux", batch: int | None = None, slowdown: float = 1.0) -> Goodput:
    """The model behind `measured_goodput`; ask it for the batch that was chosen."""
    return _goodput(model, source, batch, slowdown)


def measured_step_time(model: str, gpu: str = "T4", *, source: Source = "pollux") -> MeasuredStepTime:
    """The step times of one model on one GPU kind."""
    return _step_time(model, gpu, source)


def stat_efficiency(model: str, *, source: Source = "pollux") -> StatEfficiency:
    """The worth of samples in the epochs of one model."""
    return _efficiency(model, source)


def total_work(model: str, *, source: Source = "pollux") -> float:
    """Iterations at the initial batch until the last epoch ends."""
    return _efficiency(model, source).ends[-1]


# A cache tells f("bert") from f("bert", source="pollux"), so what is kept is kept below the defaults.


@cache
def _speed(model: str, source: Source, batch: int | None, slowdown: float) -> Phased:
    return _goodput(model, source, batch, slowdown).speed()


@cache
def _goodput(model: str, source: Source, batch: int | None, slowdown: float) -> Goodput:
    positive("slowdown", slowdown)
    worth = _efficiency(model, source)
    step = {gpu: _step_time(model, gpu, source) for gpu in _kinds(model, source)}
    limits = {gpu: _limits(worth, times, LOCAL_LIMITS.get((source, model, gpu))) for gpu, times in step.items()}
    return Goodput(step=step, limits=limits, efficiency=worth, batch=batch, unit=worth.initial * slowdown)


@cache
def _step_time(model: str, gpu: str, source: Source) -> MeasuredStepTime:
    kinds = _kinds(model, source)
    if gpu not in kinds:
        raise UnknownName(f"GPU kind with step times of {model}", gpu, kinds)
    rows = _step_rows(model, gpu, source)
    placed = rows.rows(table="placements")
    local, step = placed.floats("local_bsz"), placed.floats("step_time_s")
    compute = step - placed.floats("sync_time_s")
    names = np.array(placed.texts("placement"))
    exact = {}
    for name in np.unique(names):
        of = np.flatnonzero(names == name)
        of = of[np.argsort(local[of], kind="stable")]
        exact[str(name)] = (local[of], step[of], compute[of])
    points, values = _cloud(placed, rows.rows(table="scalability"))
    return MeasuredStepTime(exact, points, values)


@cache
def _efficiency(model: str, source: Source) -> StatEfficiency:
    _require_known(model)
    rows = read_profile(f"{source}-stat-efficiency").rows(model=model)
    batches = np.unique(rows.floats("batch_size"))
    runs = [rows.rows(batch_size=int(batch)) for batch in batches]
    epochs = min(len(run) for run in runs)
    ends = np.min([run.floats("progress")[:epochs] for run in runs], axis=0)
    return StatEfficiency(
        batches,
        tuple(ends.tolist()),
        np.stack([run.floats("grad_sqr")[:epochs] for run in runs], axis=1),
        np.stack([run.floats("grad_var")[:epochs] for run in runs], axis=1),
    )


def _placement(used: Spread) -> str:
    """GPUs per node as digits, rotated to the smallest; a node of ten or more has no such name."""
    if max(used) > 9:  # noqa: PLR2004 - one digit per node
        return ""
    digits = "".join(map(str, used))
    return min(digits[at:] + digits[:at] for at in range(len(digits)))


def _cloud(placed: ProfileTable, scaled: ProfileTable) -> tuple[Floats, Floats]:
    """All measured points: placements averaged over those alike in (nodes, GPUs, local batch), then the wide ones.

    The order is that of the published simulator: where points lie on a grid the triangulation depends on it.
    """
    keys = np.column_stack([placed.floats(name) for name in ("nodes", "gpus", "local_bsz")])
    step, sync = placed.floats("step_time_s"), placed.floats("sync_time_s")
    points, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    count = np.bincount(group)
    mean = np.column_stack([np.bincount(group, column) / count for column in (step, sync)])
    wide = np.column_stack([scaled.floats(name) for name in ("nodes", "gpus", "local_bsz")])
    both = np.vstack([mean, np.column_stack([scaled.floats(name) for name in ("step_time_s", "sync_time_s")])])
    return np.vstack([points, wide]), np.column_stack([both[:, 0], both[:, 0] - both[:, 1]])


def _limits(worth: StatEfficiency, times: MeasuredStepTime, max_local: int | None) -> BatchLimits:
    measured = np.concatenate([local for local, _, _ in times.exact.values()])
    return BatchLimits(
        initial=worth.initial,
        largest=worth.largest,
        min_local=int(measured.min()),
        max_local=max_local or int(measured.max()),
    )


def _step_rows(model: str, gpu: str, source: Source) -> ProfileTable:
    table = read_profile(f"{source}-step-time")
    return table.rows(model=model) if source == "pollux" else table.rows(model=model, gpu=gpu)


def _kinds(model: str, source: Source) -> list[str]:
    _require_known(model)
    if source == "pollux":
        return ["T4"]
    return sorted(set(read_profile("sia-step-time").rows(model=model).texts("gpu")))


def _require_known(model: str) -> None:
    if model not in MODELS:
        raise UnknownName("measured model", model, MODELS)
