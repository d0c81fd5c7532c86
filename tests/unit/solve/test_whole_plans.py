"""Whole answers of solvers that look ahead, on tables of whole numbers that are full of ties, beside slow twins."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from sublet.solve.lookahead import Ahead, best_path
from sublet.solve.phases import NOT_STARTED, Phases, best_plans
from sublet.solve.plan_book import plan_book
from sublet.solve.price import frontier
from tests.rigs.plan_search import best_for_budget

# H steps, C configurations; I classes, E phases

# ---------------------------------------------------------------------- a path


def any_future(rng, *, pay):
    count, steps = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    lasts = rng.integers(2, 7, steps)
    tables = rng.integers(0, 9, (steps, count, count)).astype(float)
    tables[rng.random(tables.shape) < 0.2] = math.inf
    for table in tables:
        if rng.random() < 0.6:
            np.fill_diagonal(table, 0.0)
        table[:, 0] = 0.0  # suspended
    rate, again = rng.integers(0, 4, count).astype(float), rng.integers(0, 3, count).astype(float)
    rate[0] = 0.0
    return Ahead(
        rate_C=rate,
        pause_s=list(tables),
        step_s=lasts.astype(float).tolist(),
        again_C=again,
        pay_HC=rng.integers(0, 9, (steps, count)).astype(float) if pay else None,
    )


def path_by_hand(ahead, start, left_s):
    """The best way into each configuration, settled there or with a pause that goes on; of equals the first.

    Of two that go on in one configuration the one stays that is worth more once it is over there.
    """
    ways = {(int(left_s > 0), start): (0.0, left_s, ())}
    for step, (pauses, lasts) in enumerate(zip(ahead.pause_s, ahead.lasts_s, strict=True)):
        found = {}
        for (owes, at), (value, left, path) in sorted(ways.items()):
            for to, rate in enumerate(ahead.rate_C):
                pause = pauses[at, to]
                if owes:
                    pause = pause + ahead.again_C[to] if pause > 0 else left
                if pause == math.inf:
                    continue
                pay = 0.0 if ahead.pay_HC is None else ahead.pay_HC[step, to]
                kept = (value + rate * max(lasts - pause, 0.0) - pay, max(pause - lasts, 0.0), (*path, to))
                key = int(pause > lasts), to
                if key not in found or kept[0] - rate * kept[1] > found[key][0] - rate * found[key][1]:
                    found[key] = kept
        ways = found
    state = max(sorted(ways), key=lambda key: ways[key][0] - ahead.rate_C[key[1]] * ways[key][1])
    return ways[state]


@pytest.mark.parametrize("pay", [False, True])
def test_the_path_is_the_one_that_is_found_by_hand_with_its_value_and_what_is_left(pay):
    rng, carried = np.random.default_rng(6), 0
    for _ in range(400):
        ahead = any_future(rng, pay=pay)
        start, left_s = int(rng.integers(len(ahead.rate_C))), float(rng.choice([0.0, 0.0, 1.0, 4.0]))
        value, left, path = path_by_hand(ahead, start, left_s)
        found = best_path(ahead, start, left_s=left_s)
        assert (found.config_H, found.value, found.left_s) == (path, value, left)
        carried += left_s > 0
    assert carried > 50


# ---------------------------------------------------------------------- plans for a budget


def some_classes(rng, *, classes):
    phases, configs = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    facts = {
        "time_IEC": rng.integers(1, 9, (classes, phases, configs)).astype(float),
        "rent_IC": rng.integers(1, 7, (classes, configs)).astype(float),
        "restart": rng.integers(0, 3, (classes, configs)).astype(float),
        "start": rng.integers(0, 3, (classes, configs)).astype(float),
        "current": rng.integers(NOT_STARTED, configs, classes),
        "weight": rng.integers(1, 4, classes).astype(float),
    }
    return facts, Phases.from_tables(**facts)


def every_plan(facts, row):
    """(time, money) of all plans of a class, as whole numbers."""
    time_EC = facts["time_IEC"][row]
    for plan in itertools.product(range(time_EC.shape[1]), repeat=len(time_EC)):
        time = money = 0
        before = facts["current"][row]
        for phase, config in enumerate(plan):
            begins = facts["start"] if before == NOT_STARTED else facts["restart"]
            spent = int(time_EC[phase, config] + (0 if before == config else begins[row, config]))
            time, money, before = time + spent, money + spent * int(facts["rent_IC"][row, config]), config
        yield time, money


def corners(points):
    """From the cheapest to the fastest, those that are best at some value of time; the fastest of equally cheap."""
    at = min(points, key=lambda point: (point[1], point[0]))
    found = [at]
    while faster := [point for point in points if point[0] < at[0]]:
        at = min(faster, key=lambda point: (Fraction(point[1] - at[1], at[0] - point[0]), point[0]))
        found.append(at)
    return found


def test_the_book_has_the_corners_of_all_plans_and_no_others():
    rng = np.random.default_rng(7)
    for _ in range(120):
        facts, phases = some_classes(rng, classes=2)
        hulls = plan_book(phases).curves.hulls
        for row in range(2):
            of = hulls.of(row)
            told = list(zip(hulls.time_V[of].tolist(), hulls.cost_V[of].tolist(), strict=True))
            assert told == corners(list(every_plan(facts, row)))


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_a_budget_is_met_by_the_two_plans_around_it(classes):
    """Steps of all classes in the order of what time costs: exact, as fractions."""
    rng, inside = np.random.default_rng(8), 0
    for _ in range(80):
        facts, phases = some_classes(rng, classes=classes)
        rate = rng.integers(1, 4, classes)
        hulls = [corners(list(every_plan(facts, row))) for row in range(classes)]
        weight = [int(each) for each in facts["weight"]]
        spend = sum(int(rate[row]) * hull[0][1] for row, hull in enumerate(hulls))
        jobs = sum(int(rate[row]) * weight[row] * hull[0][0] for row, hull in enumerate(hulls))
        steps: dict[Fraction, list[int]] = {}
        for row, hull in enumerate(hulls):
            for (slow, cheap), (fast, dear) in itertools.pairwise(hull):
                both = steps.setdefault(Fraction(dear - cheap, (slow - fast) * weight[row]), [0, 0])
                both[0] += int(rate[row]) * (dear - cheap)
                both[1] += int(rate[row]) * weight[row] * (slow - fast)
        least, most = spend, spend + sum(more for more, _ in steps.values())
        line = frontier(plan_book(phases).curves, rate.astype(float))
        for value in sorted(steps):
            more, fewer = steps[value]
            for share in (Fraction(0), Fraction(1, 3), Fraction(3, 4)):
                if more == 0:
                    continue
                budget = float(spend + share * more)
                told = best_for_budget(phases, rate, budget)
                assert (told.least, told.most, told.binding) == (least, most, True)
                assert told.spend == pytest.approx(budget)
                assert told.jobs == pytest.approx(float(jobs - share * fewer))
                poorer, richer = (float(rate @ plans.cost_I) for plans in (told.poorer, told.richer))
                assert poorer <= budget * (1 + 1e-12) <= richer * (1 + 2e-12)
                if share:  # at a corner two values are as true
                    assert told.value_of_time == pytest.approx(float(value))
                    assert line.at(budget).value_of_time == pytest.approx(float(value))
                    assert line.at(budget).share == pytest.approx(float(share))
                    assert told.share == pytest.approx((budget - poorer) / (richer - poorer))
                    inside += 1
                assert told.tried <= 30
            spend, jobs = spend + more, jobs - fewer
        rich = best_for_budget(phases, rate, most + 1.0)
        assert (rich.value_of_time, rich.share, rich.spend, rich.binding, rich.tried) == (math.inf, 1.0, most, False, 2)
        assert rich.jobs == pytest.approx(float(jobs))
    assert inside > 60


def test_at_a_value_of_time_no_plan_is_better_and_who_is_as_well_off_stays():
    """The plan itself is added up as it is told: time, money, and no restart that gains nothing."""
    rng = np.random.default_rng(9)
    for _ in range(150):
        facts, phases = some_classes(rng, classes=1)
        value = float(rng.integers(0, 6))
        found = best_plans(phases, [value])
        worth = float(facts["weight"][0]) * value
        every = {worth * time + money for time, money in every_plan(facts, 0)}
        assert worth * found.time_I[0] + found.cost_I[0] == min(every)
        fastest, cheapest = best_plans(phases, math.inf), best_plans(phases, 0.0)
        points = list(every_plan(facts, 0))
        assert (fastest.time_I[0], fastest.cost_I[0]) == min(points)
        assert (cheapest.cost_I[0], cheapest.time_I[0]) == min((money, time) for time, money in points)
