"""What one kind of job can run on, and how fast: a row per phase of its work, a column per shape."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.job import Doubted, Job
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import NO_RECLAIMS, spot_speed
from sublet.planning.terms import Rents, Sites
from sublet.planning.widths import useful_widths
from sublet.solve.arrays import Floats, Ints

__all__ = ["Menu", "menu_of"]

# C shapes, E phases, P pools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Menu:
    """All shapes that such a job can run in. Times are in hours."""

    shapes: tuple[Shape, ...]
    column: Mapping[Shape, int]
    site_C: Ints
    gpus_C: Floats
    spare_C: Floats  # GPUs left over on the last node
    rate_EC: Floats  # work per hour, stops by reclaims included; 0 = it cannot run
    gpu_rate_E: tuple[float, ...]  # work per GPU-hour where that is most
    ends: tuple[float, ...]  # progress at which a phase ends; the last has no end
    start_C: Floats  # the first start, boot included
    restart_C: Floats
    belief_C: Ints  # shapes of the same number go as fast as each other, whatever is true: same GPUs, as many
    facts_FC: Floats  # GPUs, GPUs of its whole nodes, site, first start, restart, boot: to be laid side by side
    doubt_C: Floats | None  # standard error of the speed, as a part of it; None = all are known

    def pay(self, value_of_time: float, rent_P: Rents) -> Floats:
        """What an hour on each shape costs: the job's time, and rent for whole nodes.

        What is left over on its last node is its own to pay: neighbours seldom fill it, as they come and go. If it is
        thought to be shared, jobs on tight budgets are so narrow that a quarter of the bill is for idle GPUs.
        """
        pay_C: Floats = value_of_time + np.asarray(rent_P)[self.site_C] * (self.gpus_C + self.spare_C)
        return pay_C

    def rent_when_full(self, rent_P: Rents) -> Floats:
        """What an hour costs where nothing is left over: in the long run what is shows in what is spent."""
        rent_C: Floats = np.asarray(rent_P)[self.site_C] * self.gpus_C
        return rent_C

    def phase(self, done: float) -> int:
        """The phase in which work goes on."""
        return min(bisect_right(self.ends, done), len(self.rate_EC) - 1) if self.ends else 0

    def work_left(self, phase: int, done: float, work: float) -> float:
        """Until the phase or the job ends."""
        last = phase == len(self.rate_EC) - 1
        return max(0.0, (work if last else min(self.ends[phase], work)) - done)

    def gpu_hours_left(self, done: float, work: float) -> float:
        """GPU-hours to the end at the most efficient, as this phase goes; infinite where it cannot run."""
        gpu_rate = self.gpu_rate_E[self.phase(done)]
        return (work - done) / gpu_rate if gpu_rate else math.inf

    def hours(self, work: float) -> Floats:
        """How long each phase of a whole job takes; infinite where it cannot run, 0 beyond its end."""
        edges = np.minimum([0.0, *self.ends[: len(self.rate_EC) - 1], work], work)
        with np.errstate(divide="ignore", invalid="ignore"):
            hours_EC = np.diff(edges)[:, None] / self.rate_EC
        return np.nan_to_num(hours_EC, nan=0.0, posinf=np.inf)


def menu_of(job: Job, sites: Sites) -> Menu:
    """The menu of this job's kind."""
    return _menu(_Facts(job), sites)


class _Facts:
    """The facts of a job that its menu follows from, to look it up by."""

    __slots__ = ("job", "key")

    def __init__(self, job: Job) -> None:
        self.job = job
        pauses = (job.restart_s, job.checkpoint_every_s, job.checkpoint_write_s)
        self.key = (job.speed, job.min_gpus, job.max_gpus, job.pools, pauses)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Facts) and self.key == other.key


@lru_cache(maxsize=4096)
def _menu(facts: _Facts, sites: Sites) -> Menu:
    job = facts.job
    starts = [0.0, *job.speed.ends[:-1]]
    shapes, site_of, gpus_of, spare_of, rates, boots = [], [], [], [], [], []
    beliefs: dict[tuple[str, int], int] = {}
    belief_of, doubts = [], []
    for index, site in enumerate(sites):
        widths = useful_widths(job, site.gpus_per_node, site.most_gpus) if job.may_run_in(site.pool) else []
        spreads = [packed(gpus, site.gpus_per_node) for gpus in widths]
        kept_C = [1.0] * len(widths)
        if site.reclaims != NO_RECLAIMS:
            kept_C = spot_speed(site.reclaims, job, [len(spread) for spread in spreads]).tolist()
        for gpus, spread, kept in zip(widths, spreads, kept_C, strict=True):
            rate_E = [job.speed.rate(site.gpu, spread, done) * SECONDS_PER_H * kept for done in starts]
            if not any(rate_E):
                continue
            shapes.append(Shape(site.pool, gpus))
            site_of.append(index)
            gpus_of.append(float(gpus))
            spare_of.append(float(-gpus % site.gpus_per_node))
            rates.append(rate_E)
            boots.append(site.boot_s / SECONDS_PER_H)
            belief_of.append(beliefs.setdefault((site.gpu, gpus), len(beliefs)))
            doubts.append(job.speed.doubt(site.gpu, spread) if isinstance(job.speed, Doubted) else 0.0)
    gpus_C, spare_C, site_C = np.array(gpus_of), np.array(spare_of), np.array(site_of, dtype=np.intp)
    rate_EC = np.array(rates).reshape(len(shapes), len(starts)).T.copy()
    start_C = np.array([(job.restart_s + sites[at].boot_s) / SECONDS_PER_H for at in site_of])
    restart_C, boot_C = np.full(len(shapes), job.restart_s / SECONDS_PER_H), np.array(boots)
    return Menu(
        shapes=tuple(shapes),
        column={shape: at for at, shape in enumerate(shapes)},
        site_C=site_C,
        gpus_C=gpus_C,
        spare_C=spare_C,
        rate_EC=rate_EC,
        gpu_rate_E=tuple((rate_EC / gpus_C).max(axis=1, initial=0.0).tolist()),
        ends=job.speed.ends,
        start_C=start_C,
        restart_C=restart_C,
        belief_C=np.array(belief_of, dtype=np.intp),
        facts_FC=np.array([gpus_C, gpus_C + spare_C, site_C, start_C, restart_C, boot_C]),
        doubt_C=np.array(doubts) if any(doubts) else None,
    )
