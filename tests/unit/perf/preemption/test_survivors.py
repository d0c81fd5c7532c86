"""What a hit leaves of a shape, beside every way in which it can hit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.job import Change, Speed
from sublet.domain.shape import Grid, Shape, Spread
from sublet.perf.preemption.reclaims import Reclaims
from sublet.perf.preemption.shapes import shapes_kept
from sublet.perf.preemption.survivors import (
    kind_of,
    nodes_of,
    pauses_of,
    pausing,
    shares_left,
    spot_nodes,
    survivors_of,
    whole_chances,
)
from sublet.perf.speedup import Amdahl, ConstantRate
from sublet.testing.values import EvenPauses, a_job
from tests.rigs.sizes import examples


@dataclass(frozen=True)
class ByCopies(ConstantRate):
    """The square root of copies, in whatever parts."""

    copies: int = 0

    def bound_to(self, shape: Shape) -> Speed:
        assert shape.grid is not None
        return ByCopies(shape.grid.copies)

    def rate(self, gpu, spread, done):
        return self.copies**0.5


def seats_of(shape: Shape, per_node: int) -> list[tuple[str, list[int]]]:
    """Nodes with the parts that their GPUs hold, copy by copy, those on demand first; -1 is a spare."""
    grid = shape.grid or Grid(shape.gpus)
    parts = [at % grid.parts for at in range(grid.gpus)] + [-1] * (shape.gpus - grid.gpus)
    found = []
    for kind, held in (("steady", parts[: shape.steady]), ("spot", parts[shape.steady :])):
        found += [(kind, held[at : at + per_node]) for at in range(0, len(held), per_node)]
    return found


def ways_to_be_hit(spot: list[list[int]], share: float) -> Iterator[tuple[float, list[list[int]]]]:
    """Chance and what is left, of all subsets."""
    most = 1 if share == 0.0 else len(spot)
    ways = []
    for lost in range(1, most + 1):
        for gone in combinations(range(len(spot)), lost):
            chance = 1.0 / len(spot) if share == 0.0 else share**lost * (1.0 - share) ** (len(spot) - lost)
            ways.append((chance, [held for at, held in enumerate(spot) if at not in gone]))
    total = sum(chance for chance, _ in ways)
    return ((chance / total, left) for chance, left in ways)


def by_enumeration(shape: Shape, per_node: int, share: float) -> tuple[float, float, float, float]:
    """Nobody left, no copy left, and the mean speed where a copy or anybody is."""
    grid = shape.grid or Grid(shape.gpus)
    seats = seats_of(shape, per_node)
    safe = [part for kind, held in seats if kind == "steady" for part in held]
    gone = none_left = speed = any_speed = 0.0
    for chance, left in ways_to_be_hit([held for kind, held in seats if kind == "spot"], share):
        parts = safe + [part for held in left for part in held]
        rate = min(grid.copies, len(parts) // grid.parts) ** 0.5 / grid.copies**0.5
        any_speed += chance * rate
        if not parts:
            gone += chance
        if set(range(grid.parts)) <= set(parts):
            speed += chance * rate
        else:
            none_left += chance
    return (
        gone,
        none_left,
        speed / (1 - none_left) if none_left < 1 else 0.0,
        any_speed / (1 - gone) if gone < 1 else 0.0,
    )


@st.composite
def grids(draw) -> tuple[Shape, int]:
    """GPUs one to a node with any grid and steady part; or copies of whole nodes; or whole copies on a node."""
    per_node, parts = draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 4), (4, 2)]))
    copies = draw(st.integers(1, 9 // parts))
    if parts <= per_node:  # of whole nodes
        copies = max(per_node // parts, copies * parts // per_node * per_node // parts)
    gpus = copies * parts + per_node * draw(st.integers(0, 2))
    steady = draw(st.integers(0, (gpus - 1) // per_node)) * per_node
    return Shape("p", gpus, steady=steady, grid=Grid(copies, parts)), per_node


@settings(max_examples=examples(300), deadline=None)
@given(grids(), st.sampled_from([0.0, 0.05, 0.4, 1.0]))
def test_what_a_hit_leaves_is_what_all_ways_to_be_hit_leave(shape_on, share):
    shape, per_node = shape_on
    nodes = nodes_of([shape], per_node, spot_nodes([shape], per_node))
    found = survivors_of(
        Reclaims(per_h=1.0, share=share), kind_of(a_job(speed=ByCopies()), "T4", nodes.per_node), nodes
    )
    seen = [float(each[0]) for each in (found.gone_C, found.none_left_C, found.share_C, found.any_share_C)]
    exact = by_enumeration(shape, per_node, share)
    assert seen[:2] == pytest.approx(exact[:2], abs=1e-12)
    if seen[1] < 1.0 - 1e-9:
        assert seen[2] == pytest.approx(exact[2], abs=1e-9)
    if seen[0] < 1.0 - 1e-9:
        assert seen[3] == pytest.approx(exact[3], abs=1e-9)


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.01, 1.0), st.integers(0, 3))
def test_where_one_whole_copy_is_on_demand_a_copy_is_always_left(copies, parts, share, spares):
    shape = Shape("p", copies * parts + parts + spares, steady=parts, grid=Grid(copies + 1, parts))
    nodes = nodes_of([shape], 1, spot_nodes([shape], 1))
    found = survivors_of(
        Reclaims(per_h=1.0, share=share), kind_of(a_job(speed=ByCopies()), "T4", nodes.per_node), nodes
    )
    assert (found.none_left_C[0], found.gone_C[0]) == (pytest.approx(0.0, abs=1e-12), 0.0)


def test_part_of_a_copy_on_demand_protects_those_parts_alone():
    shapes = [Shape("p", 4, steady=steady, grid=Grid(1, 4)) for steady in range(5)]
    nodes = nodes_of(shapes, 1, spot_nodes(shapes, 1))
    found = survivors_of(Reclaims(per_h=1.0), kind_of(a_job(speed=ByCopies()), "T4", nodes.per_node), nodes)
    assert found.none_left_C.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    two = [Shape("p", 8, steady=steady, grid=Grid(2, 4)) for steady in (0, 2, 4)]
    nodes = nodes_of(two, 1, spot_nodes(two, 1))
    found = survivors_of(Reclaims(per_h=1.0, share=0.5), kind_of(a_job(speed=ByCopies()), "T4", nodes.per_node), nodes)
    # Each of the four parts keeps one of two with chance 3/4; of the two parts that are not safe, the same.
    struck = 1 - 0.5 ** np.array([8, 6, 4])
    assert found.none_left_C == pytest.approx((1 - np.array([0.75**4, 0.75**2, 1.0])) / struck)


def test_survivors_that_are_fewer_than_a_job_needs_do_not_train():
    job = a_job(speed=Amdahl(parallel=0.9), gpus=4, min_gpus=3, max_gpus=8)
    shapes = [Shape("p", 3), Shape("p", 4), Shape("p", 8, steady=3)]
    nodes = nodes_of(shapes, 1, spot_nodes(shapes, 1))
    one = survivors_of(Reclaims(per_h=1.0), kind_of(job, "T4", nodes.per_node), nodes).share_C
    assert one.tolist() == [
        0.0,
        pytest.approx((0.1 + 0.9 / 4) / (0.1 + 0.9 / 3)),
        pytest.approx((0.1 + 0.9 / 8) / (0.1 + 0.9 / 7)),
    ]
    all_at_once = survivors_of(Reclaims(per_h=1.0, share=1.0), kind_of(job, "T4", nodes.per_node), nodes).share_C
    assert all_at_once.tolist() == [0.0, 0.0, pytest.approx((0.1 + 0.9 / 8) / (0.1 + 0.9 / 3))]


@dataclass(frozen=True)
class ByKind:
    """Pauses that say which change they were asked for."""

    def pause_s(self, change: Change) -> float:
        if change.was is None:
            return 1000.0
        return 100.0 * (change.now.gpus > change.was.gpus) + 10.0 * (change.now.gpus < change.was.gpus) + change.lost


def test_pauses_are_those_of_the_job_by_kind_of_change():
    job = a_job(speed=ByCopies(), pauses=ByKind(), gpus=8)
    shapes = [Shape("p", 8, grid=Grid(4, 2)), Shape("p", 2, grid=Grid(1, 2))]
    nodes = nodes_of(shapes, 2, spot_nodes(shapes, 2))
    found = pausing(Reclaims(per_h=1.0), kind_of(job, "T4", 2), nodes)
    assert [each[0] for each in (found.shrink_C, found.grow_C, found.refill_C, found.fresh_C)] == [
        12.0,
        100.0,
        2.0,
        1000.0,
    ]
    assert found.refill_C[1] == 2.0
    half = pausing(Reclaims(per_h=1.0, share=0.5), kind_of(job, "T4", 2), nodes)  # 2.1 of 4 nodes on average
    assert half.refill_C[0] == 4.0
    plain = pausing(Reclaims(per_h=1.0), kind_of(a_job(restart_s=7.0), "T4", 2), nodes)
    assert plain.shrink_C.tolist() == plain.fresh_C.tolist() == [7.0, 7.0]


# ---------------------------------------------------------------------- what is kept


@dataclass(frozen=True, eq=False)
class Counted(Amdahl):
    """Counts how often it is asked."""

    asked: list[int] = field(default_factory=list)

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        self.asked.append(sum(spread))
        return super().rate(gpu, spread, done)

    def pause_s(self, change: Change) -> float:
        self.asked.append(-change.now.gpus)
        return 1.0

    lead_s = 0.0


def test_another_market_asks_a_job_nothing_that_it_has_answered():
    both = Counted(parallel=0.9)
    job = a_job(speed=both, pauses=both, gpus=8, survives=True, checkpoint_every_s=600.0)
    shapes = [Shape("p", gpus, steady=steady) for gpus in range(1, 9) for steady in range(gpus)]
    one = shapes_kept(Reclaims(per_h=0.3, share=0.25, boot_s=60.0), job, "T4", 1, shapes)
    rates = [gpus for gpus in both.asked if gpus > 0]
    assert sorted(rates) == [1, 2, 3, 4, 5, 6, 7, 8]
    both.asked.clear()
    other = shapes_kept(Reclaims(per_h=0.6, share=0.25, boot_s=90.0), replace(job, id="k"), "T4", 1, shapes)
    assert not both.asked
    assert (other < one).all()


def test_jobs_that_differ_in_what_counts_are_kept_apart():
    shapes = [Shape("p", gpus) for gpus in (2, 4, 8)]
    hit = Reclaims(per_h=0.5, share=0.2, boot_s=300.0)
    job = a_job(
        speed=Amdahl(parallel=0.9), pauses=EvenPauses(60.0), gpus=8, min_gpus=1, survives=True, checkpoint_every_s=600.0
    )
    others = [
        replace(job, speed=Amdahl(parallel=0.99)),
        replace(job, pauses=EvenPauses(90.0)),
        replace(job, min_gpus=4),
        replace(job, pauses=None, restart_s=45.0),
    ]
    found = [tuple(shapes_kept(hit, each, "T4", 1, shapes)) for each in (job, *others)]
    found += [tuple(shapes_kept(hit, job, "T4", 2, shapes))]
    assert len(set(found)) == len(found)
    alone = []
    for each in (job, *others):  # as if none had been asked before
        for kept in (shares_left, pauses_of, whole_chances):
            kept.cache_clear()
        alone.append(tuple(shapes_kept(hit, each, "T4", 1, shapes)))
    assert alone == found[:-1]
