"""Five hundred jobs at once, at a cloud that lets in two launches a second: nothing is lost, submitting is quick."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sublet.runtime.controller.gauges import CallOutcome
from sublet.runtime.controller.paces import Paces
from sublet.testing.world.ec2 import Ec2Cloud
from sublet.testing.world.life import Life
from sublet.testing.world.story import JobPlan, Story

JOBS = 500
CANCELLED_S = 100.0


def a_job(number):
    return JobPlan(name=f"job{number}", at_s=1e9, max_workers=1, steps=10, step_s=1.0, boot_s=1.0, write_s=1.0)


STORM = Story(
    seed=1,
    jobs=tuple(map(a_job, range(JOBS))),
    faults=(),
    cloud="aws",
    most_nodes=JOBS,
    policy="fifo",
    paces=Paces(tick_s=5.0, sweep_s=30.0, agent_comes_s=1e6),
)


class NobodyThere:
    """A machine that boots for ever: this is about renting."""

    workers = ()
    connected = ended_for_lease = False

    def switch_off(self):
        pass


@dataclass
class Storm(Life):
    """All jobs come at once; with `change_of_mind` all are cancelled while most of their nodes are waited for."""

    change_of_mind: bool = False
    submitted_s: list[float] = field(default_factory=list)  # real seconds, each
    all_rented_s: float = 0.0

    def _boot(self, node_id, token, boot_s, gone):
        return NobodyThere()

    def _run(self):
        stage, controllers = self.stage, self.stage.controllers
        stage.cloud.page = 1000
        controllers.start()
        world = stage.world
        world.run(world.now_s + 5.0)
        controllers.process.spawn(self._bring_all(controllers.api))
        nodes = controllers.controller.kernel.cluster.nodes
        if self.change_of_mind:
            world.run(world.now_s + CANCELLED_S)
            self.waited = sum(not cloud_has(self.cloud, node_id) for node_id in nodes)
            controllers.process.spawn(self._cancel_all(controllers.api))
            world.run(world.now_s + 600.0, stop=lambda: world.steps % 64 == 0 and not nodes)
        else:
            world.run(world.now_s + 1200.0, stop=lambda: len(self.cloud.instances) >= JOBS)
        self.all_rented_s = world.age_s
        world.run(world.now_s + 2.0)  # the last answers come
        self.calls = dict(controllers.controller.gauges.calls["rent"])
        self.held = set(controllers.controller.kernel.cluster.nodes)
        self.told = [text for (text,) in stage.disk.rows("SELECT text FROM history WHERE kind = 'Alarm'")]

    async def _bring_all(self, api):
        for plan in self.story.jobs:
            began = time.perf_counter()
            await api.submit(self.stage.users.spec_of(plan), key=plan.name)
            self.submitted_s.append(time.perf_counter() - began)

    async def _cancel_all(self, api):
        for plan in self.story.jobs:
            await api.cancel(f"{plan.name}-1")


def cloud_has(cloud: Ec2Cloud, node_id: str) -> bool:
    return any(instance.node_id == node_id for instance in cloud.instances.values())


def test_500_jobs_at_once_are_all_given_a_node_and_none_twice():
    storm = Storm(STORM)
    storm.live()
    assert len(storm.submitted_s) == JOBS
    assert sorted(storm.submitted_s)[int(0.99 * JOBS)] <= 0.5  # seconds
    nodes = [instance.node_id for instance in storm.cloud.instances.values()]
    assert len(nodes) == len(set(nodes)) == JOBS
    assert set(nodes) == storm.held
    assert storm.all_rented_s <= 1.2 * JOBS  # we launch one a second
    assert storm.cloud.throttled <= 0.02 * JOBS
    assert storm.calls[CallOutcome.OK] == JOBS
    assert any("lets us rent no quicker" in text for text in storm.told)


def test_who_changes_their_mind_in_a_storm_pays_for_what_was_rented_and_no_more():
    storm = Storm(STORM, change_of_mind=True)
    storm.live()
    assert storm.waited > 300
    assert len(storm.cloud.instances) < JOBS - 300
    assert storm.cloud.alive() == []
    assert storm.held == set()
