"""The adviser knows a script that was measured by the curve through its rows, and carries it over to other kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sublet.advise.profiles import curve_step_s, profile_from_stored
from sublet.advise.speed import Machine, speeds
from sublet.errors import InvalidValue
from sublet.market.catalogue import load_gpus
from sublet.perf.live.rows import StepRow
from sublet.perf.live.stored import StoredProfile

ROWS = tuple(
    StepRow(
        gpu="T4",
        gpus=gpus,
        samples=batch // gpus,
        step_s=0.035 + 0.001 * batch / gpus + (0.02 if gpus > 1 else 0.0),
        piece_s=0.03 + 0.001 * batch / gpus,
        wait_s=0.02 if gpus > 1 else 0.0,
    )
    for gpus in (1, 2, 4)
    for batch in (64, 256)
)
FACTS = {"name": "bert", "script": "ab", "gpu": "T4", "torch": "", "date": "2026", "batches": (64, 32, 256)}
STORED = StoredProfile(**FACTS, batch=256, noise=None, rows=ROWS)


def test_its_curve_goes_through_the_rows():
    curve = profile_from_stored([STORED]).curves["T4"]
    confs = np.array([(row.nodes, row.gpus, row.samples) for row in ROWS], dtype=float)
    assert curve_step_s(curve, confs) == pytest.approx([row.step_s for row in ROWS], rel=0.05)
    assert (curve.max_local, curve.most_gpus) == (256, 4)


def test_it_is_measured_on_its_kind_and_predicted_on_others():
    profile = profile_from_stored([STORED], batch=128)
    found = speeds(profile, [Machine("T4", 1, 25.0), Machine("A100", 1, 100.0)], 2, load_gpus())
    assert found.how[0] == "measured"
    assert found.how[1].startswith("predicted from T4")
    assert found.rate_MN[0, 0] == pytest.approx(128 / (0.035 + 0.128), rel=0.05)
    assert found.rate_MN[1, 0] > found.rate_MN[0, 0]


def test_a_job_that_is_called_like_a_model_is_not_taken_for_it():
    assert profile_from_stored([STORED]).name != "bert"
    assert profile_from_stored([STORED]).batch == 64


def test_what_ran_on_cpus_says_nothing_of_gpus_unless_it_is_to_be_taken_for_one():
    of_cpus = replace(STORED, device="cpu")
    with pytest.raises(InvalidValue, match="ran on CPUs; --as-gpu KIND"):
        profile_from_stored([of_cpus])
    taken = profile_from_stored([of_cpus], as_gpu="A100")
    assert set(taken.curves) == {"A100"}
    assert "on CPUs, and taken for A100s" in taken.source
    real = replace(STORED, gpu="H200", device="NVIDIA H200", rows=tuple(replace(row, gpu="H200") for row in ROWS))
    assert set(profile_from_stored([of_cpus, real]).curves) == {"H200"}
    with pytest.raises(InvalidValue, match="left out: it was measured on H200"):
        profile_from_stored([of_cpus, real], as_gpu="T4")
