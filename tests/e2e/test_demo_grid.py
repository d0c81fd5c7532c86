"""`sublet demo --grid` as a user runs it: two minutes of nodes that are taken from a model in parts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.demo.grid.demo import JOB, PAGE, PICTURE

pytestmark = pytest.mark.timeout(600)


def test_a_demonstration_is_of_one_thing(sublet, tmp_path):
    for more in (["--grid"], ["--report", tmp_path / "report"]):
        answer = sublet("demo", "--hosts", *more)
        assert answer.code == 2
        assert "given alone" in answer.err
    assert not (tmp_path / "report").exists()


@pytest.mark.long
def test_the_demonstration_of_grids_loses_no_sample(sublet, tmp_path):
    answer = sublet("demo", "--grid", "--report", tmp_path / "report", "-o", "json")
    facts = answer.json
    assert answer.code == 0, facts
    assert (facts["job"], facts["steps"], facts["steps_lost"]) == ("finished", JOB.steps, 0)
    assert facts["samples_lost"] == facts["samples_taken_twice"] == facts["steps_of_which_workers_disagree"] == 0
    assert facts["nodes_killed_without_notice"] >= 1
    assert facts["nodes_taken_with_notice"] >= 1
    kinds = {kind: facts[kind] for kind in ("changes_within_parts", "changes_between_parts", "changes_of_depth")}
    assert "0" not in kinds.values(), kinds
    assert {path.name for path in (tmp_path / "report").iterdir()} == {PAGE, PICTURE}
