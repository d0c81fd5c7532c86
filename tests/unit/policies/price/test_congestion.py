"""Shapes that fit: within what there is, what each wants at the surcharge, and nobody waits without need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import JobState
from sublet.kernel.kernel import Kernel
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of_all
from sublet.planning.terms import Terms
from sublet.policies.price.congestion import WAIT, Wishes, _fill, _trim, fit, wishes
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

NEAR = 1 + 1e-3  # how near the least surcharge is found
MIXED = 3  # rows: a pool, and the markets of another
WIDTHS = np.array([1.0, 2.0, 3.0, 4.0])


@st.composite
def any_wishes(draw, *, most_jobs=5, pools=None):
    """Tables of whole numbers, full of ties; every job can run in at least one shape.

    Of three rows the last two are the markets of one pool, and shapes there may use both.
    """
    jobs, shapes, pools = draw(st.integers(1, most_jobs)), draw(st.integers(1, 4)), pools or draw(st.integers(1, 3))
    size = (jobs, shapes)

    def table(numbers, kind=np.float64):
        return np.array([draw(numbers) for _ in range(jobs * shapes)], dtype=kind).reshape(size)

    cost_JC, gpus_JC, row_JC = table(st.integers(1, 20)), table(st.integers(1, 6)), table(st.integers(0, 1), np.intp)
    row_JC = np.minimum(row_JC, pools - 1)
    row_KJC, gpus_KJC = row_JC[None], gpus_JC[None]
    if pools == MIXED:
        steady_JC = np.where(row_JC == 1, np.minimum(gpus_JC, table(st.integers(0, 6))), 0.0)
        row_KJC, gpus_KJC = np.array([row_JC, np.where(row_JC == 1, 2, 0)]), np.array([gpus_JC - steady_JC, steady_JC])
    stuck_JC = table(st.sampled_from([False, False, True]), np.bool_)
    stuck_JC[:, draw(st.integers(0, shapes - 1))] = False
    use_KJC = np.where(stuck_JC, 0.0, gpus_KJC * table(st.integers(1, 5)))
    every = Wishes(
        row_J=np.arange(jobs),
        cost_JC=np.where(stuck_JC, np.inf, cost_JC),
        row_KJC=row_KJC,
        gpus_KJC=gpus_KJC,
        use_KJC=use_KJC,
    )
    rank_J = np.array([draw(st.integers(0, 3)) for _ in range(jobs)], dtype=np.float64)
    most_R = np.array([draw(st.integers(0, 15)) for _ in range(pools)], dtype=np.float64)
    return every, rank_J, most_R


@given(any_wishes(), st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=3, max_size=3))
def test_a_surcharge_is_paid_for_what_is_used_of_its_row_and_of_no_other(asked, surcharges):
    every, _, most_R = asked
    found_JC = every.scarce(np.array(surcharges[: len(most_R)]))
    for place, found in np.ndenumerate(found_JC):
        rows, uses = every.row_KJC[:, *place], every.use_KJC[:, *place]
        assert found == sum(surcharges[row] * use for row, use in zip(rows, uses, strict=True))


@st.composite
def concave_wishes(draw, *, pools=1, most_jobs=6):
    """Jobs that can all run on one GPU of any pool, and that need the fewest GPU-hours there."""
    jobs = draw(st.integers(1, most_jobs))
    cost, use = np.empty((jobs, 4 * pools)), np.empty((jobs, 4 * pools))
    for job in range(jobs):
        for pool in range(pools):
            work, value = draw(st.sampled_from([1.0, 3.0, 10.0])), draw(st.sampled_from([0.1, 1.0, 5.0, 40.0]))
            hours = work / WIDTHS ** draw(st.sampled_from([0.2, 0.5, 0.8]))
            at = slice(4 * pool, 4 * pool + 4)
            cost[job, at], use[job, at] = (value + WIDTHS) * hours, WIDTHS * hours
    every = Wishes(
        row_J=np.arange(jobs),
        cost_JC=cost,
        row_KJC=np.tile(np.repeat(np.arange(pools), 4), (1, jobs, 1)),
        gpus_KJC=np.tile(WIDTHS, (1, jobs, pools)),
        use_KJC=use[None],
    )
    return every, np.array([draw(st.integers(0, 5)) for _ in range(jobs)], dtype=np.float64)


def used(every, column_J, pools):
    """GPUs taken of each pool, added up one by one."""
    gpus_R = np.zeros(pools)
    for job, column in enumerate(column_J):
        if column != WAIT:
            for row, gpus in zip(every.row_KJC[:, job, column], every.gpus_KJC[:, job, column], strict=True):
                gpus_R[row] += gpus
    return gpus_R


def wanted(every, surcharge_R):
    """The least total of each job at these surcharges, and the column where it is."""
    total_JC = every.cost_JC + sum(
        surcharge_R[row] * use for row, use in zip(every.row_KJC, every.use_KJC, strict=True)
    )
    return total_JC.min(axis=1), total_JC.argmin(axis=1)


# ---------------------------------------------------------------------- any tables at all


@settings(max_examples=examples(150))
@given(any_wishes())
def test_what_is_given_fits_and_everybody_who_runs_can_run_so(case):
    every, rank_J, most_R = case
    found = fit(every, rank_J, most_R)
    assert (used(every, found.column_J, len(most_R)) <= most_R).all()
    for job, column in enumerate(found.column_J):
        assert column == WAIT or np.isfinite(every.cost_JC[job, column])
    assert (found.surcharge_R >= 0).all()


@given(any_wishes())
def test_where_there_is_enough_each_has_what_suits_it_best_at_no_surcharge(case):
    every, rank_J, most_R = case
    found = fit(every, rank_J, most_R + 100)
    assert found.column_J.tolist() == every.cost_JC.argmin(axis=1).tolist()
    assert (found.surcharge_R == 0).all()


@settings(max_examples=examples(150))
@given(any_wishes())
def test_each_has_what_it_wants_at_the_surcharge_or_what_was_left_over_for_it(case):
    """Only a last filling may give a job something else, which is then better for it without the surcharge."""
    every, rank_J, most_R = case
    found = fit(every, rank_J, most_R)
    least_J, column_J = wanted(every, found.surcharge_R)
    if (used(every, column_J, len(most_R)) > most_R).any():
        return  # no surcharge makes it fit: what follows is by rank
    for job, column in enumerate(found.column_J):
        scarce = found.surcharge_R[every.row_KJC[:, job, column]] @ every.use_KJC[:, job, column]
        total = every.cost_JC[job, column] + scarce
        assert column != WAIT
        assert total <= least_J[job] * (1 + 1e-9) or every.cost_JC[job, column] < every.cost_JC[job, column_J[job]]


@settings(max_examples=examples(150))
@given(any_wishes(pools=1))
def test_one_pool_has_the_least_surcharge_at_which_the_wishes_fit(case):
    """Between the surcharges at which some job changes its mind nothing happens, so that a few tell about all."""
    every, rank_J, most_R = case
    cost, use = every.cost_JC, every.use_KJC[0]
    turns = {0.0}
    for job in range(len(cost)):
        for one in range(cost.shape[1]):
            for other in range(cost.shape[1]):
                if np.isfinite(cost[job, [one, other]]).all() and use[job, one] > use[job, other]:
                    turns.add((cost[job, other] - cost[job, one]) / (use[job, one] - use[job, other]))
    tries = sorted(turn for turn in turns if turn >= 0)
    tries = sorted([*tries, *np.add(tries, 1e-9), tries[-1] + 1.0])
    fitting = [t for t in tries if (used(every, wanted(every, np.array([t]))[1], 1) <= most_R).all()]
    found = fit(every, rank_J, most_R)
    if fitting:
        assert WAIT not in found.column_J
        assert found.surcharge_R[0] <= fitting[0] * NEAR + 1e-4
        assert (found.surcharge_R[0] > 0) == (fitting[0] > 0)
        assert (used(every, wanted(every, found.surcharge_R)[1], 1) <= most_R).all()  # and no less


@given(any_wishes(), st.integers(0, 2))
def test_a_row_of_which_there_is_enough_has_no_surcharge(case, row):
    every, rank_J, most_R = case
    most_R[row % len(most_R)] = 100.0
    assert fit(every, rank_J, most_R).surcharge_R[row % len(most_R)] == 0.0


def test_who_is_pushed_out_of_one_row_may_make_another_one_short():
    """All want two of the first, which has two; the second has as many, and there are three of them."""
    gpus_KJC = np.array([[[2.0, 1.0, 2.0, 1.0]] * 3])
    every = Wishes(
        row_J=np.arange(3),
        cost_JC=np.array([[1.0, 6.0, 1.1, 6.1]] * 3),
        row_KJC=np.array([[[0, 0, 1, 1]] * 3]),
        gpus_KJC=gpus_KJC,
        use_KJC=gpus_KJC,
    )
    found = fit(every, np.arange(3.0), np.array([2.0, 2.0]))
    assert found.surcharge_R[0] == found.surcharge_R[1] > 0.0
    assert sorted(every.gpus_KJC[0, np.arange(3), found.column_J].tolist()) == [1.0, 1.0, 2.0]
    wide = fit(every, np.arange(3.0), np.array([2.0, 6.0]))
    assert wide.surcharge_R[0] > 0.0 == wide.surcharge_R[1]


@given(any_wishes())
def test_nobody_waits_for_whom_there_is_room(case):
    every, rank_J, most_R = case
    found = fit(every, rank_J, most_R)
    room_R = most_R - used(every, found.column_J, len(most_R))
    for job in np.flatnonzero(found.column_J == WAIT):
        for column in np.flatnonzero(np.isfinite(every.cost_JC[job])):
            needs = zip(every.row_KJC[:, job, column], every.gpus_KJC[:, job, column], strict=True)
            assert any(gpus > room_R[row] for row, gpus in needs)


@given(any_wishes())
def test_the_order_in_which_jobs_are_listed_does_not_matter_if_their_ranks_differ(case):
    every, _, most_R = case
    rank_J = np.arange(len(every.row_J), dtype=np.float64)
    back = slice(None, None, -1)
    turned = Wishes(
        row_J=every.row_J,
        cost_JC=every.cost_JC[back],
        row_KJC=every.row_KJC[:, back],
        gpus_KJC=every.gpus_KJC[:, back],
        use_KJC=every.use_KJC[:, back],
    )
    assert fit(turned, rank_J[back], most_R).column_J[back].tolist() == fit(every, rank_J, most_R).column_J.tolist()


def test_what_is_left_over_of_either_market_is_given_once():
    """Two jobs on a spot GPU each; with two more on demand each would cost less, and there are three."""
    gpus_KJC = np.array([[[1.0, 1.0]] * 2, [[0.0, 2.0]] * 2])
    every = Wishes(
        row_J=np.arange(2),
        cost_JC=np.array([[9.0, 4.0]] * 2),
        row_KJC=np.array([[[0, 0]] * 2, [[1, 1]] * 2]),
        gpus_KJC=gpus_KJC,
        use_KJC=gpus_KJC,
    )
    rank_J, most_R = np.array([1.0, 0.0]), np.array([2.0, 3.0])
    assert _fill(every, np.array([0, 0]), rank_J, most_R).tolist() == [0, 1]
    assert _trim(every, np.array([1, 1]), rank_J, most_R).tolist() == [0, 1]


@settings(max_examples=examples(120))
@given(any_wishes(), st.integers(0, 4**5 - 1))
def test_what_is_left_over_is_given_one_after_the_other_in_order_of_rank(case, which):
    every, rank_J, most_R = case
    jobs, shapes = every.cost_JC.shape
    wanted_J = np.array([(which >> 2 * job) % 4 % (shapes + 1) - 1 for job in range(jobs)])
    column_J = _trim(every, wanted_J, rank_J, most_R)
    filled_J, room_R = _fill(every, column_J, rank_J, most_R), most_R - every.gpus(column_J, len(most_R))
    for job, fits_C in enumerate(every.fits_beside(column_J, room_R)):
        own_R = room_R.copy()
        every.take(job, column_J[job], own_R, -1.0)
        assert fits_C.tolist() == every.fits(job, own_R).tolist()
    for job in np.argsort(rank_J, kind="stable").tolist():
        every.take(job, column_J[job], room_R, -1.0)
        cost_C = np.where(every.fits(job, room_R), every.cost_JC[job], np.inf)
        if cost_C.min() < (np.inf if column_J[job] == WAIT else every.cost_JC[job, column_J[job]]):
            column_J[job] = cost_C.argmin()
        every.take(job, column_J[job], room_R)
    assert filled_J.tolist() == column_J.tolist()


def test_what_one_leaves_as_it_moves_is_given_to_the_next():
    """The first goes to the other pool, and the second, for whom there was no room, grows into what it left."""
    gpus_KJC = np.array([[[1.0, 1.0], [1.0, 2.0]]])
    every = Wishes(
        row_J=np.arange(2),
        cost_JC=np.array([[9.0, 4.0]] * 2),
        row_KJC=np.array([[[0, 1], [0, 0]]]),
        gpus_KJC=gpus_KJC,
        use_KJC=gpus_KJC,
    )
    assert _fill(every, np.array([0, 0]), np.array([0.0, 1.0]), np.array([2.0, 1.0])).tolist() == [1, 1]


# ---------------------------------------------------------------------- jobs that can all run on one GPU


@settings(max_examples=examples(120))
@given(concave_wishes(), st.integers(0, 24))
def test_as_many_run_as_there_are_gpus_and_the_first_in_rank_do(case, gpus):
    every, rank_J = case
    found = fit(every, rank_J, np.array([float(gpus)]))
    runs_J = found.column_J != WAIT
    assert runs_J.sum() == min(len(rank_J), gpus)
    if not runs_J.all():
        assert rank_J[runs_J].max(initial=-1.0) <= rank_J[~runs_J].min()


@settings(max_examples=examples(120))
@given(concave_wishes(), st.integers(0, 20), st.integers(1, 5))
def test_more_gpus_make_nobody_wait_who_did_not(case, gpus, more):
    every, rank_J = case
    few, many = (fit(every, rank_J, np.array([float(count)])) for count in (gpus, gpus + more))
    assert ((few.column_J == WAIT) | (many.column_J != WAIT)).all()
    assert many.surcharge_R[0] <= few.surcharge_R[0] * NEAR


@pytest.mark.parametrize(("count", "here", "there"), [(3, 1, 2), (4, 2, 2), (8, 4, 4)])
def test_nobody_waits_where_two_pools_together_have_a_gpu_for_everybody(count, here, there):
    hours_C = WIDTHS**-0.5
    every = Wishes(
        row_J=np.arange(count),
        cost_JC=np.tile((40 + WIDTHS) * hours_C, (count, 2)),
        row_KJC=np.tile(np.repeat([0, 1], 4), (1, count, 1)),
        gpus_KJC=np.tile(WIDTHS, (1, count, 2)),
        use_KJC=np.tile(WIDTHS * hours_C, (1, count, 2)),
    )
    assert WAIT not in fit(every, np.zeros(count), np.array([float(here), float(there)])).column_J


@pytest.mark.parametrize("longer", [0.0, 0.1])
def test_eight_gpus_in_two_pools_serve_eight_jobs_as_well_as_in_one(longer):
    """Jobs of one GPU-hour and more on at most four GPUs; the price of time sees no difference between the pools."""
    jobs = [
        a_job(f"j{n}", work=3600 * (1 + longer * n), speed=PowerLaw(exponent=0.5), gpus=1, max_gpus=4) for n in range(8)
    ]
    runs = {}
    for pools in (("p",), ("p", "q")):
        offers = [an_offer(pool, gpus=1, market=Market.ON_DEMAND, pool=pool) for pool in pools]
        limits = {pool: Limit(max_nodes=8 // len(pools)) for pool in pools}
        runs[len(pools)] = simulate(jobs, Price(), Cloud(offers=offers, limits=limits)).metrics
    assert runs[2].mean_s <= 1.01 * runs[1].mean_s
    assert runs[2].usd <= 1.01 * runs[1].usd


# ---------------------------------------------------------------------- from options


def options(jobs, sites, value):
    states = [JobState(job=job, seq=0) for job in jobs]
    menus = [menu_of(job, sites) for job in jobs]
    return options_of_all(menus, states, 0.0, [value] * len(jobs), (1.0,) * len(sites))


def test_shapes_that_are_wider_than_all_that_can_be_had_are_no_wish():
    sites = Terms.from_snapshot(
        Kernel([an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]).snapshot()
    ).sites
    wide = a_job("w", work=3600.0, speed=Linear(), gpus=6, min_gpus=6, max_gpus=8)
    slim = a_job("s", work=3600.0, speed=PowerLaw(exponent=0.9), gpus=1, max_gpus=8)
    every = wishes(options([wide, slim], sites, 100.0), np.ones(2), np.array([5.0]))
    assert every.row_J.tolist() == [1]
    assert every.gpus_KJC[0, 0, every.cost_JC[0].argmin()] == 5


def test_at_twice_the_surcharge_amdahls_job_wants_what_theory_says():
    """With the rent r and the surcharge nu both per GPU-hour, the best width is sqrt(p v / ((1 - p) (r + nu)))."""
    sites = Terms.from_snapshot(
        Kernel([an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]).snapshot()
    ).sites
    job = a_job(work=3600.0, speed=Amdahl(parallel=0.8), gpus=1, max_gpus=40)
    every = wishes(options([job], sites, 144.0), np.ones(1), np.array([64.0]))
    for surcharge, width in ((0.0, 24), (3.0, 12), (8.0, 8), (35.0, 4)):
        (column,) = every.columns(np.array([surcharge]))
        assert every.gpus_KJC[0, 0, column] == width


def test_the_surcharge_of_a_job_is_in_proportion_to_the_work_that_it_has_left():
    """As above, with the surcharge of the median job times what a job has left over what that one has."""
    sites = Terms.from_snapshot(
        Kernel([an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]).snapshot()
    ).sites
    jobs = [a_job(name, work=3600.0, speed=Amdahl(parallel=0.8), gpus=1, max_gpus=40) for name in "abc"]
    every = wishes(options(jobs, sites, 144.0), 10.0 * np.array([0.375, 1.0, 4.375]), np.array([64.0]))
    for surcharge, widths in ((0.0, [24, 24, 24]), (8.0, [12, 8, 4])):
        column_J = every.columns(np.array([surcharge]))
        assert every.gpus_KJC[0, np.arange(3), column_J].tolist() == widths


# ---------------------------------------------------------------------- in a plan


def plan_for(jobs, offers, **facts):
    driver = Driver(offers, **facts)
    driver.submit(*jobs)
    return driver, Price().decide(driver.kernel.snapshot())


def test_a_job_that_nothing_can_hold_now_does_not_keep_the_next_one_waiting():
    driver = Driver([an_offer("o", gpus=4)], limits={"o": Limit(max_nodes=2)})
    driver.tell(AvailabilityChanged(0.0, "o", 1))
    driver.submit(a_job("wide", work=10.0, gpus=8, min_gpus=8), a_job("slim", work=100.0))
    driver.settle(Price())
    assert set(driver.kernel.active) == {"slim"}


def test_of_those_that_wait_the_one_with_the_least_work_is_not_overtaken():
    """Four GPUs: a first job takes three of them; of the others the one with less work gets the fourth."""
    jobs = [
        a_job("rigid", work=1.0, gpus=3, min_gpus=3),
        a_job("wider", work=2.0, gpus=2, min_gpus=2),
        a_job("short", work=3.0),
        a_job("long", work=9.0),
    ]
    _, plan = plan_for(jobs, [an_offer("o", gpus=4)], limits={"o": Limit(max_nodes=1)})
    assert set(plan.shapes) == {"rigid", "short"}


def test_of_jobs_alike_but_for_their_work_the_shorter_is_wider_where_gpus_are_short():
    """One surcharge for all would give both as much: they scale alike, and an hour of either is worth as much."""
    jobs = [
        a_job(name, work=hours * 3600.0, speed=Amdahl(parallel=0.95), gpus=1, max_gpus=16)
        for name, hours in (("long", 20.0), ("short", 5.0))
    ]
    offers = [an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]
    _, ample = plan_for(jobs, offers)
    _, tight = plan_for(jobs, offers, limits={"o": Limit(max_nodes=6)})
    assert {name: shape.gpus for name, shape in ample.shapes.items()} == {"short": 4, "long": 4}
    assert {name: shape.gpus for name, shape in tight.shapes.items()} == {"short": 4, "long": 2}


def test_under_a_burn_cap_jobs_take_the_second_best_that_can_be_paid():
    """One node of the better kind and one of the other fit the cap; there are two jobs."""
    jobs = [a_job(name, work=36_000.0, speed=Linear(kinds={"A100": 10.0, "T4": 1.0})) for name in "ab"]
    offers = [
        an_offer("a100", gpus=1, usd_per_h="5", gpu="A100", market=Market.ON_DEMAND),
        an_offer("t4", gpus=1, usd_per_h="1", gpu="T4", market=Market.ON_DEMAND),
    ]
    driver = Driver(offers, budget=Budget(burn=Usd.from_usd_per_h("6")))
    driver.submit(*jobs)
    driver.settle(Price())
    assert set(driver.kernel.active) == {"a", "b"}


PERFECT = [a_job(f"j{n}", work=36_000.0, gpus=1, max_gpus=4, speed=Linear()) for n in range(4)]  # 2.5 h on 4 GPUs


def test_a_surcharge_that_is_told_is_one_that_somebody_could_mean():
    """Jobs that scale perfectly want all GPUs at any surcharge; it cannot be far above what their time is worth."""
    _, plan = plan_for(PERFECT, [an_offer("o", gpus=4, usd_per_h="4")], limits={"o": Limit(max_nodes=1)})
    assert all(
        nu <= 1e6 * max(each.hour_usd for each in plan.weighed.values())
        for nu in plan.congestion_usd_per_gpu_h.values()
    )


def test_jobs_that_scale_perfectly_are_served_one_after_the_other():
    """Together they end after 10 h each; one after the other after 2.5, 5, 7.5 and 10 h, for the same money."""
    cloud = Cloud(offers=[an_offer("o", gpus=4, usd_per_h="4")], limits={"o": Limit(max_nodes=1)})
    run = simulate(PERFECT, Price(), cloud)
    assert run.metrics.usd == pytest.approx(40.0)
    assert run.metrics.mean_s == pytest.approx(6.25 * 3600, rel=0.01)
