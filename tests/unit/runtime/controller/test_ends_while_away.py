"""A controller that comes back hears of ends that it knows: what it makes of a job is what happened since."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import Retries
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud
from tests.rigs.story import OFFERS, Story, a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Remembering(MemoryCloud):
    """Its agents tell whoever comes back of all ends, as ours do."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ended = {}  # node -> ends

    def _end(self, node, worker, code, error=""):
        down = wire.WorkerDown(worker_id=worker.id, code=code, error=error)
        self.ended.setdefault(node.id, []).append(down)
        super()._end(node, worker, code, error)

    def _greet(self, node):
        super()._greet(node)
        if self._tokens.get(node.id) == node.token:
            for down in self.ended.get(node.id, []):
                self._say(node.id, down)

    def end_workers(self, code):
        """Of all jobs; how many they were."""
        pairs = [(node, worker) for node in self.nodes.values() for worker in list(node.workers.values())]
        for node, worker in pairs:
            self._end(node, worker, code)
        return len(pairs)


def a_story(folder):
    story = Story(folder)
    story.cloud = Remembering(OFFERS, Clock(speedup=60.0))
    return story


async def runs(api, story):
    """A worker of it is there, and the kernel knows."""

    async def there():
        group = api._controller.records["j-1"].group
        return group.training and any(node.workers for node in story.cloud.nodes.values())

    await until(there, "it never ran")
    await phase(api, "j-1", "running")


@pytest.mark.parametrize("code", [5, -9])
def test_a_script_that_failed_once_and_ended_well_while_nobody_was_there_has_finished(tmp_path, code):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(sdk=False, max_workers=1, retries=Retries(user=1)))
            await runs(api, story)
            story.cloud.end_workers(code)

            async def counted():
                view = await api.job("j-1")
                return view["failures_user"] + view["failures_infra"] == 1

            await until(counted, "its failure was not counted")
            await runs(api, story)
        assert story.cloud.end_workers(0) == 1
        async with story.controller() as api:
            view = await phase(api, "j-1", "finished", "failed")
            assert (view["phase"], view["error"]) == ("finished", "")
            assert view["failures_user"] + view["failures_infra"] == 1
            parts = api._controller.logs.of("j-1").parts(rank=0)
            assert [bool(part.ended) for part in parts] == [True, False]

    asyncio.run(live())


def test_failures_that_are_nobodys_fault_are_in_a_row_over_a_restart(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(sdk=False, max_workers=1, retries=Retries(infra=1)))
            await runs(api, story)
            story.cloud.end_workers(-9)

            async def counted():
                return (await api.job("j-1"))["failures_infra"] == 1

            await until(counted, "its failure was not counted")
            await runs(api, story)
        async with story.controller() as api:
            await runs(api, story)
            story.cloud.end_workers(-9)
            assert (await phase(api, "j-1", "failed"))["failures_infra"] == 2

    asyncio.run(live())
