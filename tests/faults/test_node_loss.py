"""Whatever a job does when it loses a node: it comes to an end, or says what it waits for, and no law is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.testing.world.kinds.nodes import nodes_of
from sublet.testing.world.life import Life, live
from sublet.testing.world.story import JobPlan, Story, draw_story

LOSSES = ("take_told", "take_untold", "notice", "sold_out", "kill_controller", "stop_controller")


@pytest.mark.parametrize("choice", [*OnNodeLoss])
@pytest.mark.parametrize("seed", range(4))
def test_every_job_comes_to_an_end_whatever_it_does_about_a_loss(choice, seed):
    story = draw_story(seed, LOSSES)
    jobs = tuple(replace(job, on_node_loss=str(choice)) for job in story.jobs)
    outcome = live(replace(story, jobs=jobs))
    assert outcome.broken is None, outcome.broken


@pytest.mark.parametrize(("cloud", "rests"), [("plain", True), ("local", False)])
def test_a_pool_rests_where_the_cloud_took_all_nodes_again_and_again_and_not_where_agents_ended(cloud, rests):
    """The local provider knows that it did not take them: that says nothing of a pool."""

    def watch(life):
        def sweep():
            nodes = nodes_of(life.stage)
            for instance, _ in nodes if len(nodes) > 1 else ():
                life.cloud.take(instance, told=True)
            if not life.stage.calm:
                life.stage.world.after(5.0, sweep)

        life.stage.world.after(30.0, sweep)

    job = JobPlan(name="job0", at_s=1.0, max_workers=2, steps=100, step_s=1.0, boot_s=1.0, write_s=0.5)
    life = Life(Story(seed=1, jobs=(job,), faults=(), cloud=cloud, span_s=120.0), watch, keep_history=True)
    life.live()
    assert sum("NodeLost" in what for _, what, _ in life.history) >= 4
    assert any("were taken at once" in text for _, what, text in life.history if what == "BackOff") == rests
