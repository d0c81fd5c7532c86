"""A live job that is cut into stages, as a plan sees it: how fast it is in every grid, and what each change costs it.

Of a step's A atoms each of D copies takes A / D. A pipeline of P parts works on them in A / D + P - 1 turns, each a
P-th of what an atom takes as a whole. So D x P workers do D P / (1 + D (P - 1) / A) times the work of one: the rest is
the time in which parts wait for one another. As soon as workers have timed every unit, a turn is what the slowest part
takes. Grids that were tried have the speed that was measured; all others lie on this curve, which goes through the mean
of those. Before anything is measured it begins at the guess for one worker.

Changes cost what `LinearCosts` says. At first its constants are those measured on a small model over gloo; from the
first change on they are scaled by those of the job; after five of several kinds they are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import median

from sublet.domain.seats import borders
from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.migration import BYTES_PER_PARAM, Grid, Layers, LinearCosts, Pause, calibrated

GUESSED_ATOMS = 32  # in a step, until a script has said how many samples it takes at a time
GUESSED_BLOCKS = (BYTES_PER_PARAM * 10_000_000,) * 12  # until a session has opened
LEAST_PAUSE_S = 1e-3  # no change takes no time: what a worker says below it is a clock's doing
LEAST_PAUSES = 5  # of several kinds: as many as there are constants
FIRST_COSTS = {"join_s": 0.1, "process_s": 0.1, "member_s": 0.025, "layer_s": 0.0, "bytes_per_s": 331e6}


def pipeline_gain(copies: int, parts: int, atoms: float) -> float:
    """How much faster than one worker a grid is.

    >>> pipeline_gain(1, 4, 12), pipeline_gain(3, 1, 12)
    (3.2, 3.0)
    """
    return copies * parts * atoms / (atoms + copies * (parts - 1))


def unit_gain(copies: int, parts: int, atoms: float, units: Sequence[float]) -> float:
    """The same by what a micro-batch takes before the blocks, in each of them, and after them.

    >>> unit_gain(1, 2, 3, (0.0, 1.0, 1.0, 0.0)), unit_gain(1, 2, 3, (0.0, 1.0, 1.0, 2.0))
    (1.5, 1.0)
    """
    at = borders(len(units) - 2, parts)
    taken = [sum(units[1 + low : 1 + high]) for low, high in pairwise(at)]
    taken[0] += units[0]
    taken[-1] += units[-1]
    return atoms * sum(units) / (max(taken) * (atoms / copies + parts - 1))


class EvenLayers(Layers):
    """Cut as workers cut them."""

    __slots__ = ()

    def ends(self, deep: int) -> list[int]:
        """The borders of stages."""
        return list(borders(len(self.params), deep))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGrids:
    """The knowledge of one job; equal knowledge makes the same profile. Seconds are the plan's."""

    most_gpus: int
    depths: tuple[int, ...]  # that its owner, and its model, allow
    guess: float  # rate of one worker
    measured: tuple[tuple[Grid, float], ...] = ()
    atoms: float = GUESSED_ATOMS
    blocks: tuple[int, ...] = ()  # bytes of the state of each; () = unknown
    units: tuple[float, ...] = ()  # s of a micro-batch: before the blocks, in each, after them; () = not known yet
    pauses: tuple[Pause, ...] = ()  # as they were, on the wall
    speedup: float = 1.0  # seconds of the plan in one on the wall
    sizes: tuple[int, ...] = ()  # numbers of workers that are allowed; () = all

    def profile(self) -> SpotJob | None:
        """For policies; None where no grid can be."""
        return _profile(self)

    def grids(self) -> list[Grid]:
        """All that may be."""
        return [
            (copies, parts)
            for parts in self.depths
            for copies in range(1, self.most_gpus // parts + 1)
            if not self.sizes or copies * parts in self.sizes
        ]

    def rates(self) -> Mapping[Grid, float]:
        """Work a second."""
        known = dict(self.measured)
        gain = {grid: self._gain(*grid) for grid in {*self.grids(), *known}}
        one = sum(rate / gain[grid] for grid, rate in known.items()) / len(known) if known else self.guess
        return {grid: known.get(grid, one * gain[grid]) for grid in self.grids()}

    def _gain(self, copies: int, parts: int) -> float:
        if parts <= len(self.units) - 2:
            return unit_gain(copies, parts, self.atoms, self.units)
        return pipeline_gain(copies, parts, self.atoms)

    def costs(self) -> LinearCosts:
        """In seconds of the plan."""
        sizes = self.blocks if len(self.blocks) >= max(2, *self.depths) else GUESSED_BLOCKS
        layers = EvenLayers(tuple(each / BYTES_PER_PARAM for each in sizes))
        kinds = {(pause.grow, pause.regrouped) for pause in self.pauses}
        if len(self.pauses) >= LEAST_PAUSES and len(kinds) > 1 and len({pause.params for pause in self.pauses}) > 1:
            costs = calibrated(layers, self.pauses)
        else:
            costs = LinearCosts(layers=layers, **FIRST_COSTS)
            costs = _slower(costs, median(_as_planned(costs, each) for each in self.pauses) if self.pauses else 1.0)
        return _slower(costs, self.speedup)


def _as_planned(costs: LinearCosts, pause: Pause) -> float:
    """How many times as long as that it took."""
    grid = pause.wide, pause.deep
    formed_s = costs.regroup_s(*grid) if pause.regrouped else costs.restart_s(*grid, grow=pause.grow)
    return max(pause.seconds, LEAST_PAUSE_S) / (formed_s + costs.transfer_s(pause.params))


def _slower(costs: LinearCosts, times: float) -> LinearCosts:
    seconds = {name: getattr(costs, name) * times for name in ("join_s", "process_s", "member_s", "layer_s")}
    paces = {name: getattr(costs, name) / times for name in ("bytes_per_s", "storage_bytes_per_s")}
    return replace(costs, **seconds, **paces)


@lru_cache(maxsize=256)
def _profile(known: LiveGrids) -> SpotJob | None:
    return spot_job("live", known.rates(), known.costs()) if known.grids() else None


def depths_of(stages: int, most_gpus: int, blocks: Collection[int], most: int, least: int = 1) -> tuple[int, ...]:
    """Those that may be: the one that was asked for, or (0) all that have a worker and a block for each part, and fit.

    If `least`, the fewest that fit, is more than it may have workers, the deepest is all that can be tried.
    """
    if stages:
        return (stages,) if stages <= most_gpus else ()
    deepest = min(most, most_gpus, len(blocks) or most)
    return tuple(range(min(least, deepest), deepest + 1))
