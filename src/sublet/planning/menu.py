"""What one kind of job can run on, and how fast: a row per phase of its work, a column per shape."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np

from sublet.domain.job import Change, Job
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.columns import Columns, Pace, columns_of, only_column, paces_of
from sublet.planning.terms import Rents, Site, Sites
from sublet.solve.arrays import Bools, Floats, Ints

__all__ = ["Menu", "menu_of"]

AHEAD_H = 24.0  # of a job without an end a day's work is weighed: the market is remembered for as long
# C shapes, E phases, R rows, K rows that one shape uses: of pools with both markets two


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Menu:
    """All shapes that such a job can run in. Times are in hours."""

    shapes: tuple[Shape, ...]
    column: Mapping[Shape, int]
    row_KC: Ints  # the first is that of its pool, or of spot in it; the second, on demand, may be used for nothing
    gpus_KC: Floats  # of each of these
    whole_KC: Floats  # the same with what is left over on the last node
    gpus_C: Floats  # of all
    rate_EC: Floats  # work per hour, stops by reclaims included; 0 = it cannot run
    gpu_rate_E: tuple[float, ...]  # work per GPU-hour where that is most
    ends: tuple[float, ...]  # progress at which a phase ends; the last has no end
    start_C: Floats  # the first start, boot included
    restart_C: Floats
    belief_C: Ints  # shapes of the same number go as fast as each other, whatever is true: same GPUs, as many
    facts_FC: Floats  # GPUs, first start, restart, boot; then by K GPUs and whole nodes: to be laid side by side
    doubt_C: Floats | None  # standard error of the speed, as a part of it; None = all are known

    def pay(self, value_of_time: float, rent_R: Rents) -> Floats:
        """What an hour on each shape costs: the job's time, and rent for whole nodes.

        What is left over on its last node is its own to pay: neighbours seldom fill it, as they come and go. If it is
        thought to be shared, jobs on tight budgets are so narrow that a quarter of the bill is for idle GPUs.
        """
        return value_of_time + self._rent(rent_R, self.whole_KC)

    def rent_when_full(self, rent_R: Rents) -> Floats:
        """What an hour costs where nothing is left over: in the long run what is shows in what is spent."""
        return self._rent(rent_R, self.gpus_KC)

    def fits(self, most_R: Floats) -> Bools:
        """Which shapes need no more than this many GPUs of each row."""
        return np.asarray(((self.gpus_KC <= most_R[self.row_KC]) | (self.gpus_KC == 0)).all(axis=0))

    def phase(self, done: float) -> int:
        """The phase in which work goes on."""
        return min(bisect_right(self.ends, done), len(self.rate_EC) - 1) if self.ends else 0

    def goal(self, done: float, work: float) -> float:
        """Up to where work is weighed: the end, or where there is none what a day brings, as fast as it can go."""
        if math.isfinite(work):
            return work
        return done + AHEAD_H * float(self.rate_EC[self.phase(done)].max(initial=0.0))

    def work_left(self, phase: int, done: float, work: float) -> float:
        """Until the phase or the job ends."""
        goal = self.goal(done, work)
        last = phase == len(self.rate_EC) - 1
        return max(0.0, (goal if last else min(self.ends[phase], goal)) - done)

    def gpu_hours_left(self, done: float, work: float) -> float:
        """GPU-hours to the end at the most efficient, as this phase goes; infinite where it cannot run."""
        gpu_rate = self.gpu_rate_E[self.phase(done)]
        return (self.goal(done, work) - done) / gpu_rate if gpu_rate else math.inf

    def hours(self, work: float) -> Floats:
        """How long each phase of a whole job takes; infinite where it cannot run, 0 beyond its end."""
        edges = np.minimum([0.0, *self.ends[: len(self.rate_EC) - 1], work], work)
        with np.errstate(divide="ignore", invalid="ignore"):
            hours_EC = np.diff(edges)[:, None] / self.rate_EC
        return np.nan_to_num(hours_EC, nan=0.0, posinf=np.inf)

    def _rent(self, rent_R: Rents, gpus_KC: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # nothing of what cannot be rented costs nothing
            rent_KC: Floats = np.where(gpus_KC > 0, np.asarray(rent_R)[self.row_KC] * gpus_KC, 0.0)
        return np.asarray(rent_KC.sum(axis=0))


def menu_of(job: Job, sites: Sites, held: Shape | None = None) -> Menu:
    """The menu of this job's kind; with what it has (`held`), which it may keep though nobody would choose it anew."""
    facts, seen = _Facts(job), _views(sites, job.max_gpus)
    menu = _menu(facts, seen)
    return menu if held is None or held in menu.column else _with_held(facts, seen, held)


class _Facts:
    """The facts of a job that its menu follows from, to look it up by."""

    __slots__ = ("job", "key", "same")

    def __init__(self, job: Job) -> None:
        self.job = job
        pauses = (job.restart_s, job.pauses, job.checkpoint_every_s, job.checkpoint_write_s, job.survives)
        self.key = (job.speed, job.min_gpus, job.max_gpus, job.min_on_demand, job.pools, pauses)
        self.same = hash(self.key)

    def __hash__(self) -> int:
        return self.same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Facts) and self.key == other.key


class _Seen:
    """Sites as they are seen by jobs of one size, to look menus up by: hashed once."""

    __slots__ = ("same", "sites")

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.same = hash(sites)

    def __hash__(self) -> int:
        return self.same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seen) and self.sites == other.sites


class _Views:
    """How jobs see the sites that were asked for last: a decision asks for the same ones, job by job."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: tuple[Sites, dict[int, _Seen]] = ((), {})

    def __call__(self, sites: Sites, most_gpus: int) -> _Seen:
        last, seen = self.last
        if last is not sites:
            seen = {}
            self.last = (sites, seen)
        if most_gpus not in seen:
            seen[most_gpus] = _as_seen(sites, most_gpus)
        return seen[most_gpus]


_views = _Views()


@lru_cache(maxsize=4096)
def _as_seen(sites: Sites, most_gpus: int) -> _Seen:
    """By a job that has no use for more: what spot has beyond that may change, and its menu does not."""
    return _Seen(
        tuple(
            site
            if site.steady is None or math.isinf(site.steady.spot_gpus)
            else replace(site, steady=replace(site.steady, spot_gpus=min(site.steady.spot_gpus, float(most_gpus))))
            for site in sites
        )
    )


@lru_cache(maxsize=4096)
def _menu(facts: _Facts, seen: _Seen) -> Menu:
    return _side_by_side(facts.job, seen.sites, list(enumerate(_columns(facts, site) for site in seen.sites)))


@lru_cache(maxsize=4096)
def _with_held(facts: _Facts, seen: _Seen, held: Shape) -> Menu:
    more = only_column(facts.job, seen.sites, held)
    if more is None:
        return _menu(facts, seen)
    parts = [*enumerate(_columns(facts, site) for site in seen.sites), more]
    return _side_by_side(facts.job, seen.sites, parts)


@lru_cache(maxsize=4096)  # what one site offers changes more often than all of them
def _columns(facts: _Facts, site: Site) -> Columns:
    if not facts.job.may_run_in(site.pool):
        return columns_of(facts.job, (), site)
    return columns_of(facts.job, _paces(facts, site.gpu, site.gpus_per_node, site.most_gpus), site)


@lru_cache(maxsize=4096)  # and a speed hardly ever
def _paces(facts: _Facts, gpu: str, gpus_per_node: int, most_gpus: float) -> tuple[Pace, ...]:
    return paces_of(facts.job, gpu, gpus_per_node, most_gpus)


def _side_by_side(job: Job, sites: Sites, parts: Sequence[tuple[int, Columns]]) -> Menu:
    """The columns of these places among the sites."""
    row_P = np.cumsum([0, *(1 if site.steady is None else 2 for site in sites)])
    shapes = tuple(chain.from_iterable(part.shapes for _, part in parts))
    site_C = np.repeat([at for at, _ in parts], [len(part.shapes) for _, part in parts]).astype(np.intp)
    size_C = np.array([site.gpus_per_node for site in sites])[site_C]
    gpus_KC = np.array([_joined([part.spot_C for _, part in parts]), _joined([part.steady_C for _, part in parts])])
    row_KC = np.array([row_P[site_C], row_P[site_C + 1] - 1], dtype=np.intp)
    if row_P[-1] == len(sites):  # no pool has two markets
        gpus_KC, row_KC = gpus_KC[:1], row_KC[:1]
    whole_KC = np.ceil(gpus_KC / size_C) * size_C
    nothing_E0 = np.zeros((max(1, len(job.speed.ends)), 0))
    rate_EC = np.concatenate([nothing_E0, *(part.rate_EC for _, part in parts)], axis=1)
    boot_s_C, doubt_C = _joined([part.boot_s_C for _, part in parts]), _joined([part.doubt_C for _, part in parts])
    gpus_C, restart_C = gpus_KC.sum(axis=0), np.full(len(shapes), job.restart_s / SECONDS_PER_H)
    kinds = {gpu: at for at, gpu in enumerate(dict.fromkeys(site.gpu for site in sites))}
    kind_C = np.array([kinds[site.gpu] for site in sites], dtype=np.intp)[site_C]
    start_s_C: float | Floats = job.restart_s
    if job.pauses is not None:
        start_s_C = np.array([job.pause_s(Change(was=None, now=shape)) for shape in shapes])
    start_C, boot_C = (start_s_C + boot_s_C) / SECONDS_PER_H, boot_s_C / SECONDS_PER_H
    return Menu(
        shapes=shapes,
        column=dict(zip(shapes, range(len(shapes)), strict=True)),
        row_KC=row_KC,
        gpus_KC=gpus_KC,
        whole_KC=whole_KC,
        gpus_C=gpus_C,
        rate_EC=rate_EC,
        gpu_rate_E=tuple((rate_EC / gpus_C).max(axis=1, initial=0.0).tolist()),
        ends=job.speed.ends,
        start_C=start_C,
        restart_C=restart_C,
        belief_C=gpus_C.astype(np.intp) * len(kinds) + kind_C,
        facts_FC=np.concatenate(([gpus_C, start_C, restart_C, boot_C], gpus_KC, whole_KC)),
        doubt_C=doubt_C if doubt_C.any() else None,
    )


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)
