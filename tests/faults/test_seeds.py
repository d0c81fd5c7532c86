"""Many lives, each with its own jobs, knobs and faults: no law is broken, and every kind of fault does something.

A seed that fails here is read with `python -m sublet_lab.world --from SEED --seeds 1 --look`, and made small with
`--shrink 1` (docs/guides/read-a-failing-seed.md).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from sublet_lab.world import crash_points
from sublet_lab.world.__main__ import main
from sublet_lab.world.crash_points import Point, die_at, sample_of
from sublet_lab.world.faults import AT_CALL, AT_COMMIT
from sublet_lab.world.runner import run_seed
from sublet_lab.world.story import CLOUDS, KNOWN, PLAIN, draw_story
from tests.rigs.sizes import sized

SEEDS, A_CHUNK = sized(150, 1000), 25  # all tests must end in time; `make faults` lives more
CLOUDS_ONCE = tuple(dict.fromkeys(CLOUDS))
FINGERPRINT = """
from sublet_lab.world.runner import run_seed
print([(life.digest, life.events) for life in map(run_seed, (3, 11, 24, 72))])
"""


@pytest.mark.parametrize("first", range(0, SEEDS, A_CHUNK))
def test_no_law_is_broken(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + A_CHUNK)]
    gc.collect()
    assert not {result.seed: f"{result.law}: {result.what}" for result in results if result.law}


@pytest.mark.parametrize("cloud", CLOUDS_ONCE)
def test_a_controller_may_die_at_any_commit_and_call(cloud: str) -> None:
    """A sample of them, drawn by SCENARIO_SEED; `--crash-points 1` dies at all."""
    seed = os.environ.get("SCENARIO_SEED", "2")
    story = replace(draw_story(int(seed), cloud=cloud), faults=())
    lives = {point: die_at(story, point) for point in sample_of(story, 5, seed)}
    assert not {str(point): str(life.broken) for point, life in lives.items() if life.broken}
    assert [point for point, life in lives.items() if life.lives == 1] == []


BESIDE = {"clock": ("kill_controller",)}  # only who starts asks the clock


@pytest.mark.long
def test_every_kind_of_fault_does_something() -> None:
    effects: Counter[str] = Counter()
    for kind in (*PLAIN, *KNOWN):
        for seed in range(5000, 5030):
            effects.update(run_seed(seed, (kind, *BESIDE.get(kind, ()))).effects)
            if effects[kind]:
                break
    assert not {kind for kind in (*PLAIN, *KNOWN) if not effects[kind]}


def test_a_seed_is_the_same_life_in_every_process() -> None:
    lives = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "7")
    }
    assert len(lives) == 1


@pytest.mark.long
def test_deaths_are_told_by_kind_of_point_and_by_law_and_counted_in_a_file(tmp_path, capsys):
    words = ["--seeds", "1", "--crash-points", "150", "--processes", "1", "--count", str(tmp_path / "counts")]
    assert main(words) == 0
    (row,) = map(json.loads, (tmp_path / "counts").read_text().splitlines())
    assert sum(row["points"].values()) == row["deaths"] >= 2
    assert (row["laws"], row["broken"], row["every"]) == ({}, [], 150)
    assert "at commits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seed", "point"),
    [
        (18, Point(AT_COMMIT, 20, before=True)),  # a refusal was heard: for the next one the order is in doubt
        (20, Point(AT_COMMIT, 104, before=True)),  # a node was seen to end: for the next one it ended with its lease
        (20, Point(AT_CALL, 9, before=False)),
    ],
)
def test_what_was_heard_and_not_written_down_may_be_charged_where_nobody_keeps_records(seed, point):
    outcome = die_at(replace(draw_story(seed), faults=()), point)
    assert outcome.lives == 2
    assert outcome.broken is None, outcome.broken


@pytest.mark.long
def test_lives_of_many_points_are_left_out_and_none_left_is_no_success(capsys):
    words = ["--seeds", "2", "--from", "3", "--crash-points", "40", "--processes", "1", "--most-points"]
    assert main([*words, "100"]) == 0  # of seeds 3 and 4 the first is a short life
    assert "of 2 seeds: 1 lives, " in capsys.readouterr().out
    assert main([*words, "10"]) == 1
    assert "as few as 10 points" in capsys.readouterr().out


def test_a_world_that_breaks_at_a_point_is_a_finding_and_the_others_are_died_at(monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(crash_points, "die_at", breaks)
    found = crash_points._die((0, "", "", [Point(AT_COMMIT, 1, before=True), Point(AT_COMMIT, 2, before=True)]))
    assert (found.points.total(), found.laws["WORLD"], len(found.broken)) == (2, 2, 2)
    assert "2 broke a law (WORLD 2)" in str(found)
