"""A step that does not fit into memory is told of, costs nobody a retry, and is known to the next controller."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import Retries
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_MEMORY
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.story import OFFERS, Story, a_spec, adds_up, trained

pytestmark = pytest.mark.usefixtures("virtual_time")


class Narrow(MemoryCloud):
    """Four samples at a time fit; sixteen are tried first. `ends`: it is the script that runs short, and it ends."""

    ends = True

    def _regroup(self, worker, order):
        super()._regroup(worker, order)
        tried = order.micro_batch or 16
        if tried > 4 and worker.order is order:
            facts = {"generation": order.generation, "step": 0, "samples": tried, "micro_batch": tried // 2}
            self._word(worker.node_id, wire.ShortOfMemory(worker_id=worker.id, ends=self.ends, **facts))
            if self.ends:
                self._end(self.nodes[worker.node_id], worker, EXIT_MEMORY)
            else:
                self._leave_groups(worker)


@pytest.mark.parametrize(("ends", "workers"), [(True, 1), (True, 2), (False, 2)])
def test_it_is_an_event_a_metric_and_a_line_of_ps_and_uses_no_retry(tmp_path, ends, workers):
    story = Story(tmp_path)
    story.cloud = Narrow(OFFERS, Clock(speedup=60.0))
    story.cloud.ends = ends
    story.cloud.jobs["j-1"] = Training(steps=100_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=workers, min_workers=workers, retries=Retries(user=0, infra=0)))
            await trained(api, "j-1", 5)
            view = await api.job("j-1")
            assert (view["failures_user"], view["failures_infra"]) == (0, 0)
            assert [text for text in view["warnings"] if "takes 4 at a time" in text]
            texts = [event["text"] for event in await api.events() if event["kind"] == "Memory"]
            assert [text.partition(" did not fit")[0] for text in texts] == [  # once a cut, whoever else says so
                "16 samples at a time",
                "8 samples at a time",
            ]
            assert all("no retry is used" in text for text in texts)
            assert (await api.metrics())["short_of_memory"] == 2
            adds_up(api)
        async with story.controller() as api:  # the next one knows
            await trained(api, "j-1", 10)
            assert [text for text in (await api.job("j-1"))["warnings"] if "takes 4 at a time" in text]

    asyncio.run(live())
