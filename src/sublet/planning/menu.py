"""What one kind of job can run on, and how fast: a row per phase of its work, a column per shape."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from sublet.domain.job import Doubted, Job
from sublet.domain.plan import OfferState, Snapshot
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import NO_RECLAIMS, Reclaims, believed, spot_speed
from sublet.planning.widths import useful_widths
from sublet.solve.arrays import Floats, Ints

__all__ = ["Menu", "Rents", "Sharers", "Site", "Sites", "menu_of", "rents", "sharers", "sites_of"]

MANY = 16  # jobs in a pool: what is left over on their nodes is then next to nothing for each

# C shapes, E phases, P pools


@dataclass(frozen=True, slots=True)
class Site:
    """A pool as one job sees it: equal ones offer equal choices."""

    pool: str
    gpu: str
    gpus_per_node: int
    reclaims: Reclaims
    boot_s: float
    most_gpus: float  # a quota


Sites = tuple[Site, ...]
Rents = tuple[float, ...]  # USD per GPU-hour, by pool
Sharers = tuple[float, ...]  # how many jobs share the nodes of each pool


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
    boot_C: Floats  # of a node, in hours
    belief_C: Ints  # shapes of the same number go as fast as each other, whatever is true: same GPUs, as many
    doubt_C: Floats | None  # standard error of the speed, as a part of it; None = all are known

    def pay(self, value_of_time: float, rent_P: Rents, sharers_P: Sharers) -> Floats:
        """What an hour on each shape costs: the job's time, rent, and its part of what is left over on its last node.

        A job alone in its pool pays for whole nodes; where many share one, the rests add up to little.
        """
        spare_C = self.spare_C / np.asarray(sharers_P)[self.site_C]
        pay_C: Floats = value_of_time + np.asarray(rent_P)[self.site_C] * (self.gpus_C + spare_C)
        return pay_C

    def phase(self, done: float) -> int:
        """The phase in which work goes on."""
        return min(bisect_right(self.ends, done), len(self.rate_EC) - 1) if self.ends else 0

    def work_left(self, phase: int, done: float, work: float) -> float:
        """Until the phase or the job ends."""
        last = phase == len(self.rate_EC) - 1
        return max(0.0, (work if last else min(self.ends[phase], work)) - done)

    def hours(self, work: float) -> Floats:
        """How long each phase of a whole job takes; infinite where it cannot run, 0 beyond its end."""
        edges = np.minimum([0.0, *self.ends[: len(self.rate_EC) - 1], work], work)
        with np.errstate(divide="ignore", invalid="ignore"):
            hours_EC = np.diff(edges)[:, None] / self.rate_EC
        return np.nan_to_num(hours_EC, nan=0.0, posinf=np.inf)


def sites_of(snapshot: Snapshot) -> Sites:
    """Every pool from which anything can be had at all."""
    sites = []
    for pool in snapshot.pools.values():
        states = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
        sites.append(
            Site(
                pool.name,
                pool.gpu,
                pool.gpus_per_node,
                believed(states),
                min(state.offer.boot_s for state in states),
                math.inf if pool.max_gpus is None else pool.max_gpus,
            )
        )
    return tuple(sites)


def rents(snapshot: Snapshot, *, listed: bool = False) -> Rents:
    """USD per GPU-hour of each pool: the cheapest that can be had now, or by list prices. What is owned costs nothing.

    Where nothing can be had now, the price of what there would be.
    """
    found = []
    for pool in snapshot.pools.values():
        states = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
        open_states = [state for state in states if state.most > 0] or states
        found.append(min(_rent(state, listed=listed) for state in open_states) / pool.gpus_per_node)
    return tuple(found)


def _rent(state: OfferState, *, listed: bool) -> float:
    if state.limit.min_nodes and state.limit.min_nodes == state.limit.max_nodes:
        return 0.0  # paid for whether it is used or not
    return (state.offer.price if listed else state.price).usd_per_h


def sharers(snapshot: Snapshot) -> Sharers:
    """How many jobs are, or will be, in each pool: a power of two, so that one more or less seldom matters."""
    few = islice(snapshot.active.values(), MANY * len(snapshot.pools))
    count = Counter(state.shape.pool for state in few if state.shape is not None)
    return tuple(2.0 ** (max(1, count[pool]).bit_length() - 1) for pool in snapshot.pools)


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
    gpus_C = np.array(gpus_of)
    rate_EC = np.array(rates).reshape(len(shapes), len(starts)).T.copy()
    return Menu(
        shapes=tuple(shapes),
        column={shape: at for at, shape in enumerate(shapes)},
        site_C=np.array(site_of, dtype=np.intp),
        gpus_C=gpus_C,
        spare_C=np.array(spare_of),
        rate_EC=rate_EC,
        gpu_rate_E=tuple((rate_EC / gpus_C).max(axis=1, initial=0.0).tolist()),
        ends=job.speed.ends,
        start_C=np.array([(job.restart_s + sites[at].boot_s) / SECONDS_PER_H for at in site_of]),
        restart_C=np.full(len(shapes), job.restart_s / SECONDS_PER_H),
        boot_C=np.array(boots),
        belief_C=np.array(belief_of, dtype=np.intp),
        doubt_C=np.array(doubts) if any(doubts) else None,
    )
