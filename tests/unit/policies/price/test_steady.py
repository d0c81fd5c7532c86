"""Who keeps a place in a short pool, who gives way, and the least surcharge: by hand, and beside trying."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Price as Usd
from sublet.domain.plan import JobState, arrival
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import ask
from sublet.policies.price.congestion import WAIT, Wishes, _by_gain, _pinned, _steady, _surcharge
from sublet.policies.price.decision import Decision, LeastWork, _as_money_lasts, _in_line
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

INF = math.inf


def wishes(cost, gpus, row=None, use=None):
    cost, gpus = np.array(cost, dtype=float), np.array(gpus, dtype=float)
    row = np.zeros(cost.shape, dtype=int) if row is None else np.array(row)
    use = gpus if use is None else np.array(use, dtype=float)
    return Wishes(row_J=np.arange(len(cost)), cost_JC=cost, row_KJC=row[None], gpus_KJC=gpus[None], use_KJC=use[None])


WIDTHS = [[1, 2, 4]] * 3
COSTS = [[9.0, 6.0, 5.0], [9.0, 6.0, 3.0], [9.0, 7.0, 6.5]]
FIRST = np.array([0.0, 1.0, 2.0])  # in rank


def steady(held, most, rank=FIRST, cost=COSTS):
    return _steady(wishes(cost, WIDTHS), np.array(held), rank, np.array([float(most)])).tolist()


def test_those_who_run_stay_and_others_take_what_is_left():
    assert steady([1, 1, WAIT], 5) == [1, 1, 0]
    assert steady([1, 1, WAIT], 4) == [1, 1, WAIT]  # nobody makes room for it
    assert steady([WAIT, WAIT, 1], 3) == [0, WAIT, 1]  # who runs comes before who does not, whatever the rank


def test_where_there_is_too_little_room_the_last_in_rank_give_way():
    assert steady([1, 1, 1], 6) == [1, 1, 1]
    assert steady([1, 1, 1], 5) == [1, 1, 0]
    assert steady([1, 1, 1], 4) == [1, 1, WAIT]
    assert steady([1, 1, 1], 4, rank=-FIRST) == [WAIT, 1, 1]


def test_what_is_left_over_goes_to_whom_it_is_worth_most():
    """Two more: the second saves 3 by them, the first 1, the third 0.5."""
    assert steady([1, 1, 1], 8) == [1, 2, 1]
    assert steady([1, 1, 1], 10) == [2, 2, 1]
    assert steady([1, 1, 1], 12) == [2, 2, 2]


def test_what_cannot_run_any_more_is_not_kept():
    lost = [[INF, 6.0, 5.0], *COSTS[1:]]
    assert steady([0, 1, WAIT], 5, cost=lost) == [1, 1, 0]


def test_who_waits_comes_first_then_who_gains_most_by_what_there_is_room_for():
    every, column = wishes(COSTS, WIDTHS), np.array([1, 1, WAIT])

    def places(most):
        return _by_gain(every, column, FIRST, np.array([float(most)])).tolist()

    assert places(6) == [2.0, 1.0, 0.0]  # two more: the second saves 3, the first 1
    assert places(4) == [1.0, 2.0, 0.0]  # no room for either: by rank
    tied = _by_gain(wishes([COSTS[0]] * 3, WIDTHS), np.array([1, 1, 1]), np.array([2.0, 0.0, 1.0]), np.array([99.0]))
    assert tied.tolist() == [2.0, 0.0, 1.0]


def test_pinned_jobs_shrink_in_their_own_pool_so_that_fewer_wait():
    """Two pools of two; the first runs on two of the one, cheaper elsewhere, and the second can run there alone."""
    cost = [[6.0, 5.0, 1.0, 1.0], [6.0, 5.0, INF, INF]]
    every = wishes(cost, [[1, 2, 1, 2]] * 2, row=[[0, 0, 1, 1]] * 2)
    held, most = np.array([1, WAIT]), np.array([2.0, 2.0])
    assert _pinned(every, held, np.array([0.0, 1.0]), most).tolist() == [0, 0]
    free = _pinned(every, np.array([WAIT, WAIT]), np.array([0.0, 1.0]), most).tolist()
    assert free[0] in (2, 3)  # who has no place goes where it is cheapest
    assert free[1] == 1


def test_the_surcharge_is_the_least_at_which_the_short_rows_suffice():
    """Beside trying: of two rows one is short; what is wanted of the other carries none."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        shape = (4, 5)
        row, gpus = rng.integers(0, 2, shape), rng.integers(1, 6, shape).astype(float)
        cost, use = rng.uniform(1, 20, shape), gpus * rng.uniform(0.5, 4, shape)
        every, most = wishes(cost, gpus, row, use), np.array([float(rng.integers(1, 9)), 5.0])

        def wanted(surcharge, cost=cost, use=use, row=row, gpus=gpus):
            best = (cost + np.where(row == 0, surcharge * use, 0.0)).argmin(axis=1)
            jobs = np.arange(len(best))
            return gpus[jobs, best][row[jobs, best] == 0].sum()

        if wanted(0.0) <= most[0]:
            continue
        found = _surcharge(every, np.array([True, False]), most)
        if wanted(1e9) > most[0]:
            assert wanted(found) == wanted(1e9)  # beyond it nothing changes
        else:
            assert wanted(found) <= most[0]
            assert wanted(found / 1.0021) > most[0] or found <= 1e-3


# ---------------------------------------------------------------------- who is asked


def linear(job_id, hours, submit_s=0.0):
    return a_job(job_id, submit_s=submit_s, work=3600.0 * hours, gpus=1, max_gpus=1)


def test_those_who_came_too_long_ago_are_first_in_line_then_the_least_work():
    driver = Driver([an_offer("o", gpus=1, pool="p")], limits={"o": Limit(max_nodes=4)})
    for name, hours, submit_s in (
        ("old", 9.0, 100.0),
        ("older", 7.0, 100.0),
        ("newer", 3.0, 400.0),
        ("new", 1.0, 400.0),
    ):
        driver.now_s = submit_s
        driver.submit(linear(name, hours, submit_s))
    driver.kernel.now_s = 500.0
    terms = Terms.from_snapshot(driver.kernel.snapshot())

    def line(patience_s, rank=None):
        orders = terms.snapshot.waiting.orders(arrival, rank or LeastWork(terms.sites))
        found = _in_line(terms, *orders, patience_s)
        return [state.job.id for state in found]

    assert line(math.inf) == ["new", "newer", "older", "old"]
    assert line(399.0) == ["old", "older", "new", "newer"]
    assert line(400.0) == ["new", "newer", "older", "old"]  # for as long as that is not too long
    assert line(0.0) == ["old", "older", "newer", "new"]
    assert line(math.inf, rank=arrival) == ["old", "older", "newer", "new"]


def test_a_purse_is_for_as_many_as_it_sees_to_their_end_and_one_more():
    """Each needs 2 USD to its end, at 1 USD an hour."""
    driver = Driver([an_offer("o", gpus=1, usd_per_h="1", pool="p")], limits={"o": Limit(max_nodes=9)})
    driver.submit(*(linear(f"j{at}", 2.0) for at in range(6)))
    terms = Terms.from_snapshot(driver.kernel.snapshot())
    states = [JobState(job=linear(f"j{at}", 2.0), seq=at) for at in range(6)]

    def affordable(left_usd):
        return len(list(_as_money_lasts(terms, iter(states), left_usd)))

    assert [affordable(left_usd) for left_usd in (-0.1, 0.0, 1.9, 2.1, 4.1, 99.0)] == [0, 1, 1, 2, 3, 6]


def test_only_where_each_has_its_own_value_of_time_the_rent_of_a_boot_is_weighed():
    """Two hours are left here for 2 USD an hour; there they cost 1, and a node boots for an hour that is paid."""
    here = an_offer("here", gpus=1, usd_per_h="2", pool="here")
    there = an_offer("there", gpus=1, usd_per_h="1", pool="there", boot_s=3600.0)
    asked = []
    for budget in (Budget(), Budget(average=Usd.from_usd_per_h("5"))):
        driver = Driver([here, there], limits={"here": Limit(max_nodes=4)}, budget=budget)
        driver.submit(replace(linear("a", 2.0), pools=("here",)))
        driver.settle(Price())
        state = driver.kernel.snapshot().active["a"]
        free = replace(state, job=replace(state.job, pools=()))
        now = replace(driver.kernel.snapshot(), active={"a": free})
        terms = Terms.from_snapshot(now)
        decision = Decision.read(terms, value_of_time(terms, hour_usd=None).over, review_s=60.0)
        found, _ = ask(decision, decision.jobs)
        options = found.table.of(0)
        shape = next(shape for shape in options.menu.shapes if shape.pool == "there")
        at = options.menu.column[shape]
        asked.append(options.cost_C[at] - options.value_of_time * options.hours_C[at])
    with_boots, without = asked
    assert with_boots >= without + 1.0  # at least an hour of a node there
