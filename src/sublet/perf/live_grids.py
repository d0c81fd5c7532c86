"""A live job that is cut into stages, as a plan sees it: how fast it is in every grid, and what each change costs it.

Of a step's A atoms each of D copies takes A / D. A pipeline of P parts works on them in A / D + P - 1 turns, each a
P-th of what an atom takes as a whole, so D x P workers do D P / (1 + D (P - 1) / A) times the work of one: the rest is
the time in which parts wait for one another. Grids that were tried have the speed that was measured; all others lie on
this curve, which goes through the mean of those. Before anything is measured it begins at the guess for one worker.

Changes cost what `LinearCosts` says: at first by constants that were measured on a small model over gloo, and as soon
as the job has made five of several kinds, by its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.migration import BYTES_PER_PARAM, Grid, Layers, LinearCosts, Pause, calibrated

__all__ = ["GUESSED_ATOMS", "LiveGrids", "depths_of", "pipeline_gain"]

GUESSED_ATOMS = 32  # in a step, until a script has said how many samples it takes at a time
GUESSED_BLOCKS = (BYTES_PER_PARAM * 10_000_000,) * 12  # until a session has opened
LEAST_PAUSES = 5  # of several kinds: as many as there are constants
FIRST_COSTS = {"join_s": 0.1, "process_s": 0.1, "member_s": 0.025, "layer_s": 0.0, "bytes_per_s": 331e6}


def pipeline_gain(copies: int, parts: int, atoms: float) -> float:
    """How much faster than one worker a grid is.

    >>> pipeline_gain(1, 4, 12), pipeline_gain(3, 1, 12)
    (3.2, 3.0)
    """
    return copies * parts * atoms / (atoms + copies * (parts - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGrids:
    """What is known of one job; equal knowledge makes the same profile. Seconds are the plan's."""

    most_gpus: int
    depths: tuple[int, ...]  # that its owner, and its model, allow
    guess: float  # rate of one worker
    measured: tuple[tuple[Grid, float], ...] = ()
    atoms: float = GUESSED_ATOMS
    blocks: tuple[int, ...] = ()  # bytes of the state of each; () = nobody has said
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
        gain = {grid: pipeline_gain(*grid, self.atoms) for grid in {*self.grids(), *known}}
        one = sum(rate / gain[grid] for grid, rate in known.items()) / len(known) if known else self.guess
        return {grid: known.get(grid, one * gain[grid]) for grid in self.grids()}

    def costs(self) -> LinearCosts:
        """In seconds of the plan."""
        sizes = self.blocks if len(self.blocks) >= max(2, *self.depths) else GUESSED_BLOCKS
        layers = Layers(tuple(each / BYTES_PER_PARAM for each in sizes))
        kinds = {(pause.grow, pause.regrouped) for pause in self.pauses}
        if len(self.pauses) >= LEAST_PAUSES and len(kinds) > 1 and len({pause.params for pause in self.pauses}) > 1:
            costs = calibrated(layers, self.pauses)
        else:
            costs = LinearCosts(layers=layers, **FIRST_COSTS)
        times = {name: getattr(costs, name) * self.speedup for name in ("join_s", "process_s", "member_s", "layer_s")}
        paces = {name: getattr(costs, name) / self.speedup for name in ("bytes_per_s", "storage_bytes_per_s")}
        return replace(costs, **times, **paces)


@lru_cache(maxsize=256)
def _profile(known: LiveGrids) -> SpotJob | None:
    return spot_job("live", known.rates(), known.costs()) if known.grids() else None


def depths_of(stages: int, most_gpus: int, blocks: Collection[int], most: int) -> tuple[int, ...]:
    """Those that may be: the one that was asked for, or (0) all that have a worker and a block for each part."""
    if stages:
        return (stages,) if stages <= most_gpus else ()
    return tuple(range(1, min(most, most_gpus, len(blocks) or most) + 1))
