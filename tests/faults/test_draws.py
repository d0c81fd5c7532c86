"""What seeds are drawn from: every kind of fault and every knob has rng of its own, and all clouds have their turn."""

from __future__ import annotations

import json

import pytest

from sublet.runtime.controller.host import PACES
from sublet_lab.world import runner
from sublet_lab.world.__main__ import main
from sublet_lab.world.runner import Result
from sublet_lab.world.story import (
    CLOUDS,
    FEWEST,
    KEPT,
    KNOWN,
    MANY_KINDS,
    MOST,
    OF_CLOUD,
    OFTEN_KEPT,
    PLAIN,
    draw_faults,
    draw_story,
    kinds_at,
)

SEEDS = range(200)


def test_a_new_kind_of_fault_leaves_all_others_as_they_were():
    kinds = kinds_at("aws")
    for seed in SEEDS:
        before = draw_faults(seed, kinds)
        after = draw_faults(seed, ("a new one", *kinds, "another"))
        assert [fault for fault in after if fault.kind in kinds] == list(before)


def test_lives_have_as_many_faults_as_they_should():
    """Seven and a half in the mean; with more kinds than MANY_KINDS as many more, for each comes as often as it did."""
    for kinds in ((), ("take_told",), ("take_told", "reprice")):
        stories = [draw_story(seed, kinds) for seed in SEEDS]
        many, drawn = [len(story.faults) for story in stories], [_kinds_of(story, kinds) for story in stories]
        wanted = sum((FEWEST + MOST) / 2 * max(1.0, count / MANY_KINDS) for count in drawn)
        assert sum(many) == pytest.approx(wanted, rel=0.1)
        assert sum(count >= 2 for count in many) > 0.9 * len(many)


def _kinds_of(story, kinds):
    """How many there are in such a life; what befalls an archive counts several times, where there is one."""
    is_short = story.paces.events_a_file < PACES.events_a_file
    return len(kinds_at(story.cloud, kinds)) + (OFTEN_KEPT * len(KEPT) if is_short and not kinds else 0)


def test_a_kind_that_is_named_twice_comes_twice_as_often():
    kinds = [fault.kind for seed in SEEDS for fault in draw_faults(seed, ("notice", "notice", "reprice"))]
    assert kinds.count("notice") == pytest.approx(2 * kinds.count("reprice"), rel=0.2)


def test_only_what_can_happen_at_a_cloud_is_drawn_there():
    assert "throttle" not in kinds_at("plain", ("throttle", "notice"))
    assert kinds_at("aws", ("throttle", "notice")) == ("throttle", "notice")
    assert set(kinds_at("local")) == {*PLAIN, *KNOWN, *OF_CLOUD["local"]}


def test_all_clouds_and_users_over_http_have_their_turn():
    stories = [draw_story(seed) for seed in SEEDS]
    assert {story.cloud for story in stories} == set(CLOUDS) == {"plain", "aws", "local", "ray"}
    assert 10 <= sum(story.http for story in stories) <= 60


def test_purses_are_drawn_that_do_not_last():
    stories = [draw_story(seed) for seed in SEEDS]
    assert sum(story.purse_usd is not None and story.purse_usd < 0.1 for story in stories) > 30
    jobs = [job for story in stories for job in story.jobs]
    assert 0.2 < sum(job.purse_usd is not None for job in jobs) / len(jobs) < 0.4


@pytest.mark.parametrize(("flag", "name", "known"), [("--cloud", "gcp", "ray"), ("--only", "nosuch", "take_told")])
def test_a_name_that_nothing_answers_to_is_refused_with_those_that_there_are(flag, name, known, capsys):
    with pytest.raises(SystemExit):
        main([flag, name, "--seeds", "1"])
    said = capsys.readouterr().err
    assert name in said
    assert known in said


def test_all_red_seeds_are_told_in_one_line_and_kept_with_the_commit(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runner, "run_seed", lambda seed, *_, **__: Result(seed=seed, law="I6" if seed % 2 else "L"))
    monkeypatch.setattr(runner, "commit", lambda: "abc1234")
    monkeypatch.setattr(runner, "A_BATCH", 200)  # no life leaves garbage here: once is enough to look for it
    assert main(["--seeds", "200", "--processes", "1", "--shrink", "0", "--count", str(tmp_path / "counts")]) == 2
    odd, even = " ".join(map(str, range(1, 200, 2))), " ".join(map(str, range(0, 200, 2)))
    assert f"red on abc1234: I6 {odd}; L {even}\n" in capsys.readouterr().out
    row = json.loads((tmp_path / "counts").read_text())
    assert row["commit"] == "abc1234"
    assert row["broken"] == {"I6": list(range(1, 200, 2)), "L": list(range(0, 200, 2))}
