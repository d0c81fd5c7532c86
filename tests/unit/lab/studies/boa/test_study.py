"""The parts of `sublet study boa`, small: what they claim holds, and what is known to be missed is missed."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import MissingData
from sublet_lab.studies.boa.cases import CASES, gpu_cloud, realised
from sublet_lab.studies.boa.limits import quota, wrong_load
from sublet_lab.studies.boa.restarts import restarts
from sublet_lab.studies.boa.theory import golden, theory
from sublet_lab.studies.boa.total import gamble, purse


def silent(_what):
    """Nobody waits for a test."""


def missed(findings):
    return [check.name for check in findings.checks if not check.ok]


def test_the_golden_example_is_exact():
    assert missed(golden()) == []


@pytest.mark.long
def test_theory_and_simulation_agree():
    assert missed(theory(quick=True, tell=silent)) == []


@pytest.mark.long
def test_with_restarts_price_is_within_a_hundredth_of_the_exact_program():
    try:
        found = restarts(quick=True, tell=silent)
    except MissingData:
        pytest.skip("the profiles are not here")
    assert missed(found) == []


@pytest.mark.long
def test_a_wrong_forecast_is_made_up_for():
    assert missed(wrong_load(quick=True, tell=silent)) == []


@pytest.mark.long
def test_under_a_quota_price_beats_the_listing_order_by_far_though_not_by_the_goal():
    for check in quota(quick=True, tell=silent).checks:
        assert check.ours < 0.8
        assert check.goal == "<= 0.45"


@pytest.mark.long
def test_the_purse_is_never_overspent_and_hardly_underspent():
    assert missed(purse(quick=True, tell=silent)) == []


def test_a_gamble_repeats():
    assert gamble(3).jobs == gamble(3).jobs
    assert gamble(3).purse != gamble(4).purse


@pytest.mark.parametrize("key", CASES)
def test_the_jobs_of_a_case_have_its_rates_and_sizes(key):
    case = CASES[key]
    jobs = case.jobs(400, np.random.default_rng(1))
    hours = case.hours(400)
    for of in case.types:
        ours = [job for job in jobs if job.model == of.name]
        assert len(ours) == pytest.approx(of.per_h * hours)
        assert np.mean([job.work for job in ours]) == pytest.approx(of.mean_work)
    assert max(job.submit_s for job in jobs) <= 3600 * hours


def test_the_realised_frontier_is_that_of_the_case_in_the_long_run():
    case = CASES["C"]
    jobs, hours = case.jobs(2_000, np.random.default_rng(2)), case.hours(2_000)
    best = realised(jobs, case.widths).at(30.0 * hours).jobs / hours
    assert best == pytest.approx(case.frontier().at(30.0).jobs, rel=0.01)
    assert gpu_cloud(30.0).budget.average.usd_per_h == 30.0
