"""Plans through phases against the enumeration of all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sublet.solve.phases import NOT_STARTED, Phases, best_plans
from sublet.solve.plan_book import plan_book
from sublet.solve.price import frontier
from tests.rigs.plan_search import best_for_budget

TINY = 1e-300  # a value of time of 0 buys without bound
amounts = st.one_of(st.integers(0, 6).map(float), st.floats(1e-2, 1e2))
positive = st.one_of(st.integers(1, 4).map(float), st.floats(1e-2, 1e2))
fractions = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))


@st.composite
def problems(draw):
    """Up to three classes with up to three phases and configurations, as keyword arguments, and rates."""
    classes, phases, configs = (draw(st.integers(1, 3)) for _ in range(3))

    def several(of, *shape):
        count = math.prod(shape)
        return np.array(draw(st.lists(of, min_size=count, max_size=count))).reshape(shape)

    time = several(st.one_of(amounts, amounts, amounts, st.just(math.inf)), classes, phases, configs)
    time[:, :, draw(st.integers(0, configs - 1))] = several(amounts, classes, phases)  # one way through for all
    facts = {
        "time_IEC": time,
        "rent_IC": several(amounts, classes, configs),
        "restart": several(amounts, classes, configs),
        "start": several(amounts, classes, configs),
        "current": several(st.integers(NOT_STARTED, configs - 1), classes),
        "weight": several(positive, classes),
    }
    return facts, several(positive, classes)


def all_plans(facts, row):
    """(time, money) of every plan of one class, added up step by step."""
    time_EC, rent, current = facts["time_IEC"][row], facts["rent_IC"][row], facts["current"][row]
    for plan in itertools.product(range(time_EC.shape[1]), repeat=len(time_EC)):
        time = money = 0.0
        before = current
        for phase, config in enumerate(plan):
            spent = time_EC[phase, config]
            if before == NOT_STARTED:
                spent += facts["start"][row, config]
            elif before != config:
                spent += facts["restart"][row, config]
            time, money, before = time + spent, money + (spent * rent[config] if spent < math.inf else math.inf), config
        if time < math.inf:
            yield time, money


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@given(problem=problems(), value=st.one_of(st.integers(1, 5).map(float), st.floats(1e-3, 1e3)))
def test_no_plan_is_better_at_a_value_of_time(problem, value):
    facts, _ = problem
    found = best_plans(Phases.from_tables(**facts), value)
    for row, weight in enumerate(facts["weight"]):
        best = min(weight * value * time + money for time, money in all_plans(facts, row))
        assert weight * value * found.time_I[row] + found.cost_I[row] == close(best)


@given(problem=problems())
def test_at_the_ends_it_is_the_cheapest_and_the_fastest(problem):
    facts, _ = problem
    phases = Phases.from_tables(**facts)
    cheap, fast = best_plans(phases, 0.0), best_plans(phases, math.inf)
    for row in range(len(facts["weight"])):
        plans = np.array(list(all_plans(facts, row)))
        assert cheap.cost_I[row] == close(plans[:, 1].min())
        assert fast.time_I[row] == close(plans[:, 0].min())
        assert (cheap.time_I[row], cheap.cost_I[row]) in plans_near(plans)
        assert (fast.time_I[row], fast.cost_I[row]) in plans_near(plans)


def plans_near(plans):
    """Membership up to rounding."""

    class Near:
        def __contains__(self, point):
            return bool((np.abs(plans - point) <= 1e-9 * (1 + np.abs(plans))).all(axis=1).any())

    return Near()


@given(problem=problems(), fraction=fractions)
def test_a_linear_program_over_all_plans_finds_nothing_better(problem, fraction):
    facts, rates = problem
    phases = Phases.from_tables(**facts)
    ends = best_for_budget(phases, rates, 1e12)
    budget = ends.least + fraction * (ends.most - ends.least)
    plans = [np.array(list(all_plans(facts, row))) for row in range(len(rates))]
    owner = np.repeat(np.arange(len(rates)), [len(some) for some in plans])
    everything = np.concatenate(plans)
    found = linprog(
        (rates * facts["weight"])[owner] * everything[:, 0],
        A_ub=(rates[owner] * everything[:, 1])[None],
        b_ub=[budget * (1 + 1e-12) + 1e-12],
        A_eq=(owner == np.arange(len(rates))[:, None]).astype(float),
        b_eq=np.ones(len(rates)),
        method="highs-ds",
    )
    assume(found.status == 0)
    ours = best_for_budget(phases, rates, budget)
    overdraft = max(1.0, budget) / max(ours.value_of_time, TINY)  # it may overdraw the budget by its tolerance
    assert ours.jobs == pytest.approx(found.fun, rel=1e-8, abs=1e-8 * (1 + overdraft))
    assert ours.spend <= budget * (1 + 1e-9) + 1e-9
    looked_up = frontier(plan_book(phases).curves, rates)
    again = looked_up.at(max(budget, looked_up.least))
    assert again.jobs == pytest.approx(ours.jobs, rel=1e-8, abs=1e-8 * (1 + overdraft))


@given(problem=problems(), shares=st.lists(fractions, min_size=2, max_size=4))
def test_more_budget_is_never_slower(problem, shares):
    facts, rates = problem
    phases = Phases.from_tables(**facts)
    ends = best_for_budget(phases, rates, 1e12)
    found = [best_for_budget(phases, rates, ends.least + s * (ends.most - ends.least)) for s in sorted(shares)]
    for before, after in itertools.pairwise(found):
        assert after.jobs <= before.jobs * (1 + 1e-9)


@given(problem=problems(), done=st.floats(0.0, 3.0), value=positive)
def test_what_is_left_costs_no_more_than_the_whole(problem, done, value):
    facts, _ = problem
    facts["current"] = np.zeros_like(facts["current"])
    whole = Phases.from_tables(**facts)
    left = best_plans(whole.after(np.full(len(whole), done), current=facts["current"]), value)
    all_of_it = best_plans(whole, value)
    cost = [facts["weight"] * value * plans.time_I + plans.cost_I for plans in (left, all_of_it)]
    assert (cost[0] <= cost[1] * (1 + 1e-9) + 1e-9).all()
