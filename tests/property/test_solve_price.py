"""The price of time against slow and literal twins: a linear program, and the enumeration of all plans."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sublet.errors import Infeasible
from sublet.solve.curves import Curves, alike, lower_left
from sublet.solve.price import frontier

INF = math.inf
round_numbers = st.integers(0, 6).map(float)  # full of ties and straight lines
amounts = st.one_of(round_numbers, st.floats(1e-3, 1e3))
TINY = 1e-300  # a value of time of 0 buys without bound
entries = st.one_of(amounts, amounts, amounts, st.sampled_from([INF, math.nan]))
positive = st.one_of(st.integers(1, 4).map(float), st.floats(1e-2, 1e2))
A_FEW = st.integers(1, 4)
fractions = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))


@st.composite
def tables(draw, classes=A_FEW, most=6):
    """Time and cost of each class and configuration; each class can run at least once."""
    rows, width = draw(classes), draw(st.integers(1, most))
    time, cost = (np.array(draw(st.lists(entries, min_size=rows * width, max_size=rows * width))) for _ in "tc")
    time, cost = time.reshape(rows, width), cost.reshape(rows, width)
    for row in range(rows):
        column = draw(st.integers(0, width - 1))
        time[row, column], cost[row, column] = draw(amounts), draw(amounts)
    return time, cost


@st.composite
def problems(draw):
    time, cost = draw(tables())
    lists = st.lists(positive, min_size=len(time), max_size=len(time))
    rates = np.array(draw(lists)) * draw(st.lists(st.booleans(), min_size=len(time), max_size=len(time)))
    return time, cost, rates, np.array(draw(lists))


def linear_program(time, cost, rates, weights, budget):
    """The least weighted number of jobs when each class may mix its configurations at will."""
    runs = np.isfinite(time) & np.isfinite(cost)
    time, cost = np.where(runs, time, 0.0), np.where(runs, cost, 0.0)
    shares = np.kron(np.eye(len(time)), np.ones(time.shape[1]))
    found = linprog(
        ((rates * weights)[:, None] * time).ravel(),
        A_ub=(rates[:, None] * cost).reshape(1, -1),
        b_ub=[budget],
        A_eq=shares,
        b_eq=np.ones(len(time)),
        bounds=[(0.0, 1.0 if can else 0.0) for can in runs.ravel()],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0
    return found.fun


def pure_plans(time, cost, rates, weights):
    """Spend and jobs of every plan that mixes nothing."""
    runs = np.isfinite(time) & np.isfinite(cost)
    for plan in itertools.product(*(np.flatnonzero(row) for row in runs)):
        at = (np.arange(len(time)), np.array(plan))
        yield rates @ cost[at], (rates * weights) @ time[at]


def between(line, fraction):
    return line.least + fraction * (line.most - line.least)


def close(value, scale=1.0):
    return pytest.approx(value, rel=1e-9, abs=1e-9 * scale)


@given(problem=problems(), fraction=fractions)
def test_a_linear_program_finds_nothing_better(problem, fraction):
    time, cost, rates, weights = problem
    line = frontier(Curves.from_tables(time, cost, weights), rates)
    budget = between(line, fraction)
    scale = max(1.0, float((rates * weights) @ np.where(np.isfinite(time), time, 0.0).sum(axis=1)))
    found = line.at(budget)
    scale += max(1.0, budget) / max(found.value_of_time, TINY)  # it may overdraw the budget by its tolerance
    assert found.jobs == close(linear_program(time, cost, rates, weights, budget * (1 + 1e-12)), scale)


@given(problem=problems(), fraction=fractions)
def test_the_plans_are_what_the_sums_say_and_meet_the_budget(problem, fraction):
    time, cost, rates, weights = problem
    line = frontier(Curves.from_tables(time, cost, weights), rates)
    found = line.at(between(line, fraction))
    rows = np.arange(len(time))
    spend, jobs = (
        (1 - found.share) * (factor @ table[rows, found.poorer]) + found.share * (factor @ table[rows, found.richer])
        for factor, table in ((rates, cost), (rates * weights, time))
    )
    assert found.spend == close(spend)
    assert found.jobs == close(jobs)
    assert found.spend == close(between(line, fraction))
    assert [found.choice(row) for row in rows] == list(zip(found.poorer, found.richer, strict=True))


@given(problem=problems(), fraction=fractions)
def test_no_plan_is_better_at_the_price_found_and_none_spends_less_than_the_least(problem, fraction):
    time, cost, rates, weights = problem
    line = frontier(Curves.from_tables(time, cost, weights), rates)
    found = line.at(between(line, fraction))
    plans = np.array(list(pure_plans(time, cost, rates, weights)))
    assert line.least == close(plans[:, 0].min())
    fastest = plans[plans[:, 1] <= plans[:, 1].min() * (1 + 1e-12)]
    assert line.at(INF).jobs == close(fastest[:, 1].min())
    assert line.most == close(fastest[:, 0].min(), scale=max(1.0, plans[:, 0].max()))
    if found.binding:  # the dual: value of time x jobs + spend is least, and equal for the mixture
        value = found.value_of_time
        assert value * found.jobs + found.spend == close((value * plans[:, 1] + plans[:, 0]).min())


@given(problem=problems(), values=st.lists(st.floats(0.0, 1e4), min_size=2, max_size=5))
def test_dearer_time_is_more_spend_and_fewer_jobs(problem, values):
    time, cost, rates, weights = problem
    line = frontier(Curves.from_tables(time, cost, weights), rates)
    found = [line._sums(value, "right") for value in sorted(values)]
    for before, after in itertools.pairwise(found):
        assert after[0] >= before[0]  # spend
        assert after[1] <= before[1]  # jobs


@given(problem=problems(), fraction=fractions, extra=tables(classes=st.just(4), most=2))
def test_one_more_configuration_never_makes_it_slower(problem, fraction, extra):
    time, cost, rates, weights = problem
    line = frontier(Curves.from_tables(time, cost, weights), rates)
    wider = [np.concatenate((old, new[: len(time)]), axis=1) for old, new in zip((time, cost), extra, strict=True)]
    more = frontier(Curves.from_tables(*wider, weights), rates)
    budget = between(line, fraction)
    assert more.least <= line.least * (1 + 1e-12)
    assert more.at(budget).jobs <= line.at(budget).jobs * (1 + 1e-9) + 1e-9


@given(problem=problems(), factor=positive, fraction=fractions)
def test_twice_the_work_for_twice_the_money_is_twice_the_jobs(problem, factor, fraction):
    time, cost, rates, weights = problem
    curves = Curves.from_tables(time, cost, weights)
    line = frontier(curves, rates)
    budget = between(line, fraction)
    jobs = frontier(curves, rates * factor).at(budget * factor).jobs
    assert jobs == close(factor * line.at(budget).jobs, scale=max(1.0, jobs))


@given(table=tables())
def test_every_vertex_is_the_best_at_some_price_and_every_best_is_a_vertex(table):
    time, cost = table
    hulls = lower_left(time, cost)
    for row in range(len(time)):
        of = hulls.of(row)
        price = hulls.price_V[of]
        assert (np.diff(price) > 0).all()
        assert (np.diff(hulls.time_V[of]) < 0).all()
        assert (np.diff(hulls.cost_V[of]) > 0).all()
        runs = np.isfinite(time[row]) & np.isfinite(cost[row])
        for at, vertex in enumerate(hulls.config_V[of]):
            low, high = max(price[at], 0.0), price[at + 1] if at + 1 < len(price) else 2 * max(price[at], 1.0)
            value = (low + high) / 2
            assert value * time[row, vertex] + cost[row, vertex] <= (
                (value * time[row] + cost[row])[runs].min() * (1 + 1e-9) + 1e-12
            )


@given(table=tables(classes=st.integers(1, 3)), picks=st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_groups_hold_exactly_the_classes_that_are_alike(table, picks):
    time, cost = (part[np.array(picks) % len(part)] for part in table)
    first, group = alike(time, cost)
    rows = [(time[row].tobytes(), cost[row].tobytes()) for row in range(len(time))]
    assert [rows[first[at]] for at in group] == rows
    assert len(first) == len(set(rows))
    assert [rows.index(rows[at]) for at in first] == first.tolist()


@given(table=tables(classes=st.integers(1, 3)), row=st.integers(0, 2))
def test_a_class_that_cannot_run_is_named_whichever_it_is(table, row):
    time, cost = table
    time[row % len(time)] = INF
    with pytest.raises(Infeasible, match=f"class {row % len(time)} "):
        Curves.from_tables(time, cost)
