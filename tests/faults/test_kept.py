"""Plain seeds have two controllers, stores that keep next to nothing and rotten checkpoints, and those do something."""

from __future__ import annotations

import gzip

import pytest

from sublet.runtime.archive import Kept
from sublet.runtime.controller.host import PACES, Paces
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import Fault, JobPlan, Story, draw_story
from sublet_lab.world.written import archives, missing

SHORT = Paces(events_a_snapshot=5, events_a_file=10, history_kept=1, jobs_kept=0, jobs_shelved=1)
JOB = JobPlan(
    name="job0", at_s=1.0, max_workers=2, steps=200, step_s=0.5, boot_s=1.0, write_s=0.5, checkpoint_every_s=8.0
)
BRIEF = JobPlan(name="job1", at_s=2.0, max_workers=1, steps=40, step_s=0.5, boot_s=1.0, write_s=0.5)


def a_story(*faults, **facts):
    return Story(**{"seed": 1, "jobs": (JOB, BRIEF), "faults": faults, **facts})


def test_they_are_drawn():
    stories = [draw_story(seed) for seed in range(100)]
    kinds = {fault.kind for story in stories for fault in story.faults}
    assert {"second_controller", "rot"} <= kinds
    short = [s for s in stories if s.paces.events_a_file < PACES.events_a_file]
    assert 15 <= len(short) <= 50
    assert all(s.paces.history_kept < 100 and s.paces.jobs_kept < 2 for s in short)


def test_what_is_cut_is_in_the_archive_and_what_has_ended_on_the_shelf_and_both_are_counted():
    life = Life(a_story(paces=SHORT))
    kept = {}
    life.watch = lambda lived: kept.update(files=lived.stage.controllers.files)
    outcome = life.live()
    assert outcome.broken is None
    assert {kind: outcome.effects[kind] for kind in ("short_log", "short_history", "shelf")} == {
        "short_log": 1,
        "short_history": 1,
        "shelf": 1,
    }
    assert archives(kept["files"].contents, Kept.EVENTS)


def test_an_event_that_is_neither_in_the_log_nor_in_the_archive_breaks_a_law(monkeypatch):
    def forgetful(self, path, data, **_):
        self.contents[path] = gzip.compress(b"".join(gzip.decompress(data).splitlines(keepends=True)[:-1]))

    monkeypatch.setattr("sublet_lab.world.machine.MemoryFiles.write", forgetful)
    assert str(live(a_story(paces=SHORT)).broken).startswith("A: events")


def test_a_store_that_keeps_everything_has_no_archive():
    outcome = live(a_story())
    assert not {"short_log", "short_history", "shelf"} & (outcome.hits.keys() | outcome.effects.keys())


def test_nodes_go_whose_jobs_are_on_the_shelf():
    take = (Fault(at_s=60.0, kind="take_told", rng=1), Fault(at_s=80.0, kind="take_untold", rng=2))
    assert live(a_story(*take, paces=SHORT, most_nodes=1)).broken is None


@pytest.mark.parametrize("at_s", [20.0, 60.0])
def test_a_rotten_checkpoint_is_read_and_found(at_s):
    outcome = live(a_story(Fault(at_s=at_s, kind="rot", rng=3), jobs=(JOB,)))
    assert outcome.broken is None
    assert (outcome.hits["rot"], outcome.effects["rot"]) == (1, 1)


def test_numbers_that_are_nowhere_are_missing():
    assert missing({1: 0, 2: 0, 5: 0}) == [3, 4]
    assert not missing({})
