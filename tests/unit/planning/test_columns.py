"""What is on the menu of a pool with both markets, and of jobs that leave their grid or batch to the plan."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Grid, Shape, packed
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.perf.preemption import NO_RECLAIMS, Reclaims, shapes_kept, spot_speed
from sublet.perf.speedup import Amdahl, ConstantRate, Linear, PowerLaw
from sublet.planning.menu import Columns, _dominated, menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Site, SteadyPart
from sublet.testing.values import a_job

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.7 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
PROFILE = spot_job("toy", RATES, COSTS)
RECLAIMS = Reclaims(per_h=0.2, notice_s=60.0)
HARSH = Reclaims(per_h=2.0, boot_s=300.0)


def both(spot_gpus=math.inf, gpus=1, reclaims=RECLAIMS, **facts):
    """A pool with both markets; spot boots in 60 s, on demand in 90."""
    return Site("p", "T4", gpus, reclaims, 60.0, facts.get("most", math.inf), SteadyPart(90.0, float(spot_gpus)))


def one(reclaims=NO_RECLAIMS, gpus=1):
    return Site("q", "T4", gpus, reclaims, 60.0, math.inf)


@dataclass(frozen=True)
class Batched(ConstantRate):
    """Best at a batch of 8 for each GPU."""

    batch: int | None = None

    def bound_to(self, shape):
        return replace(self, batch=shape.batch)

    def ways(self, gpus):
        return [(None, gpus * each) for each in (2, 4, 8, 16)]

    def rate(self, gpu, spread, done):
        del gpu, done
        each = 0 if self.batch is None else self.batch / sum(spread)
        return sum(spread) ** 0.8 / (1.0 + abs(math.log2(each / 8.0))) if each else 0.0


# ---------------------------------------------------------------------- rows


def test_of_a_pool_with_both_markets_a_shape_uses_spot_and_what_it_has_on_demand():
    menu = menu_of(a_job(gpus=1, max_gpus=10, restart_s=30.0), (one(), both(5)))
    assert menu.row_KC.shape == (2, len(menu.shapes))
    for at, shape in enumerate(menu.shapes):
        if shape.pool == "q":
            assert (menu.row_KC[0, at], menu.gpus_KC[:, at].tolist()) == (0, [shape.gpus, 0])
        else:
            assert menu.row_KC[:, at].tolist() == [1, 2]
            assert menu.gpus_KC[:, at].tolist() == [shape.gpus - shape.steady, shape.steady]
        slow = 90.0 if shape.steady else 60.0
        assert menu.start_C[at] == pytest.approx((30.0 + slow) / 3600)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 20), st.integers(1, 24))
def test_whole_nodes_of_each_market_are_paid(size, spot_gpus, most):
    menu = menu_of(a_job(gpus=1, max_gpus=most), (both(spot_gpus, size),))
    pay_C = menu.pay(7.0, (0.5, 2.0))
    for shape, pay in zip(menu.shapes, pay_C, strict=True):
        spot, steady = math.ceil((shape.gpus - shape.steady) / size), math.ceil(shape.steady / size)
        assert pay == pytest.approx(7.0 + size * (0.5 * spot + 2.0 * steady))
        assert spot + steady == math.ceil(shape.gpus / size)  # no node is torn between the markets


@pytest.mark.parametrize(("spot_gpus", "size"), [(math.inf, 1), (20, 1), (5, 1), (0, 1), (16, 4), (6, 4)])
def test_none_one_copy_all_and_what_spot_lacks_are_on_the_menu(spot_gpus, size):
    job = a_job(speed=Amdahl(parallel=0.999), gpus=1, max_gpus=32)
    found = menu_of(job, (both(spot_gpus, size, NO_RECLAIMS),)).column
    had = min(32, spot_gpus // size * size)
    wanted = {0, 32, 32 - had} | ({size} if 32 - size <= had else set())
    assert {Shape("p", 32, int(steady)) for steady in wanted} <= found.keys()


def test_up_to_four_nodes_are_split_between_the_markets_in_every_way_and_more_are_not():
    job = a_job(speed=Amdahl(parallel=0.999), gpus=1, max_gpus=5)
    spot = {gpus: set() for gpus in range(1, 6)}
    for shape in menu_of(job, (both(5, reclaims=NO_RECLAIMS),)).shapes:
        spot[shape.gpus].add(shape.gpus - shape.steady)
    assert spot == {**{gpus: set(range(gpus + 1)) for gpus in range(1, 5)}, 5: {0, 1, 4, 5}}


def test_between_none_and_all_of_spot_there_are_steps_for_what_others_leave_of_it():
    """One node, four, sixteen; no other of the many between."""
    job = a_job(speed=Amdahl(parallel=0.999), gpus=1, max_gpus=32)
    spot = {shape.gpus - shape.steady for shape in menu_of(job, (both(20),)).shapes if shape.gpus == 32}
    assert spot == {0, 1, 4, 16, 20, 32}


def test_a_job_that_grows_with_five_kinds_has_some_hundred_shapes():
    job = a_job(speed=PowerLaw(exponent=0.9), gpus=1, max_gpus=32)
    sites = tuple(replace(both(12 * size, size), pool=f"p{at}") for at, size in enumerate((1, 8, 8, 4, 1)))
    assert 250 <= len(menu_of(job, sites).shapes) <= 600


def test_a_pool_of_one_market_is_one_row_though_another_has_two():
    job = a_job(speed=Amdahl(parallel=0.9), gpus=1, max_gpus=6, restart_s=60.0)
    alone, beside = menu_of(job, (one(RECLAIMS),)), menu_of(job, (one(RECLAIMS), both()))
    count = len(alone.shapes)
    assert alone.gpus_KC.shape == (1, count)
    assert beside.shapes[:count] == alone.shapes
    assert beside.rate_EC[:, :count].tolist() == alone.rate_EC.tolist()


# ---------------------------------------------------------------------- what is left out, and what is not


@given(st.sampled_from([1, 4]), st.integers(0, 12), st.sampled_from([0.0, 0.3, 2.0]), st.floats(0.3, 1.0))
def test_whatever_is_left_out_there_is_one_that_takes_no_more_and_is_no_slower(size, spot_gpus, per_h, exponent):
    job = a_job(speed=PowerLaw(exponent=exponent), gpus=1, max_gpus=12, restart_s=300.0)
    reclaims = Reclaims(per_h=per_h, notice_s=60.0)
    menu = menu_of(job, (both(spot_gpus, size, reclaims),))
    for gpus in {shape.gpus for shape in menu.shapes} | set(range(1, size + 1)):
        for steady in range(0, gpus + 1, size):
            if gpus - steady > spot_gpus and steady:
                continue
            spot = gpus - steady
            kept = float(spot_speed(reclaims, job, [math.ceil(spot / size)])[0])
            rate = 3600 * job.speed.rate("T4", packed(gpus, size), 0.0) * kept
            nodes = np.array([math.ceil(spot / size), math.ceil(steady / size)])
            as_good_C = (np.ceil(menu.gpus_KC / size) <= nodes[:, None]).all(axis=0) & (
                menu.rate_EC[0] >= rate * (1 - 1e-12)
            )
            if math.ceil(gpus / size) <= 4:  # split in every way
                assert as_good_C.any()


@given(st.sampled_from([1, 4]), st.integers(0, 12), st.sampled_from([0.0, 0.3, 2.0]), st.floats(0.3, 1.0))
def test_nothing_is_on_a_menu_beside_what_takes_no_more_and_is_no_slower(size, spot_gpus, per_h, exponent):
    job = a_job(speed=PowerLaw(exponent=exponent), gpus=1, max_gpus=12, restart_s=300.0)
    menu = menu_of(job, (both(spot_gpus, size, Reclaims(per_h=per_h, notice_s=60.0)),))
    facts = list(zip(*menu.gpus_KC, *np.ceil(menu.gpus_KC / size), menu.start_C, -menu.rate_EC[0], strict=True))
    for at, these in enumerate(facts):
        others = facts[:at] + facts[at + 1 :]
        assert not any(all(map(operator.le, other, these)) for other in others)


def test_the_column_of_a_shape_is_where_it_is_on_the_menu():
    menu = menu_of(a_job(gpus=1, max_gpus=12), (both(4, 1), Site("t", "V100", 4, NO_RECLAIMS, 0.0, math.inf)))
    assert [menu.column[shape] for shape in menu.shapes] == list(range(len(menu.shapes)))
    widths = {(shape.pool, shape.gpus) for shape in menu.shapes}  # each kind and width is believed by itself
    assert len(set(menu.belief_C.tolist())) == len(widths)


def test_what_a_job_has_stays_on_its_menu_though_nobody_would_choose_it():
    job = a_job(speed=PowerLaw(exponent=0.9), gpus=1, max_gpus=32, restart_s=60.0)
    odd = Shape("p", 30, 13)
    sites = (both(20), one())
    plain, own = menu_of(job, sites), menu_of(job, sites, odd)
    assert odd not in plain.column
    assert own.shapes == (*plain.shapes, odd)
    at = own.column[odd]
    kept = float(spot_speed(RECLAIMS, job, [17])[0])
    assert own.rate_EC[0, at] == pytest.approx(3600 * 30**0.9 * kept)
    assert own.gpus_KC[:, at].tolist() == [17, 13]
    assert menu_of(job, sites, Shape("q", 77)) is plain  # wider than it may be
    assert menu_of(job, sites, Shape("gone", 4)) is plain
    assert menu_of(job, (one(gpus=4),), Shape("q", 7)) is menu_of(job, (one(gpus=4),))  # as ever


# ---------------------------------------------------------------------- grids and batches


@pytest.mark.parametrize("survives", [False, True])
@pytest.mark.parametrize("site", [one(), one(RECLAIMS), one(HARSH), both(6), both(6, reclaims=HARSH)])
def test_each_shape_is_in_the_grid_that_is_fastest_with_losses(site, survives):
    facts = {"checkpoint_every_s": 600.0, "survives": survives}
    job = a_job(speed=Gridded(PROFILE), pauses=LivePauses(PROFILE), gpus=2, min_gpus=2, max_gpus=12, **facts)
    menu = menu_of(job, (site,))
    assert menu.shapes
    for shape, rate in zip(menu.shapes, menu.rate_EC[0], strict=True):
        every = {
            grid: RATES[grid] * float(shapes_kept(site.reclaims, job, "T4", 1, [replace(shape, grid=Grid(*grid))])[0])
            for grid in RATES
            if grid[0] * grid[1] <= shape.gpus
        }
        assert rate == pytest.approx(3600 * max(every.values()))
        assert every[shape.grid.copies, shape.grid.parts] == pytest.approx(max(every.values()))
        assert job.speed_on(shape).rate("T4", packed(shape.gpus, 1), 0.0) == RATES[shape.grid.copies, shape.grid.parts]


def test_where_losses_are_many_a_slower_grid_that_survives_them_is_chosen():
    """Four parts are a little faster, but every loss stops them; of two copies of two parts one may go on."""
    profile = spot_job("two", {(1, 4): 31.0, (2, 2): 30.0, (1, 2): 15.0}, COSTS)
    facts = {"speed": Gridded(profile), "pauses": LivePauses(profile), "survives": True, "checkpoint_every_s": 3600.0}
    job = a_job(gpus=4, min_gpus=2, max_gpus=4, **facts)
    calm, harsh = (menu_of(job, (one(reclaims),)) for reclaims in (NO_RECLAIMS, Reclaims(per_h=2.0, boot_s=600.0)))
    assert calm.shapes[-1] == Shape("q", 4, grid=Grid(1, 4))
    assert harsh.shapes[-1] == Shape("q", 4, grid=Grid(2, 2))


def test_a_wider_shape_that_is_in_the_same_grid_is_left_out():
    job = a_job(speed=Gridded(PROFILE), pauses=LivePauses(PROFILE), gpus=2, min_gpus=2, max_gpus=12)
    grids = [shape.grid for shape in menu_of(job, (one(),)).shapes]
    assert len(set(grids)) == len(grids)


def test_a_batch_that_the_plan_chooses_is_in_the_shape():
    menu = menu_of(a_job(speed=Batched(), gpus=1, max_gpus=4), (one(),))
    assert [(shape.gpus, shape.batch) for shape in menu.shapes] == [(1, 8), (2, 16), (3, 24), (4, 32)]
    assert menu.rate_EC[0] == pytest.approx(3600 * np.arange(1.0, 5.0) ** 0.8)


def test_a_speed_that_makes_its_own_choices_has_shapes_without():
    assert {(shape.grid, shape.batch) for shape in menu_of(a_job(speed=Linear(), max_gpus=9), (both(3),)).shapes} == {
        (None, None)
    }


def test_a_change_of_grid_costs_what_the_job_says_it_costs():
    job = a_job(work=1e6, speed=Gridded(PROFILE), pauses=LivePauses(PROFILE), gpus=2, min_gpus=2, max_gpus=12)
    menu = menu_of(job, (one(),))
    here = menu.shapes[2]
    state = JobState(job=job, seq=0)
    start = options_of(menu, state, 0.0, 1.0, (1.0,)).now_C - job.work / menu.rate_EC[0]
    table_CC = PROFILE.lossless_s()
    for at, shape in enumerate(menu.shapes):
        to = PROFILE.at[shape.grid.copies, shape.grid.parts]
        assert start[at] * 3600 == pytest.approx(60.0 + table_CC[0, to])

    runs = replace(
        state, phase=Phase.RUNNING, shape=here, runs_in=here, gpu="T4", gpus=here.gpus, spread=(1,) * here.gpus
    )
    change = options_of(menu, runs, 0.0, 1.0, (1.0,)).now_C - job.work / menu.rate_EC[0]
    was = PROFILE.at[here.grid.copies, here.grid.parts]
    for at, shape in enumerate(menu.shapes):
        to = PROFILE.at[shape.grid.copies, shape.grid.parts]
        assert change[at] * 3600 == pytest.approx(0.0 if shape == here else table_CC[was, to], abs=1e-6)


# ---------------------------------------------------------------------- cores


@given(st.sampled_from([1, 2, 4]), st.integers(1, 6), st.sampled_from([0, 3, 40, math.inf]))
def test_of_a_job_with_a_core_every_shape_has_it_and_all_that_have_it_and_pay_are_there(size, core, spot_gpus):
    """What a job without one would be offered, and that has the core, it is offered as well; or something better."""
    job = a_job(gpus=core, min_gpus=core, max_gpus=24, speed=Amdahl(parallel=0.95))
    free = menu_of(job, (both(spot_gpus, size),))
    held = menu_of(replace(job, min_on_demand=core), (both(spot_gpus, size),))
    assert held.shapes
    assert all(shape.steady >= core for shape in held.shapes)
    for at, shape in enumerate(free.shapes):
        if shape.steady >= core and shape not in held.column:
            better = (held.gpus_KC <= free.gpus_KC[:, at : at + 1]).all(axis=0)
            assert (held.rate_EC[0][better] >= free.rate_EC[0, at]).any()


def test_what_a_job_holds_without_its_core_is_not_on_its_menu():
    job = a_job(gpus=2, min_gpus=2, max_gpus=4, min_on_demand=1)
    held = Shape("p", 4, steady=0)
    assert held not in menu_of(job, (both(4),), held).column
    assert held in menu_of(replace(job, min_on_demand=0), (both(4),), held).column


@pytest.mark.parametrize(("later", "beaten"), [((2.0, 1.0), True), ((1.0, 2.0), False)])
def test_a_shape_is_beaten_only_by_one_that_is_no_slower_in_any_phase(later, beaten):
    columns = Columns(
        shapes=(Shape("p", 2, steady=1), Shape("p", 3, steady=1)),
        spot_C=np.array([1.0, 2.0]),
        steady_C=np.array([1.0, 1.0]),
        rate_EC=np.array([[1.0, 1.0], later]),
        boot_s_C=np.array([90.0, 90.0]),
        doubt_C=np.zeros(2),
        pace_C=np.zeros(2),
    )
    assert _dominated(columns, both()).tolist() == [False, beaten]
