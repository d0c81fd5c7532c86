"""Whatever a job does when it loses a node: it comes to an end, or says what it waits for, and no law is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.runtime.controller.jobs.node_loss import NodeLosses
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet_lab.world.kinds.nodes import nodes_of
from sublet_lab.world.life import Life, live
from sublet_lab.world.story import JobPlan, Story, draw_story

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


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("choice", [OnNodeLoss.REPLACE, OnNodeLoss.FAIL])
def test_what_a_loss_asks_for_is_known_to_the_next_controller(choice, dies):
    """It dies a moment after it has heard of the loss, and no other node can be had: as if it had not died."""

    def watch(life):
        stage, controllers = life.stage, life.stage.controllers

        def lose():
            life.cloud.take(life.cloud.alive()[0], told=True)
            for offer in ("spot", "on-demand"):
                life.cloud.sell_out(offer, 1500.0)
            hear()

        def hear():
            records = controllers.controller.records.values() if controllers.ready else ()
            if any(record.awaited or record.blamed for record in records):
                if dies:
                    stage.world.after(0.05, lambda: controllers.crash(controllers.process))
            else:
                stage.world.after(0.02, hear)

        stage.world.after(60.0, lose)

    job = JobPlan(name="job0", at_s=1.0, max_workers=2, steps=400, step_s=1.0, boot_s=1.0, write_s=0.5)
    job = replace(job, on_node_loss=str(choice), checkpoint_every_s=8.0)
    life = Life(Story(seed=1, jobs=(job,), faults=(), most_nodes=2, span_s=1200.0), watch, keep_history=True)
    outcome = life.live()
    assert outcome.broken is None, outcome.broken
    assert outcome.lives == 1 + dies
    told = [(at_s, text) for at_s, _, text in life.history]
    if choice is OnNodeLoss.FAIL:
        assert outcome.ends == {"failed: lost a node": 1}
    else:
        (until_s,) = [at_s for at_s, text in told if "could not be had again in time" in text]
        assert until_s < 60.0 + 300.0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("commit", [0, 1])
def test_the_end_of_a_wait_is_known_to_the_next_controller(monkeypatch, commit, before):
    """It dies about the commit that says that nobody waits any more: one node can be had, and the job trains on it."""
    wait_no_more, stages = NodeLosses._wait_no_more, []

    def dies_over_it(self, record):
        if stages:
            stages.pop().disk.crash_in(commit, before=before, struck=lambda: None)
        wait_no_more(self, record)

    monkeypatch.setattr(NodeLosses, "_wait_no_more", dies_over_it)

    def watch(life):
        stages.append(life.stage)
        sold_out = life.cloud.is_sold_out

        def lose():
            life.cloud.sell_out("spot", 5000.0)
            life.cloud.is_sold_out = lambda offer: (
                sold_out(offer) or (offer == "on-demand" and len(life.cloud.alive()) >= 1 and not life.stage.calm)
            )
            life.cloud.take(life.cloud.alive()[0], told=True)

        life.stage.world.after(60.0, lose)

    job = JobPlan(name="job0", at_s=1.0, max_workers=2, steps=700, step_s=1.0, boot_s=1.0, write_s=0.5)
    job = replace(job, on_node_loss="replace", checkpoint_every_s=8.0)
    life = Life(Story(seed=1, jobs=(job,), faults=(), most_nodes=2, span_s=1400.0), watch)
    outcome = life.live()
    assert (outcome.broken, outcome.lives) == (None, 2)
    assert outcome.seconds < 1400.0  # finished before everything could be had again
