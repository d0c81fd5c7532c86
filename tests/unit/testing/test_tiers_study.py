"""The study of tiers: its parts on a few bytes, and the claims that need no machine."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from sublet import plugins
from sublet.studies.study import Study
from sublet.testing.tiers import slowdown
from sublet.testing.tiers.arms import Arm, expected_s, interval_s, rents
from sublet.testing.tiers.deepvm import HAZARDS_PER_H, STATES_GB, modelled
from sublet.testing.tiers.places import Took
from sublet.testing.tiers.slowdown import FEWEST, measure_slowdown, median_interval
from sublet.testing.tiers.study import foretold, typical
from sublet.testing.tiers.worker import main


def test_the_study_is_listed():
    assert isinstance(plugins.load("sublet.studies", "tiers"), Study)


def work(capsys, folder, steps, **facts):
    """What a worker says."""
    told = {"node": str(folder / "node"), "far": str(folder / "far"), "direct": False, "steps": steps, "step_s": 0.0}
    main(json.dumps(told | {"size_bytes": 4000, "every_s": 0.0, "generation": 1} | facts))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_worker_goes_on_from_its_disk_else_from_the_anchor_and_writes_both(tmp_path, capsys):
    first = work(capsys, tmp_path, 30)
    assert (first[0]["resumed"], first[0]["source"], first[-1]) == (0, "nothing", {"finished": 30})
    saved = [line["saved"] for line in first if "saved" in line]
    assert saved
    again = work(capsys, tmp_path, 60, generation=2)
    assert (again[0]["resumed"], again[0]["source"]) == (saved[-1], "node")
    last = [line["saved"] for line in again if "saved" in line][-1]
    shutil.rmtree(tmp_path / "node")
    lost = work(capsys, tmp_path, 61, generation=3)
    assert (lost[0]["resumed"], lost[0]["source"]) == (last, "far")


def test_training_is_compared_in_pairs_with_and_without_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(slowdown, "least_interval_s", lambda *_: 0.01)
    found = measure_slowdown(tmp_path, 4000, seconds=0.0)
    assert len(found.shares) == found.saves == FEWEST
    assert found.every_s == 0.01


def test_a_median_lies_where_the_order_of_the_values_says():
    low, high = median_interval([float(n) for n in range(101)])
    assert low < 50.0 < high
    assert (low, high) == (40.0, 60.0)  # the 41st and the 61st, as tables of the sign test have it
    assert median_interval([1.0]) == (1.0, 1.0)


def test_times_are_foretold_by_a_start_and_a_pace():
    assert foretold((10, 20), (3.0, 4.0), 40) == 6.0
    assert foretold((10, 20), (4.0, 3.9), 40) == 3.9  # nothing becomes quicker by being larger
    assert typical([1.0, 9.0, 2.0, 3.0, 50.0]) == 2.0


def test_an_interval_leaves_the_time_to_carry_and_a_life_is_the_sum_of_its_parts():
    took = Took(write_s=0.1, read_s=0.2, blocked_s=0.01)
    assert interval_s(took, 0.5, 0.1) >= 0.6
    assert interval_s(took, 0.5, 0.1) >= interval_s(took, 0.1, 0.1)
    assert expected_s(100.0, 10.0, cost_s=0.1, lag_s=1.0, resume_s=3.0, losses=2) == pytest.approx(101.0 + 2 * 9.0)


def test_rents_are_those_of_deepvms_list():
    usd = rents()
    assert usd == pytest.approx({"tiering": 1.4324, "single anchor": 1.6306, "bucket": 1.2624, "on demand": 4.208})
    assert Arm(name="x", far="", direct=True, usd_per_h=usd["bucket"], every_s=math.inf).direct


def test_the_claim_holds_in_the_model_for_the_checkpoints_that_deepvm_has():
    table, checks = modelled()
    assert len(table.rows) == len(HAZARDS_PER_H) * len(STATES_GB)
    assert [check.ok for check in checks] == [True, True]
    assert {row[-1] for row in table.rows} == {"bucket", "single anchor"}  # and elsewhere others are cheaper
