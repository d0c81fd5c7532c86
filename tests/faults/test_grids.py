"""Lives with models that are cut: members of grids under the real controller; `--grids` of the world draws them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet_lab.world.grid_worker import GridWorker
from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story
from tests.rigs.sizes import FULL

KINDS = ("kill_worker", "take_untold", "notice", "user_pause")


@pytest.mark.parametrize("seed", range(20 if FULL else 2))
def test_a_life_with_grids_breaks_no_law(seed):
    assert live(draw_story(seed, KINDS, grids=True)).broken is None


@pytest.mark.parametrize("seed", [69, 276] if FULL else [69])
def test_lives_that_broke_a_law(seed):
    """69: a node was asked for by a number that a forgotten one has; 276: a job whose secrets had gone with its end."""
    assert live(draw_story(seed, grids=True)).broken is None


def test_a_grid_whose_members_differ_by_a_step_breaks_the_law_of_grids(monkeypatch):
    """Otherwise a seed that stays green would say nothing."""
    seated = GridWorker.seated

    def off_by_one(self, generation, source):
        self.keeper.steps += self.follows.group.rank == 1
        seated(self, generation, source)

    monkeypatch.setattr(GridWorker, "seated", off_by_one)
    stories = (draw_story(seed, grids=True) for seed in range(20))
    story = next(story for story in stories if story.jobs[0].stages > 1 and not story.jobs[0].fails)
    alone = replace(story, jobs=story.jobs[:1], faults=())
    broken = live(alone).broken
    assert broken is not None
    assert broken.law == "G"


def test_nothing_else_of_a_story_is_another_one_without_grids():
    assert all(plan.stages == 1 for seed in range(30) for plan in draw_story(seed).jobs)
    assert any(plan.stages > 1 for seed in range(5) for plan in draw_story(seed, grids=True).jobs)
