"""When all that runs will have ended: of one job what is foreseen of it, of many as a draw of many lives says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.controller_api.remaining import Z90, forecast_of


def a_job(middle_s, early=0.1, late=0.2, usd_per_h=1.0, so_far=3.0, phase="running"):
    """Its end is normal in its logarithm, with one spread before its middle and one after it."""
    ends = {"p10": middle_s * np.exp(-early * Z90), "p50": middle_s, "p90": middle_s * np.exp(late * Z90)}
    costs = {name: so_far + usd_per_h * end / 3600 for name, end in ends.items()}
    return {"phase": phase, "eta_s": ends, "forecast_usd": costs, "usd_total": so_far}


def test_of_one_job_it_is_what_is_foreseen_of_that_job():
    job = a_job(7200.0)
    found = forecast_of([job, a_job(9e9, phase="finished"), {"phase": "queued", "eta_s": None, "forecast_usd": None}])
    assert (found["jobs"], found["not_foreseen"]) == (1, 1)
    assert found["end_s"] == job["eta_s"]
    assert found["usd"] == pytest.approx({name: cost - 3.0 for name, cost in job["forecast_usd"].items()})


def test_where_nothing_runs_there_is_none():
    assert forecast_of([]) == {"jobs": 0, "not_foreseen": 0, "end_s": None, "usd": None}


def test_the_last_of_many_ends_when_a_draw_of_many_lives_says_so():
    middles = (3000.0, 3300.0, 3600.0, 3600.0, 900.0)
    found = forecast_of([a_job(middle, 0.15, 0.15) for middle in middles])
    drawn = np.random.default_rng(1).normal(np.log(middles), 0.15, size=(200_000, len(middles)))
    last = np.exp(drawn).max(axis=1)
    for name, share in (("p10", 10), ("p50", 50), ("p90", 90)):
        assert found["end_s"][name] == pytest.approx(np.percentile(last, share), rel=0.005)
    dollars = np.exp(drawn).sum(axis=1) / 3600
    for name, share in (("p10", 10), ("p50", 50), ("p90", 90)):
        assert found["usd"][name] == pytest.approx(np.percentile(dollars, share), rel=0.02)


@given(st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=2, max_size=20))
def test_it_ends_with_the_last_never_before_any_and_in_order(jobs):
    found = forecast_of([a_job(*each) for each in jobs])
    ends = found["end_s"]
    assert ends["p10"] <= ends["p50"] * 1.001 <= ends["p90"] * 1.002
    for name in ends:
        assert ends[name] >= max(a_job(*each)["eta_s"][name] for each in jobs) * 0.999
    assert found["usd"]["p10"] <= found["usd"]["p50"] <= found["usd"]["p90"]
