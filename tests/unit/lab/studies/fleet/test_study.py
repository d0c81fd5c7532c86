"""The parts of the study of many jobs on spot that are quick, and how runs are compared at equal dollars."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.kernel.kernel import Kernel
from sublet.market.hazard import trace_hazard
from sublet.market.traces import load_trace
from sublet.perf.preemption import NO_RECLAIMS
from sublet.planning.terms import Terms
from sublet_lab.studies.fleet import study
from sublet_lab.studies.fleet.checks import lent, single
from sublet_lab.studies.fleet.study import (
    CASES,
    HARSH,
    STUDY,
    Blind,
    Held,
    Point,
    case_jobs,
    clouds_of,
    held,
    hours_at,
    hurried,
)
from sublet_lab.studies.ratio import Ratio

points = st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.1, 10.0)), min_size=1, max_size=5)


def quiet(_):
    pass


@pytest.mark.long
def test_every_check_of_the_small_parts_holds():
    checks = [*lent(quiet).checks, *single(True, quiet).checks]
    assert len(checks) == 8
    assert [check.name for check in checks if not check.ok] == []
    assert STUDY.name == "fleet"


@given(points, st.floats(1.0, 200.0), st.floats(1.0, 2.0))
def test_more_dollars_never_buy_a_longer_time(line, usd, more):
    assert hours_at(line, usd * more) <= hours_at(line, usd) * (1 + 1e-9)


@given(points)
def test_at_its_own_dollars_a_policy_has_its_own_time_or_a_better_one(line):
    assert all(hours_at(line, usd) <= hours * (1 + 1e-9) for usd, hours in line)
    assert math.isinf(hours_at(line, min(usd for usd, _ in line) / 2))


def test_a_record_that_runs_faster_loses_nodes_as_much_more_often():
    trace = load_trace("bamboo-p3")
    assert trace_hazard(hurried(trace, 4.0)).pooled.per_h == pytest.approx(4 * trace_hazard(trace).pooled.per_h)


def test_all_policies_of_a_case_have_the_same_jobs_and_spot_offers_and_only_the_blind_one_looks_away():
    case = CASES[-1]
    clouds = clouds_of(case)
    assert clouds["both"].offers[:-1] == clouds["spot"].offers
    assert clouds["both"].offers[-1].price == clouds["on demand"].offers[0].price
    assert [job.work for job in case_jobs(case, 3)] == [job.work for job in case_jobs(case, 3)]

    seen = []

    class Spy:
        def decide(self, snapshot):
            seen.append(Terms.from_snapshot(snapshot).sites[0].reclaims)

    snapshot = Kernel(clouds["both"].offers).snapshot()
    Spy().decide(snapshot)
    Blind(Spy()).decide(snapshot)
    assert seen[0].per_h > 2.0
    assert seen[1] == NO_RECLAIMS


# ---------------------------------------------------------------------- intervals


def lines(price, blind, spot, on_demand):
    """Of each policy and draw one time, at any number of dollars from 10 on; of `price` at 20 dollars."""
    rivals = {"blind to reclaims": blind, "all spot": spot, "all on demand": on_demand}
    found = {name: [[Point(10.0, each, 1)] * 3 for each in times] for name, times in rivals.items()}
    return {"price": [[Point(20.0, each, 2)] for each in price], **found}


def test_ratios_are_of_each_draw_and_have_students_interval():
    """Of 1, 2 and 3 the deviation is 1; with two degrees of freedom 95 % lie within 4.303 of it."""
    found = held(lines([2.0, 2.0, 6.0], [2.0, 1.0, 2.0], [4.0, 4.0, 4.0], [5.0, 1.0, 9.0]), 0)
    assert found.blind.mean == pytest.approx(2.0)
    assert found.blind.off == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.pure.mean == pytest.approx((2 / 4 + 2 / 1 + 6 / 4) / 3)
    assert (found.usd, found.hours) == (20.0, pytest.approx(10 / 3))
    assert list(found.cells) == ["1.667", "4.000", "5.000", "1.333 +- 1.897", "2.000 +- 2.484", "2 / 1"]


def test_a_draw_in_which_the_rival_cannot_do_with_the_money_is_no_part_of_the_ratio():
    found = held(lines([2.0, 2.0], [2.0, math.inf], [math.inf, math.inf], [math.inf, math.inf]), 0)
    assert found.blind.mean == pytest.approx(1.0)
    assert math.isnan(found.blind.off)
    assert found.pure is None
    assert list(found.cells[:5]) == ["-", "-", "-", "-", "1.000"]


def test_the_worst_and_the_best_budget_are_told_with_their_own_intervals():
    ratios = [Ratio(mean=mean, off=off) for mean, off in ((1.01, 0.1), (0.9, 0.2), (0.8, 0.3))]
    budgets = [
        Held(usd=1.0, hours=1.0, cells=[], pure=None if at == 0 else each, blind=each) for at, each in enumerate(ratios)
    ]
    checks = study._checks(CASES[-1], budgets, 0.05)
    assert [(check.ours, check.off, check.ok) for check in checks] == [
        (0.9, 0.2, True),
        (1.01, 0.1, True),
        (0.8, 0.3, True),
    ]
    assert CASES[-1].name == HARSH
    assert len(study._checks(CASES[0], budgets, 0.05)) == 2
