"""A struck job has one run in its tracker, with every step once, and what it cost beside the loss."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")

from tests.rigs.logged import TRACKERS
from tests.rigs.scenario import world


@pytest.mark.parametrize("name", TRACKERS)
def test_a_struck_job_is_one_run_with_every_step_once(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no other that needs no server
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run = world(
        "tracked", tmp_path, env={"TRACKER": name, "MLFLOW_ALLOW_FILE_STORE": "true"}, module="tests.adoption.tracked"
    )
    assert run["codes"][-1] == 0
    assert run["redone"] > 0  # steps were made twice
    found = TRACKERS[name][1](tmp_path / "runs")
    assert list(found) == ["home-job-1"]
    steps = int((tmp_path / "steps").read_text())
    values = found["home-job-1"]
    assert [step for step, _ in values["loss"]] == list(range(1, steps + 1))
    assert [step for step, _ in values["sublet/workers"]] == list(range(1, steps + 1))
    assert {value for _, value in values["sublet/workers"]} == {1.0, 2.0}
    assert {value for _, value in values["sublet/usd"]} == {0.5, 1.5}
    assert {value for _, value in values["sublet/resizes"]} == {1.0, 2.0}
    assert {value for _, value in values["sublet/preemptions"]} == {0.0, 1.0}
