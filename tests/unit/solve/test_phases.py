from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases, best_plans
from sublet.solve.plan_book import plan_book
from sublet.solve.price import frontier
from tests.rigs.plan_search import best_for_budget

WIDTH = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def scaling_ever_better(classes=3, phases=12, seed=0):
    """Times of phases that scale badly at first and well at last, with some noise."""
    rng = np.random.default_rng(seed)
    parallel = np.sort(rng.uniform(0.1, 0.99, (classes, phases)), axis=1)[:, :, None]
    return ((1 - parallel) + parallel / WIDTH) * 100 * np.exp(rng.normal(0, 0.05, (classes, phases, len(WIDTH))))


def rents(classes=3):
    return np.tile(WIDTH, (classes, 1))


def padded(tables):
    """Tables of different sizes as one, phases by configurations: added phases take no time, added columns forever."""
    arrays = [np.asarray(table, dtype=np.float64) for table in tables]
    phases, configs = max(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    time_IEC = np.full((len(arrays), phases, configs), np.inf)
    for index, array in enumerate(arrays):
        time_IEC[index, : len(array), : array.shape[1]] = array
        time_IEC[index, len(array) :, : array.shape[1]] = 0.0
    return time_IEC


def test_a_restart_is_made_when_it_pays_and_not_when_it_does_not():
    time, rent = [[[8.0, 7.0], [8.0, 1.0]]], [[1.0, 4.0]]
    # At 2 per unit of time: stay 2 x 8 x 3 = 48; change 24 + 6 + 6 r; begin wide 6 x 8 = 48.
    assert best_plans(Phases.from_tables(time, rent, restart=2.9), 2.0).config_IE.tolist() == [[0, 1]]
    assert best_plans(Phases.from_tables(time, rent, restart=3.1), 2.0).config_IE.tolist() == [[0, 0]]


@pytest.mark.parametrize(("restart", "config"), [(0.01, 1), (0.3, 0)])
def test_who_runs_moves_at_once_only_where_that_pays_for_the_pause(restart, config):
    """At 1 per unit of time: to stay costs 2 x 1, to move 1.8 x 1 and the pause as long as it takes, at a rent of 0."""
    phases = Phases.from_tables([[[2.0, 1.8]]], [[0.0, 0.0]], restart=restart, start=9.0, current=0)
    assert best_plans(phases, 1.0).config_IE.tolist() == [[config]]
    alike = Phases.from_tables([[[2.0, 2.0]]], [[0.0, 0.0]], restart=restart, current=1)
    assert best_plans(alike, 1.0).config_IE.tolist() == [[1]]


def test_time_and_money_include_first_start_and_restarts_at_the_new_rent():
    found = best_plans(Phases.from_tables([[[8.0, 7.0], [8.0, 1.0]]], [[1.0, 4.0]], restart=0.5, start=2.0), 2.0)
    assert found.config_IE.tolist() == [[0, 1]]
    assert found.time_I.tolist() == [2.0 + 8.0 + 0.5 + 1.0]
    assert found.cost_I.tolist() == [1.0 * 10.0 + 4.0 * 1.5]


def test_short_jobs_run_narrower_when_starting_costs():
    # With a start that is paid for, a short job cannot earn back the start on many GPUs.
    time = np.array([[1 / WIDTH**0.9], [100 / WIDTH**0.9]])
    short, long = best_plans(Phases.from_tables(time, rents(2), start=1.0), 5.0).config_IE[:, 0]
    assert WIDTH[short] < WIDTH[long]


def test_without_restart_cost_the_plan_is_the_best_choice_of_each_phase():
    time, rate = scaling_ever_better(), np.array([1.0, 2.0, 0.5])
    each = Curves.from_tables(time.reshape(-1, 5), (time * WIDTH).reshape(-1, 5))
    line = frontier(each, np.repeat(rate, 12))
    for budget in np.linspace(line.least, line.most, 7)[1:-1]:
        found, alone = best_for_budget(Phases.from_tables(time, rents()), rate, budget), line.at(budget)
        assert found.value_of_time == pytest.approx(alone.value_of_time)
        assert (found.jobs, found.spend) == pytest.approx((alone.jobs, alone.spend))
        assert found.poorer.config_IE.ravel().tolist() == alone.poorer.tolist()
        assert found.richer.config_IE.ravel().tolist() == alone.richer.tolist()


@pytest.mark.parametrize("restart", [1e9, math.inf])
def test_with_endless_restarts_the_plan_is_the_best_single_width(restart):
    time, rate = scaling_ever_better(), np.array([1.0, 2.0, 0.5])
    whole = time.sum(axis=1)
    line = frontier(Curves.from_tables(whole, whole * WIDTH), rate)
    budget = (line.least + line.most) / 3
    found = best_for_budget(Phases.from_tables(time, rents(), restart=restart), rate, budget)
    assert found.jobs == pytest.approx(line.at(budget).jobs)
    assert (found.poorer.config_IE == found.poorer.config_IE[:, :1]).all()
    assert found.poorer.config_IE[:, 0].tolist() == line.at(budget).poorer.tolist()


def test_more_budget_never_slows_and_costlier_restarts_never_speed_up():
    time, rate = scaling_ever_better(), np.ones(3)
    made = [Phases.from_tables(time, rents(), restart=restart, start=5.0) for restart in (0.0, 3.0, 30.0, 300.0)]
    least = max(best_for_budget(phases, rate, 1e12).least for phases in made)
    jobs = np.array(
        [[best_for_budget(p, rate, budget).jobs for budget in np.linspace(1.01, 5.0, 12) * least] for p in made]
    )
    assert (np.diff(jobs, axis=1) <= 1e-9).all()
    assert (np.diff(jobs, axis=0) >= -1e-9).all()


def test_what_is_left_of_a_running_job_starts_from_where_it_runs():
    phases = Phases.from_tables([[[8.0, 4.0], [6.0, 2.0], [6.0, 9.0]]], [[1.0, 4.0]], restart=1.0, start=50.0)
    left = phases.after([1.5], current=[1])
    found = best_plans(left, 10.0)
    assert found.config_IE[0, 1:].tolist() == [1, 0]
    assert found.time_I.tolist() == [1.0 + 1.0 + 6.0]
    assert found.cost_I.tolist() == [4.0 + 7.0]
    nothing = best_plans(phases.after([3.0], current=[1]), 10.0)
    assert nothing.time_I.tolist() == nothing.cost_I.tolist() == [0.0]


def test_leaving_the_current_configuration_costs_a_restart_at_the_first_phase():
    phases = Phases.from_tables([[[8.0, 1.0]]], [[1.0, 1.0]], restart=2.0, start=50.0, current=0)
    assert best_plans(phases, 1.0).time_I.tolist() == [3.0]


def test_where_it_cannot_run_it_does_not():
    time = [[[1.0, 9.0], [math.inf, 9.0], [1.0, math.nan]]]
    for value in (0.0, 1.0, math.inf):
        found = best_plans(Phases.from_tables(time, [[0.0, 0.0]], restart=2.0), value)
        assert found.config_IE.tolist() == [[0, 1, 0]]
        assert found.time_I.tolist() == [15.0]


def test_a_class_without_a_way_through_is_named():
    time = [[[1.0, 1.0], [1.0, 1.0]], [[1.0, math.inf], [math.inf, 1.0]]]
    with pytest.raises(Infeasible, match="class 1 cannot run through"):
        best_plans(Phases.from_tables(time, [[1.0, 1.0]] * 2, restart=math.inf), 1.0)


def test_of_equally_fast_plans_the_cheapest_and_of_equally_cheap_the_fastest():
    phases = Phases.from_tables([[[2.0, 2.0, 4.0], [2.0, 2.0, 4.0]]], [[3.0, 2.0, 1.0]])
    assert best_plans(phases, math.inf).config_IE.tolist() == [[1, 1]]
    assert best_plans(phases, 0.0).config_IE.tolist() == [[1, 1]]


def test_padding_changes_nothing():
    tables = [scaling_ever_better(1, 5, seed)[0][:, :count] for seed, count in ((1, 5), (2, 3))] + [np.ones((2, 4))]
    rent = np.tile(WIDTH, (3, 1))
    together = best_plans(Phases.from_tables(padded(tables), rent, restart=3.0, start=2.0), 20.0)
    for index, table in enumerate(tables):
        alone = Phases.from_tables(table[None], rent[:1, : table.shape[1]], restart=3.0, start=2.0)
        assert together.time_I[index] == pytest.approx(best_plans(alone, 20.0).time_I[0])
        assert together.cost_I[index] == pytest.approx(best_plans(alone, 20.0).cost_I[0])


def test_the_book_of_plans_answers_every_budget_as_the_search_does():
    phases = Phases.from_tables(scaling_ever_better(), rents(), restart=20.0, start=20.0, weight=[1.0, 2.0, 0.5])
    rate = np.array([1.0, 0.3, 2.0])
    book = plan_book(phases)
    line = frontier(book.curves, rate)
    for budget in np.linspace(line.least, line.most * 1.1, 9):
        found, looked_up = best_for_budget(phases, rate, budget), line.at(budget)
        assert found.jobs == pytest.approx(looked_up.jobs)
        assert found.spend == pytest.approx(looked_up.spend)
        for index, plan in enumerate(looked_up.richer):
            assert len(book.config_IHE[index][plan]) == 12


def test_the_budget_is_met_exactly_and_too_little_or_too_much_is_said():
    phases, rate = Phases.from_tables(scaling_ever_better(), rents(), restart=20.0), np.ones(3)
    rich = best_for_budget(phases, rate, 1e12)
    assert not rich.binding
    assert rich.spend == rich.most
    budget = (rich.least + rich.most) / 2
    found = best_for_budget(phases, rate, budget)
    assert found.binding
    assert found.spend == pytest.approx(budget)
    with pytest.raises(Infeasible, match="raise it to"):
        best_for_budget(phases, rate, found.least * 0.99)
    assert best_for_budget(phases, rate, found.least).share == 0.0
    assert best_for_budget(phases, rate, found.least * (1 - 1e-13)).share == 0.0  # the same sum in another order
    assert (rich.tried, rich.share, rich.jobs) == (2, 1.0, best_for_budget(phases, rate, rich.most).jobs)
    assert 2 < found.tried <= 40
    assert not best_for_budget(phases, rate, rich.most).binding
    assert best_for_budget(phases, rate, rich.most * (1 - 1e-9)).binding


def test_plans_are_tried_by_the_dozen_not_by_the_hundred():
    """Each try between two plans is the value at which they are equal; every other one halves the distance."""
    phases = Phases.from_tables(scaling_ever_better(8, 40), rents(8), restart=5.0, start=20.0)
    ends = best_for_budget(phases, np.ones(8), math.inf)
    tried = [
        best_for_budget(phases, np.ones(8), ends.least + share * (ends.most - ends.least)).tried
        for share in (0.01, 0.1, 0.3, 0.6, 0.9)
    ]
    assert max(tried) <= 30


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"restart": -1.0}, "restart"),
        ({"start": math.inf}, "start"),
        ({"current": 5}, "current"),
        ({"current": -2}, "current"),
        ({"weight": 0.0}, "weight"),
        ({"rent_IC": [[1.0, 2.0]]}, "rent_IC"),
        ({"time_IEC": [[1.0]]}, "time_IEC"),
        ({"time_IEC": -np.ones((3, 2, 5))}, "time_IEC"),
    ],
)
def test_nonsense_is_refused(facts, match):
    with pytest.raises(InvalidValue, match=match):
        Phases.from_tables(**{"time_IEC": scaling_ever_better(), "rent_IC": rents(), **facts})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: best_plans(p, -1.0), "value_of_time"),
        (lambda p: best_plans(p, [1.0, math.inf, 1.0]), "value_of_time"),
        (lambda p: best_for_budget(p, [1.0], 1.0), "rate_I"),
        (lambda p: best_for_budget(p, np.ones(3), math.nan), "budget"),
        (lambda p: p.after([1.0], current=0), "done_I"),
        (lambda p: p.after([1.0, 1.0, -1.0], current=0), "done_I"),
        (lambda p: p.after([1.0, 1.0, 1.0], current=7), "current"),
    ],
)
def test_nonsensical_questions_are_refused(call, match):
    with pytest.raises(InvalidValue, match=match):
        call(Phases.from_tables(scaling_ever_better(), rents()))
