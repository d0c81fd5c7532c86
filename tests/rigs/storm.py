"""Five hundred jobs at once, at a cloud that lets in two launches a second (EC2 in memory)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sublet.runtime.controller.host import Paces
from sublet.runtime.jobs.spec import spec_to_json
from sublet_lab.world.ec2 import Ec2Cloud
from sublet_lab.world.life import Life
from sublet_lab.world.story import JobPlan, Story

__all__ = ["JOBS", "STORM", "Storm"]

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
        if self.story.http:
            self.bring_over_http()
        else:
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

    def bring_over_http(self):
        """One after the other through the HTTP border, each under its key; the world's seconds or ours, if longer."""
        plans, border, world = iter(self.story.jobs), self.stage.controllers.border, self.stage.world

        def bring(plan):
            began_s, began = world.now_s, time.perf_counter()

            def heard(status, said):
                assert status < 300, said
                self.submitted_s.append(max(world.now_s - began_s, time.perf_counter() - began))
                if (following := next(plans, None)) is not None:
                    bring(following)

            body = {"job": spec_to_json(self.stage.users.spec_of(plan), secrets=True)}
            border.post("/v1/jobs", body, heard, key=plan.name)

        bring(next(plans))

    async def _cancel_all(self, api):
        for plan in self.story.jobs:
            await api.cancel(f"{plan.name}-1")


def cloud_has(cloud: Ec2Cloud, node_id: str) -> bool:
    return any(instance.node_id == node_id for instance in cloud.instances.values())
