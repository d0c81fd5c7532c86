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
from sublet.studies.fleet.checks import lent, single
from sublet.studies.fleet.study import CASES, STUDY, Blind, case_jobs, clouds_of, hours_at, hurried
from tests.rigs.sizes import only_in_full

points = st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.1, 10.0)), min_size=1, max_size=5)


def quiet(_):
    pass


@only_in_full
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
