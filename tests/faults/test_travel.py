"""Jobs on machines that do not see the controller's disk: their files travel, whatever breaks on the way."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from sublet.wire.files import Kept, Part, Printed
from sublet.wire.messages import StartWorker, WorkerUp
from sublet_lab.world.life import Life
from sublet_lab.world.story import JobPlan, Story
from sublet_lab.world.working import WORK

JOB = JobPlan(name="job0", at_s=1.0, max_workers=2, steps=60, step_s=0.5, boot_s=1.0, write_s=0.2)
STORY = Story(seed=5, jobs=(JOB,), faults=(), most_nodes=1, travels=True)


class Watch:
    """What is said between controllers and agents, and what is done after so many parts went."""

    def __init__(self, *, after=0, then=lambda life, node_id: None):
        self.said, self._after, self._then, self.struck = [], after, then, False

    def __call__(self, life):
        self._life = life
        life.stage.controllers.heard = self.hear

    def hear(self, number, way, node_id, message):
        self.said.append((number, way, node_id, message))
        if isinstance(message, Part) and self._after:
            self._after -= 1
            if not self._after:
                self.struck = True
                self._life.stage.world.after(0.0, self._then, self._life, node_id)

    def all(self, kind):
        return [message for _, _, _, message in self.said if isinstance(message, kind)]


def cut_line(life, node_id):
    for connection in [c for c in life.stage.network.connections if c.socket.host == node_id]:
        connection.reset()


def kill_controller(life, node_id):
    life.stage.controllers.crash(life.stage.controllers.process)


def kill_agent(life, node_id):
    next(instance.node for instance in life.cloud.alive() if instance.node_id == node_id).kill_agent()


def live(story, watch):
    outcome = Life(story, watch=watch).live()
    assert outcome.broken is None, outcome.broken
    assert outcome.ends.get("finished") == len(story.jobs), outcome.ends
    return outcome


def test_a_job_trains_on_machines_that_have_only_what_was_sent_to_them():
    watch = Watch()
    live(STORY, watch)
    assert all(order.travel.code for order in watch.all(StartWorker))
    assert sum(len(part.data) for part in watch.all(Part)) > len(WORK["data/tokens.bin"])


@pytest.mark.parametrize("then", [cut_line, kill_controller, kill_agent])
@pytest.mark.parametrize("after", [1, 4, 8])
def test_what_breaks_while_files_travel_costs_time_and_nothing_else(then, after):
    watch = Watch(after=after, then=then)
    live(replace(STORY, seed=after), watch)
    assert watch.struck
    assert watch.all(WorkerUp)


@pytest.mark.parametrize("then", [None, cut_line, kill_controller])
def test_what_a_script_prints_there_is_kept_by_the_controller_to_the_last_byte(then):
    watch, lives = Watch(), []

    def look_on(life):
        watch(life)
        lives.append(life)
        for at_s in (20.0, 25.0, 30.0) if then else ():
            life.stage.world.after(at_s, lambda: [then(life, each.node_id) for each in life.cloud.alive()])

    live(replace(STORY, jobs=(replace(JOB, sdk=False, steps=80),)), look_on)
    storage, kept = lives[0].site.storage, {said.worker_id: said.offset for said in watch.all(Kept)}
    printed = {said.worker_id: b"" for said in watch.all(Printed)}
    for said in watch.all(Printed):
        before = printed[said.worker_id][: said.offset]
        assert len(before) == said.offset, "nothing is left out"
        printed[said.worker_id] = before + base64.b64decode(said.data)
    written = {path: storage.read(path) for path in storage.below("/notices") if path.endswith(".log")}
    assert {path.rpartition("/")[2].removesuffix(".log"): data for path, data in written.items() if data} == printed
    assert kept == {worker_id: len(data) for worker_id, data in printed.items()}
    assert sum(kept.values()) > 0
