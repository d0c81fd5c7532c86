"""Whatever a job does when it loses a node: it comes to an end, or says what it waits for, and no law is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.testing.world.life import live
from sublet.testing.world.story import draw_story

LOSSES = ("take_told", "take_untold", "notice", "sold_out", "kill_controller", "stop_controller")


@pytest.mark.parametrize("choice", [*OnNodeLoss])
@pytest.mark.parametrize("seed", range(4))
def test_every_job_comes_to_an_end_whatever_it_does_about_a_loss(choice, seed):
    story = draw_story(seed, LOSSES)
    jobs = tuple(replace(job, on_node_loss=str(choice)) for job in story.jobs)
    outcome = live(replace(story, jobs=jobs))
    assert outcome.broken is None, outcome.broken
