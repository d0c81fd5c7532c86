"""What befalls the file of a store and its archive: each kind strikes, is counted where it does, and no law breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime import archive
from sublet.runtime.controller.host import Paces
from sublet_lab.world.kinds import archives, stores
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import Fault, JobPlan, Story

JOB = JobPlan(
    name="job0", at_s=1.0, max_workers=2, steps=200, step_s=1.0, boot_s=1.0, write_s=0.5, checkpoint_every_s=8.0
)
FIRST = replace(JOB, name="job1", max_workers=1, steps=20)
SHORT = Paces(events_a_snapshot=5, events_a_file=10, history_kept=10, jobs_kept=0, jobs_shelved=1)


def a_story(*kinds: str, rng: int = 1, at_s: float = 60.0, **facts: object) -> Story:
    faults = tuple(Fault(at_s=at_s + 10.0 * number, kind=kind, rng=rng) for number, kind in enumerate(kinds))
    return Story(**{"seed": 1, "jobs": (JOB, FIRST), "faults": faults, "paces": SHORT, **facts})


def test_a_log_that_was_read_without_any_snapshot_is_still_lived_again_from_its_first_line():
    """Shrunk from seeds 44, 71 and 144: followed as of another kernel, it could be replayed no more."""
    outcome = live(a_story("older_schema", "replay", at_s=22.0))
    assert outcome.broken is None
    assert (outcome.effects["older_schema"], outcome.effects["replay"]) == (1, 1)


def test_the_whole_log_is_lived_again_while_a_controller_writes_it():
    outcome = live(a_story("replay", "replay"))
    assert (outcome.broken, outcome.effects["replay"]) == (None, 2)


def test_a_law_breaks_where_the_archive_says_another_thing_than_was_cut(monkeypatch):
    """Else nobody would see that: a start reads none of it."""
    read = archive.WholeLog._read
    monkeypatch.setattr(archive.WholeLog, "_read", lambda self, first: read(self, first)[::-1])
    assert live(a_story("replay")).broken.law == "A"


@pytest.mark.parametrize("torn", [0.0, 1.0])
def test_whoever_dies_between_an_archive_and_the_cut_is_followed_by_one_who_writes_it_again(monkeypatch, torn):
    """What another disk would have left of it is kept beside."""
    monkeypatch.setattr(archives, "TORN", torn)
    life = Life(a_story("crash_archive", at_s=25.0))
    outcome = life.live()
    assert (outcome.broken, outcome.effects["crash_archive"]) == (None, 1)
    assert any(".other-" in path.name for path in life.stage.controllers.files.contents) == bool(torn)


@pytest.mark.parametrize("http", [False, True])
def test_a_job_that_was_put_on_the_shelf_is_told_as_it_ended(http):
    outcome = live(a_story("user_returns", http=http))
    assert (outcome.broken, outcome.effects["user_returns"]) == (None, 1)


def test_without_room_for_its_archive_the_log_grows_and_people_are_told():
    life = Life(a_story("full_archive", at_s=25.0), keep_history=True)
    outcome = life.live()
    assert (outcome.broken, outcome.effects["full_archive"]) == (None, 1)
    assert any("the log cannot be cut, and grows" in text for _, _, text in life.history)


def test_an_archive_that_a_start_needs_and_that_is_damaged_is_waited_for(monkeypatch):
    monkeypatch.setattr(archives, "NEEDED", 1.0)
    outcome = live(a_story("rotten_archive"))
    assert (outcome.broken, outcome.effects["rotten_archive"]) == (None, 1)
    assert outcome.lives > 2


def test_a_log_that_was_moved_away_from_its_archive_is_waited_for():
    outcome = live(a_story("lost_log"))
    assert (outcome.broken, outcome.effects["lost_log"]) == (None, 1)
    assert outcome.lives > 2


@pytest.mark.parametrize("dies", [0.0, 1.0])
def test_a_store_of_the_first_version_is_made_one_of_today_also_by_one_that_dies_of_it(monkeypatch, dies):
    monkeypatch.setattr(stores, "DIES", dies)
    outcome = live(a_story("older_schema", paces=Paces()))
    assert (outcome.broken, outcome.effects["older_schema"]) == (None, 1)
    assert outcome.lives == 2 + int(dies)


def test_a_damaged_store_is_begun_on_by_nobody_until_it_is_repaired():
    outcome = live(a_story("damaged_store"))
    assert (outcome.broken, outcome.effects["damaged_store"]) == (None, 1)
    assert outcome.lives > 2


def test_a_store_of_which_nobody_says_who_wrote_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(stores, "NEWER_STORES", ())
    outcome = live(a_story("foreign_store"))
    assert (outcome.broken, outcome.effects["foreign_store"]) == (None, 1)
