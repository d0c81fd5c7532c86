"""The cost of changing a pipelined job: how long training pauses when instances go, come, or change places.

A job runs as `wide` pipelines of `deep` stages. Three kinds of change keep its state alive in the instances that stay:

- within stages: every stage still has enough replicas, and only the communicators are made anew;
- between stages: instances change stage and receive its state; a stage without any replica is restored;
- of depth: layers are cut anew, and every stage receives what it lacks.

The fourth goes through storage: checkpoint, stop, start, restore.

`PublishedCosts` (migration_parcae.py) has the constants that Parcae measured, for comparison with its results.
`LinearCosts` has five constants that anyone can measure: `calibrated` fits them to pauses seen. Tables of measured
speed by configuration have outliers around which a planner would plan; `smoothed` finds and replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats
from sublet.solve.expectation import ExpectedMoves

Grid = tuple[int, int]  # pipelines, stages
Rates = Mapping[Grid, float]  # samples per second

BYTES_PER_PARAM = 12  # Adam in single precision: the weight and two moments


@dataclass(frozen=True, slots=True)
class Layers:
    """The parameters of each layer, in order, and how they are cut into stages."""

    params: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.params) < 2 or min(self.params) < 0:  # noqa: PLR2004 - one for the input, one for the output
            raise InvalidValue("params", self.params, "two or more numbers of at least 0")

    def ends(self, deep: int) -> list[int]:
        """The borders of stages: even, one more for the first, and one each for others from the second last on.

        >>> Layers((1.0,) * 9).ends(3)  # 3, 2 and 2, and two are left over
        [0, 4, 7, 9]
        """
        whole("deep", deep, 1)
        chunk, over = divmod(len(self.params) - 1, deep)
        sizes = [chunk + 1] + [chunk] * (deep - 1)
        for at in range(over):
            sizes[-at - 2] += 1
        return [0, *np.cumsum(sizes).tolist()]

    def stages(self, deep: int) -> list[float]:
        """Parameters of each stage."""
        ends = self.ends(deep)
        return [sum(self.params[start:end]) for start, end in pairwise(ends)]


class MigrationCosts(Protocol):
    """Seconds without training, by kind of change and configuration."""

    @property
    def layers(self) -> Layers:
        """The layers that are cut into stages."""
        ...

    def transfer_s(self, params: float) -> float:
        """Sending the state of so many parameters from one instance to another."""
        ...

    def regroup_s(self, wide: int, deep: int) -> float:
        """A change within stages."""
        ...

    def restart_s(self, wide: int, deep: int, *, grow: bool) -> float:
        """A change between stages or of depth, without the transfers; `grow` if it takes instances in."""
        ...

    def ready_s(self, wide: int, deep: int, *, grow: bool) -> float:
        """The part of `restart_s` that can be done while training goes on, if there is notice."""
        ...

    def checkpoint_s(self, wide: int, deep: int, *, grow: bool, saved: bool) -> float:
        """A change through storage; `saved` if there is something to save and load."""
        ...


# ---------------------------------------------------------------------- as measured by a user


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCosts:
    """Five constants; `calibrated` finds them. The state is so many bytes a parameter."""

    layers: Layers
    join_s: float  # for everyone to meet when instances join
    process_s: float  # of any change
    member_s: float  # for each instance in the new grid: its communicators
    layer_s: float  # for each layer of the largest stage: building it
    bytes_per_s: float
    bytes_per_param: float = BYTES_PER_PARAM
    storage_bytes_per_s: float = 1e9  # one thread of torch.save writes about so much

    def __post_init__(self) -> None:
        for name in ("join_s", "process_s", "member_s", "layer_s"):
            at_least(name, getattr(self, name), 0.0)
        for name in ("bytes_per_s", "bytes_per_param", "storage_bytes_per_s"):
            positive(name, getattr(self, name))

    def transfer_s(self, params: float) -> float:
        """Bytes over bandwidth."""
        return params * self.bytes_per_param / self.bytes_per_s

    def regroup_s(self, wide: int, deep: int) -> float:
        """Processes stay, communicators change."""
        return self.process_s + self.member_s * wide * deep

    def restart_s(self, wide: int, deep: int, *, grow: bool) -> float:
        """Meeting, regrouping and building."""
        return self.regroup_s(wide, deep) + self.ready_s(wide, deep, grow=grow)

    def ready_s(self, wide: int, deep: int, *, grow: bool) -> float:  # noqa: ARG002 - every pipeline builds at once
        """Meeting and building."""
        ends = self.layers.ends(deep)
        most = max(end - start for start, end in pairwise(ends))
        return (self.join_s if grow else 0.0) + self.layer_s * most

    def checkpoint_s(self, wide: int, deep: int, *, grow: bool, saved: bool) -> float:
        """A restart, and the largest stage to storage and back: stages write side by side."""
        largest = max(self.layers.stages(deep)) * self.bytes_per_param
        return self.restart_s(wide, deep, grow=grow) + (2 if saved else 1) * largest / self.storage_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One change that was timed: to which grid, whether instances joined, and what the longest transfer sent."""

    wide: int
    deep: int
    grow: bool
    params: float  # sent to the instance that waited longest; 0 for a change within stages
    seconds: float
    regrouped: bool = False  # a change within stages: nothing was built


def calibrated(layers: Layers, pauses: Sequence[Pause]) -> LinearCosts:
    """The constants, none below 0, that come closest to the pauses seen. Cost: least squares with five unknowns.

    Precondition: at least five pauses, among them some with and without joining, and of several sizes.

    >>> true = LinearCosts(layers=Layers((1e8,) * 9), join_s=6, process_s=1, member_s=0.1, layer_s=0.5, bytes_per_s=1e9)
    >>> seen = [
    ...     Pause(wide=w, deep=d, grow=g, params=1e8, seconds=true.restart_s(w, d, grow=g) + true.transfer_s(1e8))
    ...     for w, d, g in [(1, 2, True), (2, 2, False), (1, 4, True), (2, 4, False), (4, 2, True)]
    ... ] + [Pause(wide=2, deep=4, grow=False, params=0.0, seconds=true.regroup_s(2, 4), regrouped=True)]
    >>> round(calibrated(true.layers, seen).join_s, 6)
    6.0
    """
    from scipy.optimize import nnls  # slow to import, and seldom needed

    unknowns = 5
    if len(pauses) < unknowns:
        raise InvalidValue("pauses", len(pauses), f"at least {unknowns} timed changes")
    unit = LinearCosts(layers=layers, join_s=0, process_s=0, member_s=0, layer_s=1, bytes_per_s=1)
    rows = [
        (
            float(pause.grow),
            1.0,
            float(pause.wide * pause.deep),
            0.0 if pause.regrouped else unit.ready_s(pause.wide, pause.deep, grow=False),
            pause.params * BYTES_PER_PARAM / 1e9,
        )
        for pause in pauses
    ]
    found, _ = nnls(np.array(rows), np.array([pause.seconds for pause in pauses]))
    join_s, process_s, member_s, layer_s, s_per_gb = found.tolist()
    return LinearCosts(
        layers=layers,
        join_s=join_s,
        process_s=process_s,
        member_s=member_s,
        layer_s=layer_s,
        bytes_per_s=1e9 / s_per_gb if s_per_gb > 0 else 1e18,  # no transfer was ever noticed
    )


# ---------------------------------------------------------------------- for the solvers


def moves_from_costs(costs: MigrationCosts, grids: Sequence[Grid]) -> ExpectedMoves:
    """Arrays by configuration, in the order given; (0, 0) is suspended."""
    depths = sorted({deep for _, deep in grids if deep})
    row = {deep: at for at, deep in enumerate(depths)}
    groups = [_groups(costs, deep) for deep in depths]
    donors = [[_donors(costs, old, new) for new in depths] for old in depths]
    width = max(len(group) for group in groups)
    most = max(len(pair) for pairs in donors for pair in pairs)
    seconds_QG, many_QG = np.zeros((len(depths), width)), np.zeros((len(depths), width), dtype=np.intp)
    donor_s = np.zeros((len(depths), len(depths), most))
    donor_used = np.zeros((len(depths), len(depths), most), dtype=np.intp)
    for at, group in enumerate(groups):
        seconds_QG[at, : len(group)] = [seconds for seconds, _ in group]
        many_QG[at, : len(group)] = [many for _, many in group]
    for old, pairs in enumerate(donors):
        for new, pair in enumerate(pairs):
            donor_s[old, new, : len(pair)] = [seconds for seconds, _ in pair]
            donor_used[old, new, : len(pair)] = [used for _, used in pair]

    def by_grid(of: Callable[[int, int], float]) -> Floats:
        return np.array([of(wide, deep) if wide else 0.0 for wide, deep in grids])

    return ExpectedMoves(
        wide_C=np.array([wide for wide, _ in grids], dtype=np.intp),
        deep_C=np.array([deep for _, deep in grids], dtype=np.intp),
        regroup_C=by_grid(costs.regroup_s),
        grow_C=by_grid(lambda wide, deep: costs.restart_s(wide, deep, grow=True)),
        shrink_C=by_grid(lambda wide, deep: costs.restart_s(wide, deep, grow=False)),
        spread_C=by_grid(lambda wide, deep: float(seconds_QG[row[deep], 0]) if wide > 1 else 0.0),
        wake_s=costs.transfer_s(0.0),
        depth_C=np.array([row.get(deep, 0) for _, deep in grids], dtype=np.intp),
        group_s_QG=seconds_QG,
        group_n_QG=many_QG,
        donor_s_QQJ=donor_s,
        donor_used_QQJ=donor_used,
        donors_QQ=np.array([[len(pair) - 1 for pair in pairs] for pairs in donors], dtype=np.intp),
    )


def _groups(costs: MigrationCosts, deep: int) -> list[tuple[float, int]]:
    """Stages that take equally long to send, the longest first, and how many they are."""
    seconds = [costs.transfer_s(params) for params in costs.layers.stages(deep)]
    return [(each, seconds.count(each)) for each in sorted(set(seconds), reverse=True)]


def _donors(costs: MigrationCosts, old: int, new: int) -> list[tuple[float, int]]:
    """Donors for the last new stage: seconds for the rest, and replicas that others take first. The last is none.

    Each new stage, from the first on, takes the replica of an old stage that shares most with it.
    """
    params, was, now = costs.layers.params, costs.layers.ends(old), costs.layers.ends(new)

    def shared(stage: int, donor: int) -> float:
        return sum(params[max(now[stage], was[donor]) : min(now[stage + 1], was[donor + 1])])

    taken = [max(range(old), key=partial(shared, stage)) for stage in range(new - 1)]
    whole_stage = sum(params[now[new - 1] :])
    able = sorted((-shared(new - 1, donor), donor) for donor in range(old) if shared(new - 1, donor) > 0)
    rows = [(costs.transfer_s(whole_stage + lacks), taken.count(donor)) for lacks, donor in able]
    return [*rows, (costs.transfer_s(whole_stage), 0)]


# ---------------------------------------------------------------------- tables of measured speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A measurement that stands out, and what stands in its place."""

    grid: Grid
    measured: float
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """Speeds that never fall with more pipelines, and what was replaced by more than the tolerance."""

    rates: Rates
    outliers: tuple[Outlier, ...]


def smoothed(rates: Rates, *, tolerance: float = 0.05) -> Smoothed:
    """For each depth keep the longest run of speeds that rises with pipelines; others go on the line between.

    Cost: O(n^2) for n worker counts of a depth.

    >>> found = smoothed({(1, 2): 10.0, (2, 2): 20.0, (3, 2): 12.0, (4, 2): 36.0})
    >>> found.rates[3, 2], [outlier.grid for outlier in found.outliers]
    (28.0, [(3, 2)])
    """
    positive("tolerance", tolerance)
    better: dict[Grid, float] = {}
    for deep in sorted({deep for _, deep in rates}):
        wide = sorted(width for width, depth in rates if depth == deep)
        speed = [rates[width, deep] for width in wide]
        kept = _rising(speed)
        line = np.interp(wide, [wide[at] for at in kept], [speed[at] for at in kept])
        better |= {(width, deep): float(value) for width, value in zip(wide, line, strict=True)}
    apart = [grid for grid in rates if abs(rates[grid] - better[grid]) > tolerance * better[grid]]
    return Smoothed(
        rates={grid: better[grid] for grid in rates},
        outliers=tuple(Outlier(grid=grid, measured=rates[grid], expected=better[grid]) for grid in sorted(apart)),
    )


def _rising(values: Sequence[float]) -> list[int]:
    """Positions of a longest run that never falls; of equally long ones the one with the largest sum."""
    best: list[tuple[int, float, int]] = []  # length, sum, the position before
    for at, value in enumerate(values):
        before = [(best[j][0], best[j][1], j) for j in range(at) if values[j] <= value]
        length, total, last = max(before, default=(0, 0.0, -1))
        best.append((length + 1, total + value, last))
    at = max(range(len(values)), key=lambda at: best[at][:2])
    run = []
    while at >= 0:
        run.append(at)
        at = best[at][2]
    return run[::-1]
