"""The shapes in which one kind of job can run, and how fast: a row per phase of its work, a column per shape.

A shape says how many GPUs, how many of them on demand, in which grid, with which batch. A pool with both markets has
shapes with all GPUs on spot, one copy on demand, as much on demand as spot lacks now, and all on demand. Some steps
between them serve for what others leave of spot. A job that is to have a core on demand has only shapes with it.

The menu decides how the GPUs are used: of all grids and batches it has the fastest, losses included. A shape that takes
no less of anything than another one and is no faster is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, repeat
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from sublet.domain.job import Change, Doubted, Job, Speed
from sublet.domain.shape import Grid, Shape, Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import NO_RECLAIMS, shapes_kept
from sublet.planning.terms import Rents, Site, Sites
from sublet.planning.widths import useful_widths
from sublet.solve.arrays import Bools, Floats, Ints

AHEAD_H = 24.0  # of a job without an end a day's work is weighed: the market is remembered for as long
EVERY_SPLIT = 4  # nodes: up to so many are split between the markets in every way, more in a few ways

# C shapes, E phases, R rows, K rows that one shape uses: of pools with both markets two; W ways, X ways of all shapes


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
    pace_C: tuple[float, ...]  # work per second in the first phase, undisturbed, on as few nodes as can be
    nodes_C: tuple[tuple[str, int], ...]  # of these nodes the kind of GPU, and how many each has

    def pay(self, value_of_time: float, rent_R: Rents) -> Floats:
        """The price of an hour on each shape: the job's time, and rent for whole nodes.

        The job pays for the idle GPUs of its last node: neighbours seldom fill it, as they come and go. If such a node
        counted as shared, jobs on tight budgets would be so small that a quarter of the bill is for idle GPUs.
        """
        return value_of_time + self._rent(rent_R, self.whole_KC)

    def rent_when_full(self, rent_R: Rents) -> Floats:
        """The rent of an hour where no GPU is idle: in the long run, idle GPUs show in the money that is spent."""
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
    """The menu of this job's kind; with what it has (`held`), which it may keep though no job would choose it anew."""
    seen = _views(sites, job.max_gpus)
    menu = _menu_of(_facts(job, id(job.speed)), seen)
    return menu if held is None or held in menu.column else _with_held(_facts(job, job.speed), seen, held)


def menus_of(jobs: Iterable[tuple[Job, Shape | None]], sites: Sites) -> list[Menu]:
    """Those of many jobs, each with what it has."""
    return [menu_of(job, sites, held) for job, held in jobs]


class _Key:
    """A value to look menus up by: hashed once."""

    __slots__ = ("key", "of", "same")

    def __init__(self, of: Any, key: Hashable) -> None:
        self.of, self.key, self.same = of, key, hash(key)

    def __hash__(self) -> int:
        return self.same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key


def _facts(job: Job, speed: Any) -> _Key:
    """The facts of a job that its menu follows from; of its speed the value, or the `id` of the object alone.

    Objects are looked up first: that is quick, and from one decision to the next they are mostly the same.
    """
    pauses = (job.restart_s, job.pauses, job.checkpoint_every_s, job.checkpoint_write_s, job.survives)
    return _Key(job, (speed, job.min_gpus, job.max_gpus, job.min_on_demand, job.pools, pauses))


class _Views:
    """How jobs see the sites that were asked for last: a decision asks for the same ones, job by job."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: tuple[Sites, dict[int, _Key]] = ((), {})

    def __call__(self, sites: Sites, most_gpus: int) -> _Key:
        last, seen = self.last
        if last is not sites:
            seen = {}
            self.last = (sites, seen)
        if most_gpus not in seen:
            seen[most_gpus] = _as_seen(sites, most_gpus)
        return seen[most_gpus]


_views = _Views()


@lru_cache(maxsize=4096)
def _as_seen(sites: Sites, most_gpus: int) -> _Key:
    """By a job that has no use for more: what spot has beyond that may change, and its menu does not."""
    seen = tuple(
        site
        if site.steady is None or math.isinf(site.steady.spot_gpus)
        else replace(site, steady=replace(site.steady, spot_gpus=min(site.steady.spot_gpus, float(most_gpus))))
        for site in sites
    )
    return _Key(seen, seen)


@lru_cache(maxsize=4096)
def _menu_of(facts: _Key, seen: _Key) -> Menu:
    """Of facts with the speed as an object, which they keep."""
    return _menu(_facts(facts.of, facts.of.speed), seen)


@lru_cache(maxsize=4096)
def _menu(facts: _Key, seen: _Key) -> Menu:
    return _side_by_side(facts.of, seen.of, list(enumerate(_offered(facts, site) for site in seen.of)))


@lru_cache(maxsize=4096)
def _with_held(facts: _Key, seen: _Key, held: Shape) -> Menu:
    more = _only_column(facts.of, seen.of, held)
    if more is None:
        return _menu(facts, seen)
    parts = [*enumerate(_offered(facts, site) for site in seen.of), more]
    return _side_by_side(facts.of, seen.of, parts)


@lru_cache(maxsize=4096)  # what one site offers changes more often than all of them
def _offered(facts: _Key, site: Site) -> Columns:
    if not facts.of.may_run_in(site.pool):
        return _columns_of(facts.of, (), site)
    return _columns_of(facts.of, _paces(facts, site.gpu, site.gpus_per_node, site.most_gpus), site)


@lru_cache(maxsize=4096)  # and a speed hardly ever
def _paces(facts: _Key, gpu: str, gpus_per_node: int, most_gpus: float) -> tuple[Pace, ...]:
    return _paces_of(facts.of, gpu, gpus_per_node, most_gpus)


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
        pace_C=tuple(chain.from_iterable(part.pace_C.tolist() for _, part in parts)),
        nodes_C=tuple([(sites[at].gpu, sites[at].gpus_per_node) for at in site_C.tolist()]),
    )


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


# ---------------------------------------------------------------------- the shapes of one pool


class Way(NamedTuple):
    """How a job uses its GPUs; None leaves it to the speed model."""

    grid: Grid | None = None
    batch: int | None = None


@runtime_checkable
class Choosing(Protocol):
    """A speed that leaves it to the plan how its GPUs are used."""

    def ways(self, gpus: int) -> Sequence[tuple[Grid | None, int | None]]:
        """Grids and batches in which it can train on so many GPUs; none if it cannot."""
        ...


@runtime_checkable
class DoubtedByBatch(Protocol):
    """A speed that knows some batches better than others."""

    def doubts(self, gpu: str, spread: Spread, batches: Sequence[int | None]) -> Floats:
        """The standard error of the rate at each, as a part of it; None is the batch that it has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """A column per shape of one pool."""

    shapes: tuple[Shape, ...]
    spot_C: Floats  # GPUs of the first row: all, or those on spot where there are both markets
    steady_C: Floats  # and of the second
    rate_EC: Floats  # work per hour, losses included
    boot_s_C: Floats  # until its nodes are there
    doubt_C: Floats
    pace_C: Floats  # work per second in the first phase, undisturbed

    def where(self, keep_C: Bools) -> Columns:
        """Some of them."""
        return Columns(
            shapes=tuple(compress(self.shapes, keep_C.tolist())),
            spot_C=self.spot_C[keep_C],
            steady_C=self.steady_C[keep_C],
            rate_EC=self.rate_EC[:, keep_C],
            boot_s_C=self.boot_s_C[keep_C],
            doubt_C=self.doubt_C[keep_C],
            pace_C=self.pace_C[keep_C],
        )

    def beside(self, other: Columns) -> Columns:
        """Both, without shapes of the other that are here."""
        other = other.where(np.array([shape not in self.shapes for shape in other.shapes], dtype=np.bool_))
        return Columns(
            shapes=(*self.shapes, *other.shapes),
            spot_C=np.concatenate((self.spot_C, other.spot_C)),
            steady_C=np.concatenate((self.steady_C, other.steady_C)),
            rate_EC=np.concatenate((self.rate_EC, other.rate_EC), axis=1),
            boot_s_C=np.concatenate((self.boot_s_C, other.boot_s_C)),
            doubt_C=np.concatenate((self.doubt_C, other.doubt_C)),
            pace_C=np.concatenate((self.pace_C, other.pace_C)),
        )


class Pace(NamedTuple):
    """Speed on one number of GPUs, undisturbed."""

    gpus: int
    ways: tuple[Way, ...]
    parts: frozenset[int]  # GPUs of one copy, whatever the way
    rate_EW: Floats  # work per hour
    doubt_W: Floats
    pace_W: Floats  # work per second in the first phase


def _columns_of(job: Job, paces: Sequence[Pace], site: Site) -> Columns:
    """All shapes of a job at these paces that may be best. Cost: O(C), or O(C^2) where more than GPUs is chosen."""
    spot_gpus = None if site.steady is None else site.steady.spot_gpus
    widths = tuple((pace.gpus, pace.parts) for pace in paces)
    at_C, nodes_C = _splits(widths, site.gpus_per_node, spot_gpus, job.min_on_demand)
    found = _columns(job, site, paces, at_C, nodes_C)
    if not _has_choice(job, site):
        return found
    if found.doubt_C.any():
        return _with_unknown(found, job, site, paces, at_C, nodes_C)
    return found.where(~_dominated(found, site))


def _only_column(job: Job, sites: Sites, shape: Shape) -> tuple[int, Columns] | None:
    """The place of its pool, and this shape there alone; None if such a job may not have it, or has no such choice."""
    at = next((place for place, site in enumerate(sites) if site.pool == shape.pool), None)
    if at is None or not _has_choice(job, sites[at]) or not job.may_run_in(shape.pool):
        return None
    site = sites[at]
    if not job.min_gpus <= shape.gpus <= min(job.max_gpus, site.most_gpus):
        return None
    if site.steady is not None and shape.steady < job.min_on_demand:
        return None
    way = Way(shape.grid, shape.batch)
    pace = _pace(job, site.gpu, site.gpus_per_node, shape.gpus, (way,))
    spot_nodes = math.ceil((shape.gpus - shape.steady) / site.gpus_per_node)
    found = _columns(job, site, [pace], np.array([0]), np.array([spot_nodes]), np.array([shape.steady]))
    return (at, found) if found.shapes else None


# ---------------------------------------------------------------------- widths and ways


def _paces_of(job: Job, gpu: str, gpus_per_node: int, most_gpus: float) -> tuple[Pace, ...]:
    """Speeds on all useful numbers of GPUs. Cost: O(numbers x ways)."""
    speed, found = job.speed, []
    for gpus in useful_widths(job, gpus_per_node, most_gpus):
        ways = tuple(Way(*way) for way in speed.ways(gpus)) if _chooses(speed) else (Way(),)
        if ways:
            found.append(_pace(job, gpu, gpus_per_node, gpus, ways))
    return tuple(found)


def _pace(job: Job, gpu: str, gpus_per_node: int, gpus: int, ways: tuple[Way, ...]) -> Pace:
    spread, starts = packed(gpus, gpus_per_node), [0.0, *job.speed.ends[:-1]]
    speeds = [job.speed_on(Shape(gpu, gpus, grid=way.grid, batch=way.batch)) for way in ways]
    pace_EW = np.array([[speed.rate(gpu, spread, done) for speed in speeds] for done in starts])
    doubt_W = np.zeros(len(ways))
    if isinstance(job.speed, DoubtedByBatch):
        doubt_W = job.speed.doubts(gpu, spread, [way.batch for way in ways])
    elif isinstance(job.speed, Doubted):
        doubt_W += job.speed.doubt(gpu, spread)
    parts = frozenset(1 if way.grid is None else way.grid.parts for way in ways)
    return Pace(gpus, ways, parts, pace_EW * SECONDS_PER_H, doubt_W, pace_EW[0])


@lru_cache(maxsize=1024)  # the same for all jobs of these widths
def _splits(
    widths: tuple[tuple[int, frozenset[int]], ...], size: int, spot_gpus: float | None, core: int
) -> tuple[Ints, Ints]:
    """An index into these numbers of GPUs, each with the sizes of a copy, and the nodes of it that are on spot."""
    found = [
        (at, nodes)
        for at, (gpus, parts) in enumerate(widths)
        for nodes in _spot_nodes(gpus, parts, size, spot_gpus, core)
    ]
    at_C, nodes_C = np.array(found, dtype=np.intp).reshape(-1, 2).T
    return at_C, nodes_C


def _spot_nodes(gpus: int, parts: frozenset[int], size: int, spot_gpus: float | None, core: int) -> Sequence[int]:
    """Counts of nodes that may be on spot, beside a core on demand; where there is one market, all."""
    nodes = math.ceil(gpus / size)
    if spot_gpus is None:
        return (nodes,)
    most = (gpus - core) // size if core else nodes
    had = int(min(most, spot_gpus // size))
    if nodes <= EVERY_SPLIT:
        some = set(range(had + 1))
    else:
        some = {0, had}
        if math.isfinite(spot_gpus):  # what others leave of it may be anything
            some |= {4**step for step in range((had.bit_length() + 1) // 2)}
        some |= {nodes - copy for copy in (math.ceil(part / size) for part in parts) if 0 <= nodes - copy <= had}
    return sorted(some | {most})  # what is sold out now may be back


# ---------------------------------------------------------------------- columns


def _columns(
    job: Job, site: Site, paces: Sequence[Pace], at_C: Ints, nodes_C: Ints, steady_C: Ints | None = None
) -> Columns:
    """A column for each number of GPUs (`at_C`) with so many nodes on spot, in the way that is fastest there."""
    gpus_C = np.array([pace.gpus for pace in paces], dtype=np.intp)[at_C]
    if steady_C is None:
        steady_C = np.maximum(0, gpus_C - nodes_C * site.gpus_per_node)
    shapes: Sequence[Shape]
    phases = max(1, len(job.speed.ends))
    doubt_C, pace_C = (np.array(of)[at_C] for of in ([p.doubt_W[0] for p in paces], [p.pace_W[0] for p in paces]))
    if _chooses(job.speed):
        wide = [paces[at] for at in at_C.tolist()]
        best_C, shapes, kept_C = _fastest(job, site, wide, nodes_C, steady_C)
        rates = [pace.rate_EW[:, way] for pace, way in zip(wide, best_C, strict=True)]
        rate_EC = np.array(rates).reshape(-1, phases).T * kept_C
        doubt_C, pace_C = (
            np.array([(pace.doubt_W[way], pace.pace_W[way]) for pace, way in zip(wide, best_C, strict=True)])
            .reshape(-1, 2)
            .T
        )
    else:
        shapes = _plain_shapes(site.pool, gpus_C.tobytes(), steady_C.tobytes())
        rate_EP = np.concatenate(
            [np.zeros((phases, 0)), *(pace.rate_EW for pace in paces)], axis=1
        )  # of each there is one way
        rate_EC = rate_EP[:, at_C] * _kept(job, site, shapes, nodes_C)
    boot_s_C = np.where(nodes_C > 0, site.boot_s, 0.0)
    if site.steady is not None:
        boot_s_C = np.maximum(boot_s_C, np.where(steady_C > 0, site.steady.boot_s, 0.0))
    columns = Columns(
        shapes=tuple(shapes),
        spot_C=(gpus_C - steady_C).astype(np.float64),
        steady_C=steady_C.astype(np.float64),
        rate_EC=rate_EC,
        boot_s_C=boot_s_C,
        doubt_C=doubt_C,
        pace_C=pace_C,
    )
    runs_C: Bools = np.asarray((rate_EC > 0).any(axis=0))
    return columns if runs_C.all() else columns.where(runs_C)


def _with_unknown(found: Columns, job: Job, site: Site, paces: Sequence[Pace], at_C: Ints, nodes_C: Ints) -> Columns:
    """Add the less known way that may be faster than the fastest as believed, for each number of GPUs."""
    others = {at: alone for at, pace in enumerate(paces) if (alone := _least_known(job, pace)) is not None}
    if not others:
        return found
    place = {at: number for number, at in enumerate(others)}
    open_C = np.isin(at_C, list(others))
    at_U = np.array([place[at] for at in at_C[open_C].tolist()], dtype=np.intp)
    return found.beside(_columns(job, site, list(others.values()), at_U, nodes_C[open_C]))


def _least_known(job: Job, pace: Pace) -> Pace | None:
    """The way that would be the fastest if it is better than believed by as much as it is known less; None of them."""
    speed_W = _speed(job, pace)
    best = int(speed_W.argmax())
    less_W = np.sqrt(np.maximum(0.0, pace.doubt_W**2 - pace.doubt_W.min() ** 2))
    hoped_W = np.where(less_W > 0.0, speed_W * (1.0 + less_W), 0.0)
    hoped_W[best] = 0.0
    way = int(hoped_W.argmax())
    if not hoped_W[way] > speed_W[best]:
        return None
    return pace._replace(
        ways=(pace.ways[way],),
        rate_EW=pace.rate_EW[:, [way]],
        doubt_W=pace.doubt_W[[way]],
        pace_W=pace.pace_W[[way]],
    )


def _has_choice(job: Job, site: Site) -> bool:
    """Whether a shape is more than a number of GPUs."""
    return site.steady is not None or _chooses(job.speed)


def _chooses(speed: Speed) -> TypeGuard[Choosing]:
    return _is_choosing(type(speed))


@lru_cache(maxsize=256)  # to look at a protocol takes longer than all else about a menu of few shapes
def _is_choosing(kind: type[Speed]) -> bool:
    return issubclass(kind, Choosing)


def _fastest(
    job: Job, site: Site, paces: Sequence[Pace], nodes_C: Ints, steady_C: Ints
) -> tuple[list[int], list[Shape], Floats]:
    """The way of each column that is soonest through all phases, losses included; of equals the first.

    Nothing keeps more than all of its speed, so that only ways that are faster undisturbed than the best is disturbed
    need a second look.
    """
    speeds = {id(pace): _speed(job, pace) for pace in paces}
    best_C = [int(speeds[id(pace)].argmax()) for pace in paces]

    def shape(at: int, way: int) -> Shape:
        return _shape(site.pool, paces[at].gpus, int(steady_C[at]), *paces[at].ways[way])

    shapes = [shape(at, way) for at, way in enumerate(best_C)]
    kept_C = _kept(job, site, shapes, nodes_C)
    least_C = [speeds[id(pace)][way] for pace, way in zip(paces, best_C, strict=True)] * kept_C
    ways_C = [len(speeds[id(pace)]) for pace in paces]
    at_X = np.repeat(np.arange(len(paces)), ways_C)
    way_X = np.arange(len(at_X)) - np.repeat(np.cumsum([0, *ways_C])[:-1], ways_C)
    speed_X = np.concatenate([np.zeros(0), *(speeds[id(pace)] for pace in paces)])
    other_X = (speed_X > least_C[at_X]) & (way_X != np.array(best_C, dtype=np.intp)[at_X])
    others = list(zip(at_X[other_X].tolist(), way_X[other_X].tolist(), strict=True))
    kept_X = _kept(job, site, [shape(at, way) for at, way in others], nodes_C[at_X[other_X]])
    for (at, way), part in zip(others, kept_X.tolist(), strict=True):
        if speeds[id(paces[at])][way] * part > least_C[at]:
            best_C[at], shapes[at], kept_C[at] = way, shape(at, way), part
            least_C[at] = speeds[id(paces[at])][way] * part
    return best_C, shapes, kept_C


_shape = lru_cache(maxsize=1 << 16)(Shape)  # most are the same for all jobs


@lru_cache(maxsize=1024)
def _plain_shapes(pool: str, gpus: bytes, steady: bytes) -> tuple[Shape, ...]:
    """Of so many GPUs, and of these on demand, column by column: arrays, as what a cache can look them up by."""
    gpus_C, steady_C = (np.frombuffer(each, dtype=np.intp).tolist() for each in (gpus, steady))
    return tuple(map(_shape, repeat(pool), gpus_C, steady_C))


def _kept(job: Job, site: Site, shapes: Sequence[Shape], nodes_C: Ints) -> Floats:
    if site.reclaims == NO_RECLAIMS:
        return np.ones(len(shapes))
    return shapes_kept(site.reclaims, job, site.gpu, site.gpus_per_node, shapes, nodes_C)


def _speed(job: Job, pace: Pace) -> Floats:
    """Of each way, over all phases."""
    if len(pace.rate_EW) == 1:
        return np.asarray(pace.rate_EW[0])
    phase_E = np.diff([0.0, *job.speed.ends])
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (phase_E[:, None] / pace.rate_EW).sum(axis=0))


def _dominated(columns: Columns, site: Site) -> Bools:
    """Those beside which there is one that takes no more of anything, and is no slower."""
    spot, steady, boot_s = (each.tobytes() for each in (columns.spot_C, columns.steady_C, columns.boot_s_C))
    beaten_CC = _takes_less(spot, steady, boot_s, site.gpus_per_node)
    for rate_C in columns.rate_EC:
        beaten_CC = beaten_CC & (rate_C[:, None] >= rate_C)
    return np.asarray(beaten_CC.any(axis=0))


@lru_cache(maxsize=1024)  # what shapes take is the same for many jobs, how fast they are is not
def _takes_less(spot: bytes, steady: bytes, boot_s: bytes, gpus_per_node: int) -> Bools:
    """Whether the first takes less of something than the second, and no more of anything. No two take the same."""
    spot_C, steady_C, boot_s_C = (np.frombuffer(each) for each in (spot, steady, boot_s))
    whole_KC = np.ceil(np.array([spot_C, steady_C]) / gpus_per_node)
    no_more_CC = np.ones((len(spot_C),) * 2, dtype=np.bool_)
    for takes_C in (*whole_KC, spot_C, steady_C, boot_s_C):
        no_more_CC &= takes_C[:, None] <= takes_C
    return no_more_CC & ~no_more_CC.T
