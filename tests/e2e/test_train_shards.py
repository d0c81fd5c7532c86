"""Optimizer state in ranges, with real processes: resizes, kills, checkpoints (of `tests/rigs/training.py`)."""

from __future__ import annotations

import pytest

from sublet.train import EXIT_LEFT, EXIT_LOST
from tests.rigs.scenario import world
from tests.rigs.sizes import sized

pytest.importorskip("torch")
SAMPLES = 1000
WHOLE = {str(epoch): list(range(SAMPLES)) for epoch in range(3)}
RANGES = {"KEEP": "2", "DTYPE": "float64"}


def test_resizes_and_kills_are_one_process_within_rounding(tmp_path):
    alone = world("fixed", tmp_path / "alone", env={"DTYPE": "float64"}, width=1)
    resized = world("resizes", tmp_path / "resized", env=RANGES, count=sized(6, 40), widest=5)
    killed = world("kills", tmp_path / "killed", env=RANGES, count=sized(8, 40), width=5, seed=5)
    assert killed["kills"] >= 6
    assert set(killed["codes"].values()) == {0, -9}
    assert set(resized["codes"].values()) == {0, EXIT_LEFT}
    for run in (resized, killed):
        assert run["seen"] == WHOLE
        for end in run["ends"]:
            assert end["steps"] == alone["ends"][0]["steps"]
            assert end["parameters"] == pytest.approx(alone["ends"][0]["parameters"], rel=1e-12, abs=1e-12)


def test_a_run_that_left_or_was_killed_carries_on_from_its_checkpoint(tmp_path):
    run = world("resumes", tmp_path, env=RANGES, width=4)
    fresh, after_leave, after_kill = run["starts"]
    assert fresh == 0
    assert after_leave == run["left"][0] >= 20  # not one step is done again
    assert after_kill == run["saved"][1] >= after_leave + 20
    assert run["sources"] == ["fresh"] * 4 + ["checkpoint"] * 8
    assert run["seen"] == WHOLE


@pytest.mark.parametrize("saved", [1, 0])
def test_a_range_whose_holders_are_both_lost_takes_all_back_to_the_checkpoint(tmp_path, saved):
    run = world("gone", tmp_path, env=RANGES, saved=saved)
    if not saved:  # they end, and others begin anew
        assert [run["codes"][name] for name in ("w0", "w2", "w4")] == [EXIT_LOST] * 3
        assert run["joined"] == []
        return
    for source, step, redone in run["joined"]:
        assert (source, step) == ("checkpoint", run["saved"][0])
        assert redone >= 40 - step
    assert len(run["joined"]) == 3
    assert run["seen"] == WHOLE
