"""A policy that asks for too much: people are told, nothing of its plan is done, and it is asked again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from sublet.domain.events import NodeLost
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.kernel.journal import replay
from sublet.runtime.controller.core import pump
from sublet_lab.memory_cloud import Training
from sublet_lab.rivals.max_speedup import MaxSpeedup
from tests.rigs.story import Story, a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


@dataclass
class Greedy:
    """Its first plans promise a job more GPUs than there are."""

    too_much: int = 2
    asked: list[float] = field(default_factory=list)

    def decide(self, snapshot):
        waiting = [state.job.id for state in snapshot.waiting.by(lambda state: state.seq)]
        if waiting and len(self.asked) < self.too_much:
            self.asked.append(snapshot.now_s)
            return Plan(shapes={waiting[0]: Shape(next(iter(snapshot.pools)), 10_000)}, hold={"spot": 1})
        return MaxSpeedup().decide(snapshot)


def test_a_plan_above_the_limits_is_told_logged_and_followed_by_another(tmp_path):
    story = Story(tmp_path)
    story.policy = Greedy()

    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = Training(steps=20)
            await api.submit(a_spec())
            await phase(api, "j-1", "finished")
            rows = await api.events()
            assert sum("10000 of GPUs in pool" in row["text"] for row in rows if row["kind"] == "Refused") == 2

    asyncio.run(live())
    first_s, second_s = story.policy.asked
    assert second_s - first_s >= 10.0  # nothing else happened that called for a plan
    orders = [json.loads(line)["actions"] for line in story.log()[1:]]
    refused = [actions for actions in orders if any(action["type"] == "RefusePlan" for action in actions)]
    assert [[action["type"] for action in actions] for actions in refused] == [["RefusePlan", "SetTimer"]] * 2
    replay(story.log())


class Wide:
    """Gives every job that waits more workers than it may have, for so good a reason, until it is `mended`."""

    mended = False

    def decide(self, snapshot):
        if self.mended:
            return MaxSpeedup().decide(snapshot)
        pool, waiting = next(iter(snapshot.pools)), snapshot.waiting.by(lambda state: state.seq)
        shapes = {state.job.id: Shape(pool, 3) for state in waiting}
        return Plan(shapes=shapes, hold={"spot": 3}, reasons=dict.fromkeys(shapes, "three is company"))


def test_a_policy_whose_plans_are_all_refused_is_alarmed_unready_and_decides_nothing(tmp_path):
    story = Story(tmp_path)
    story.policy = Wide()

    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = Training(steps=20)
            await api.submit(a_spec())

            async def told():
                return any("plans are refused" in row["text"] for row in await api.events() if row["kind"] == "Waits")

            await until(told, "nobody was told why the job waits")
            health = await api.health()
            assert not health["ready"], "nothing can be begun"
            assert "refused" in health["why"]
            assert "shapes.gpus" in health["why"]
            assert "j-1" not in health["why"], "probes are open to everybody"
            found = await api.explain("j-1")
            assert "plans are refused" in found["reason"]
            assert "from 1 to 2" in found["reason"]
            assert any("plans are refused" in note for note in found["notes"])
            assert (await api.metrics())["alarms"]["refused"] >= 1
            rows = await api.events()
            assert any("refused" in row["text"] for row in rows if row["kind"] == "Alarm")
            assert any("from 1 to 2" in row["text"] for row in rows if row["kind"] == "Refused")
            assert not any("three is company" in row["text"] for row in rows), "no decision of it holds"
            assert api._controller.decisions.reasons == {}

            story.policy.mended = True
            await phase(api, "j-1", "finished")
            assert (await api.health())["ready"], "a plan was taken"
            assert any(row["kind"] == "Plan" for row in await api.events())

    asyncio.run(live())


def test_news_that_cannot_be_are_told_and_are_no_part_of_the_log(tmp_path, monkeypatch):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            controller = api._controller
            monkeypatch.setattr(pump, "_is_old", lambda *_: False)
            controller.tell(NodeLost(controller.now_s(), "n77"))
            rows = await api.events()
            assert any("no such node" in row["text"] for row in rows if row["kind"] == "Refused")

    asyncio.run(live())
    assert not any("n77" in line for line in story.log())
    replay(story.log())
