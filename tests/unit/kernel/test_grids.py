"""Jobs that run in a grid: what a model makes of it, what is left of a pause, who goes when it shrinks, old logs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import UNLIMITED
from sublet.domain.events import BudgetChanged, JobStarted, NodeLost, NodeNoticed
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase, Plan
from sublet.domain.shape import Grid, Shape
from sublet.kernel.changing import as_ordered
from sublet.kernel.values_json import from_plain, to_plain
from sublet.perf.speedup import ConstantRate, Linear
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@dataclass(frozen=True)
class TwiceAsDeep(ConstantRate):
    """A speed that is bound to the parts of a grid."""

    parts: int = 1

    def bound_to(self, shape):
        return TwiceAsDeep(shape.grid.parts if shape.grid is not None else 1)

    def rate(self, gpu, spread, done):
        return 2.0 * self.parts


def p(gpus, *grid):
    return Shape("p", gpus, grid=Grid(*grid) if grid else None)


def running(nodes, shape, *, resumes_s=0.0, **facts):
    """A driver with one job in this shape, on nodes of one GPU."""
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.submit(a_job("a", gpus=shape.gpus, max_gpus=99, min_gpus=1, **facts))
    driver.plan(Plan(hold={"o": nodes}, shapes={"a": shape}))
    for order in list(driver.open):
        if not isinstance(order, StartJob):
            driver.answer(order)
    (start,) = driver.open
    driver.open.remove(start)
    driver.tell(JobStarted(driver.now_s, "a", start.generation, 0.0, resumes_s))
    for order in list(driver.open):  # spares that came while it started
        driver.answer(order)
    return driver


def test_a_speed_is_bound_to_the_shape_that_a_job_runs_in():
    job = a_job(speed=TwiceAsDeep(), work=1000.0)
    assert job.speed_on(p(8, 2, 4)).rate("T4", (8,), 0.0) == 8.0
    assert job.speed_on(None) is job.speed
    state = JobState(job=job, seq=0, phase=Phase.RUNNING, shape=p(8, 4, 2), runs_in=p(8, 2, 4), gpu="T4", spread=(8,))
    assert state.done_at(10.0) == 80.0  # by what it runs in, not by what it was promised


def test_a_model_that_knows_no_grids_trains_in_one_part_alone():
    job = a_job(speed=Linear())
    assert job.speed_on(p(4, 4, 1)) is job.speed_on(p(4)) is job.speed
    deep = job.speed_on(p(4, 2, 2))
    assert deep.rate("T4", (4,), 0.0) == 0.0
    assert deep.seconds("T4", (4,), 1.0, 2.0) == math.inf
    assert deep.work("T4", (4,), 1.0, 9.0) == 1.0


def test_the_rest_of_a_pause_survives_a_loss_and_ends_with_the_next_change():
    driver = running(3, p(3), resumes_s=30.0)
    state = driver.kernel.jobs["a"]
    assert (state.pause_left_s(10.0), state.pause_left_s(40.0)) == (20.0, 0.0)
    driver.tell(NodeLost(10.0, "n1"))
    driver.tell(NodeLost(10.0, "n2"))
    assert driver.kernel.jobs["a"].phase is Phase.BROKEN
    assert driver.kernel.jobs["a"].pause_left_s(25.0) == 20.0
    (move,) = driver.plan(Plan(shapes={"a": p(1)}))
    driver.answer(move)
    assert driver.kernel.jobs["a"].left_s == 0.0


def test_other_nodes_on_demand_are_an_order_to_workers_that_sit_in_a_grid_and_to_nobody_else():
    for grid in (None, Grid(2, 2)):
        ordered, now = Shape("p", 4, grid=grid), Shape("p", 4, steady=2, grid=grid)
        assert as_ordered(ordered, now) == (grid is None)
        assert as_ordered(now, now)
    assert not as_ordered(Shape("p", 4), Shape("p", 5, steady=2))


def test_spares_are_the_first_to_go():
    driver = running(5, p(5, 2, 2), speed=TwiceAsDeep())
    before = [node for node, _ in driver.kernel.tenancy.placement["a"]]
    (move,) = [order for order in driver.plan(Plan(shapes={"a": p(4, 2, 2)})) if isinstance(order, ResizeJob)]
    assert [node for node, _ in move.placement] == before[:4]


def test_survivors_of_a_grid_wait_for_a_plan():
    driver = Driver([an_offer("o", gpus=1, pool="p", boot_s=500.0)])
    driver.submit(a_job("a", gpus=4, min_gpus=1, speed=TwiceAsDeep()))
    driver.plan(Plan(hold={"o": 4}, shapes={"a": p(4, 2, 2)}))
    for order in list(driver.open):
        driver.answer(order)
    for order in list(driver.open):
        driver.answer(order)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert not any(isinstance(order, ResizeJob) for order in driver.tell(NodeLost(driver.now_s, "n1")))


@pytest.mark.parametrize(("market", "refused"), [(Market.SPOT, True), (Market.ON_DEMAND, False)])
def test_gpus_on_demand_are_promised_only_where_there_are_some(market, refused):
    driver = Driver([an_offer("o", pool="p", market=market)])
    driver.submit(a_job("a", gpus=4))
    plan = Plan(hold={"o": 1}, shapes={"a": Shape("p", 4, steady=2)})
    if refused:
        driver.expect_refusal(plan)
    else:
        driver.plan(plan)
        assert driver.kernel.jobs["a"].shape == Shape("p", 4, steady=2)


def test_what_is_left_of_a_pause_is_counted_from_the_loss_and_not_from_the_notice():
    driver = running(2, p(2), resumes_s=30.0)
    driver.tell(NodeNoticed(5.0, "n1", 20.0))
    driver.tell(NodeLost(20.0, "n1"))
    assert driver.kernel.jobs["a"].pause_left_s(20.0) == 10.0


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        ({"pool": "p", "gpus": 9, "batch": None, "stages": 1}, Shape("p", 9)),
        ({"pool": "p", "gpus": 9, "batch": 64, "stages": 4}, Shape("p", 9, grid=Grid(2, 4), batch=64)),
        ({"pool": "p", "gpus": 2, "batch": None, "stages": 4}, Shape("p", 2)),  # no pipeline fits
    ],
)
def test_a_log_that_says_stages_still_reads(words, shape):
    assert from_plain(Shape, words) == shape
    assert from_plain(Shape, to_plain(shape)) == shape


# ---------------------------------------------------------------------- a steady part


def on_both(shape, hold):
    """A driver with one job in this shape, on nodes of one GPU of both markets."""
    driver = Driver([an_offer("s", gpus=1, pool="p"), an_offer("d", gpus=1, pool="p", market=Market.ON_DEMAND)])
    driver.submit(a_job("a", gpus=shape.gpus, max_gpus=99, min_gpus=1, speed=TwiceAsDeep(), work=1e9))
    driver.plan(Plan(hold=hold, shapes={"a": shape}))
    while driver.open:
        driver.answer(driver.open[0])
    return driver


def seated(driver):
    kernel = driver.kernel
    return kernel.cluster.seats(kernel.tenancy.placement["a"], kernel.jobs["a"].runs_in.grid)


def test_the_steady_part_of_a_grid_is_one_whole_copy():
    driver = on_both(Shape("p", 7, steady=2, grid=Grid(3, 2)), {"s": 5, "d": 2})
    on_demand = [places for node, places in seated(driver).items() if driver.kernel.cluster.nodes[node].offer.id == "d"]
    assert sorted(on_demand) == [((0, 0),), ((0, 1),)]


@pytest.mark.parametrize(("steady", "phase"), [(2, Phase.RUNNING), (0, Phase.BROKEN)])
def test_losing_a_spare_alone_does_not_break_a_job_that_knows_who_sits_where(steady, phase):
    driver = on_both(Shape("p", 5, steady=steady, grid=Grid(2, 2)), {"s": 5 - steady, "d": steady})
    (spare,) = [node for node, places in seated(driver).items() if places == (None,)]
    driver.tell(NodeLost(10.0, spare))
    state = driver.kernel.jobs["a"]
    assert (state.phase, state.gpus) == (phase, 4)
    if phase is Phase.RUNNING:
        assert state.done_at(20.0) == 80.0  # two parts at two a second each, from the start
        driver.plan(Plan(shapes={"a": Shape("p", 5, steady=2, grid=Grid(2, 2))}))
        while driver.open:
            driver.answer(driver.open[0])
        assert driver.kernel.jobs["a"].gpus == 5  # another spare came


def test_losing_a_member_breaks_it():
    driver = on_both(Shape("p", 5, steady=2, grid=Grid(2, 2)), {"s": 3, "d": 2})
    member = next(n for n, places in seated(driver).items() if places[0] == (1, 0))
    driver.tell(NodeLost(10.0, member))
    assert driver.kernel.jobs["a"].phase is Phase.BROKEN


def test_the_rest_of_a_pause_is_as_long_when_a_spare_is_lost_during_it():
    driver = Driver([an_offer("s", gpus=1, pool="p"), an_offer("d", gpus=1, pool="p", market=Market.ON_DEMAND)])
    driver.submit(a_job("a", gpus=3, speed=TwiceAsDeep()))
    driver.plan(Plan(hold={"s": 2, "d": 1}, shapes={"a": Shape("p", 3, steady=1, grid=Grid(2, 1))}))
    for order in [o for o in driver.open if not isinstance(o, StartJob)]:
        driver.answer(order)
    (start,) = driver.open
    driver.tell(JobStarted(0.0, "a", start.generation, 0.0, 30.0))
    (spare,) = [node for node, places in seated(driver).items() if places == (None,)]
    driver.tell(NodeLost(10.0, spare))
    assert driver.kernel.jobs["a"].pause_left_s(12.0) == 18.0
