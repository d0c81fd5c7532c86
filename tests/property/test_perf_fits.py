"""A fit to exact data gives the model back, whatever its parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.perf.fit import Row, fit_pollux
from sublet.perf.steptime import PolluxStep

SPREADS = [(1,), (2,), (4,), (4, 2), (4, 4), (4, 4, 4), (4, 4, 4, 4), (4,) * 8]


def rows_of(model):
    rows = []
    for spread in SPREADS:
        for local in (4, 8, 16, 32):
            full, compute = model.times(spread, np.array([float(local)]))
            sync_s = max(float(full[0] - compute[0]), 0.0)
            rows.append(Row(gpu="T4", spread=spread, local_batch=local, step_time_s=float(full[0]), sync_time_s=sync_s))
    return rows


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
