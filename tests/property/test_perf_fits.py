"""A fit to exact data gives the model back, whatever its parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.perf.fit import Row, fit_amdahl, fit_pollux, fit_power_law, fit_ring
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.perf.steptime import PolluxStep, RingStep

SPREADS = [(1,), (2,), (4,), (4, 2), (4, 4), (4, 4, 4), (4, 4, 4, 4), (4,) * 8]


def rows_of(model):
    rows = []
    for spread in SPREADS:
        for local in (4, 8, 16, 32):
            full, compute = model.times(spread, np.array([float(local)]))
            sync_s = max(float(full[0] - compute[0]), 0.0)
            rows.append(Row(gpu="T4", spread=spread, local_batch=local, step_time_s=float(full[0]), sync_time_s=sync_s))
    return rows


def rows_at(speed):
    return [
        Row(gpu="T4", spread=(width,), local_batch=8, step_time_s=8 * width / speed.rate("T4", (width,), 0.0))
        for width in (1, 2, 3, 4, 8, 16)
    ]


@given(parallel=st.floats(0.0, 1.0), one=st.floats(1e-3, 1e6))
def test_amdahl_is_recovered(parallel, one):
    fit = fit_amdahl(rows_at(Amdahl(parallel=parallel, kinds={"T4": one})))
    assert fit.model.parallel == pytest.approx(parallel, abs=1e-5)
    assert fit.report.max_error < 1e-4


@given(exponent=st.floats(0.0, 1.0), one=st.floats(1e-3, 1e6))
def test_a_power_law_is_recovered(exponent, one):
    fit = fit_power_law(rows_at(PowerLaw(exponent=exponent, kinds={"T4": one})))
    assert fit.model.exponent == pytest.approx(exponent, abs=1e-9)
    assert fit.model.kinds["T4"] == pytest.approx(one, rel=1e-9)


@given(
    alpha_s=st.floats(1e-3, 1.0),
    beta_s=st.floats(1e-4, 0.1),
    intra=st.floats(1e8, 1e11),
    inter=st.floats(1e8, 1e11),
    hop_s=st.floats(0.0, 1e-2),
)
def test_a_ring_is_predicted_exactly(alpha_s, beta_s, intra, inter, hop_s):
    true = RingStep(
        alpha_s=alpha_s,
        beta_s=beta_s,
        gradient_bytes=1e9,
        intra_bytes_per_s=intra,
        inter_bytes_per_s=inter,
        intra_latency_s=hop_s,
        inter_latency_s=2 * hop_s,
    )
    fit = fit_ring(rows_of(true), gradient_bytes=1e9)
    assert fit.report.max_error < 1e-6


@settings(max_examples=25)
@given(
    alpha_c_s=st.floats(1e-2, 0.5),
    beta_c_s=st.floats(1e-3, 0.05),
    alpha_n_s=st.floats(0.05, 1.0),
    alpha_r_s=st.floats(0.02, 0.5),
    slope=st.floats(0.0, 0.3),
    gamma=st.floats(1.0, 6.0),
)
def test_pollux_is_predicted_within_one_percent(alpha_c_s, beta_c_s, alpha_n_s, alpha_r_s, slope, gamma):
    true = PolluxStep(
        alpha_c_s=alpha_c_s,
        beta_c_s=beta_c_s,
        alpha_n_s=alpha_n_s,
        beta_n_s=slope * alpha_n_s,
        alpha_r_s=alpha_r_s,
        beta_r_s=slope * alpha_r_s,
        gamma=gamma,
    )
    report = fit_pollux(rows_of(true)).report
    assert report.max_error < 0.01
