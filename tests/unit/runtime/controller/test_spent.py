"""A worker that logs is told what its job costs; one that does not is told nothing that it may not understand."""

from __future__ import annotations

import asyncio

import pytest

from sublet.wire import messages as wire
from tests.rigs.scripts import Scene, a_script, earning, living
from tests.rigs.story import until

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.mark.parametrize("logs", [True, False])
def test_what_a_job_has_cost_is_told_to_a_worker_that_logs_it(tmp_path, logs):
    story, told = Scene(tmp_path), []
    send = story.cloud.send

    def noted(node_id, message):
        told.extend([message] if isinstance(message, wire.Spent) else [])
        send(node_id, message)

    story.cloud.send = noted

    def step(number):
        story.cloud.hear(wire.Stepped, generation=1, step=number, done=1.0, epoch=0, loss=1.0, step_s=0.1, logs=logs)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        ((_, worker),) = story.cloud.running()
        for number in range(3):
            step(number)
        await asyncio.sleep(2.0)
        bill = (await api.cost("j-1"))["usd_total"]
        api.record("j-1").noticed, api.record("j-1").resizes = 2, 3
        step(9)
        if logs:
            await until(lambda: asyncio.sleep(0, len(told) == 2), "nobody is told")  # once a second
            assert told[1].worker_id == worker.id
            assert told[1].usd == pytest.approx(bill, rel=0.2)
            assert (told[1].resizes, told[1].preemptions) == (3, 2)
        else:
            await asyncio.sleep(1.0)
            assert told == []

    living(story, scene)
