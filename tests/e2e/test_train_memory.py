"""Workers whose steps do not fit into memory, with real processes."""

from __future__ import annotations

import sys

import pytest

from sublet.runtime.jobs.spec import Retries
from tests.chaos.rig import JOB, rig
from tests.rigs.scenario import world

pytest.importorskip("torch")
SMALL = {"SAMPLES": "64", "EPOCHS": "2"}


def test_steps_that_do_not_fit_are_made_smaller_by_all_and_train_what_one_that_knew_it_trains(tmp_path):
    told = world("fixed", tmp_path / "told", width=2, env=SMALL | {"MICRO": "2"})
    short = world("short", tmp_path / "short", width=2, env=SMALL | {"ROOM": "3", "CLOSED": "1"})
    assert {tuple(cut) for cut in short["cuts"]} == {(8, 4), (4, 2)}
    assert short["seen"] == told["seen"]
    assert short["ends"][0]["steps"] == told["ends"][0]["steps"] == 8
    for end in short["ends"]:  # the global batch is what it was, and the sums are those of a run that began so
        assert end["parameters"] == told["ends"][0]["parameters"]
    assert set(short["codes"].values()) == {0}


def test_a_script_that_runs_short_itself_is_started_again_and_finishes_without_a_retry():
    with rig() as made:
        made.start()
        argv = (sys.executable, str(JOB), str(32 * 30), "1", "5", "6")
        job_id = made.submit(argv=argv, min_workers=2, retries=Retries(preemption=None, infra=0, user=0))
        [view] = made.until_ended(job_id)
        assert (view["phase"], view["step"]) == ("finished", 30)
        assert (view["failures_user"], view["failures_infra"]) == (0, 0)
        events = (made.ask("events") or {})["events"]
        told = [event["text"] for event in events if event["kind"] == "Memory"]
        assert any(text.startswith("16 samples") for text in told)
        assert any(text.startswith("8 samples") and "4 from now on" in text for text in told)
        made.down()
        made.audit()
