"""A worker that says the same again and again fills neither the store nor the history, and the others are answered."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain.units import MINUTE_S
from sublet.runtime.controller.watch.history import MOST_ROWS
from sublet.wire import messages as wire
from sublet.wire.lines import from_line, to_line
from tests.rigs.story import Story, a_spec, phase

pytestmark = pytest.mark.usefixtures("virtual_time")
TIMES = 200
MOST_STORED = 2 << 20  # bytes


def flood(api, cloud, say):
    """As it comes over the wire, from the one worker that there is."""
    (worker,) = api.record("j-1").group.workers.values()
    for at in range(TIMES):
        cloud._say(worker.node_id, wire.FromWorker(message=from_line(to_line(say(worker.id, at)))))


async def alarms(api, kind):
    return [event["text"] for event in await api.events(limit=10_000) if event["kind"] == kind]


def stored(story):
    return sum(path.stat().st_size for path in story.folder.glob("log.sqlite*"))


def test_saves_that_fail_in_a_loop_with_400000_letters_are_cut_counted_and_told(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            flood(api, story.cloud, lambda worker, at: wire.SaveFailed(worker_id=worker, step=at, why="x " * 200_000))
            await asyncio.sleep(1.0)
            assert (await api.job("j-1"))["phase"] == "running"
            assert len(await alarms(api, "Alarm")) == MOST_ROWS
            await asyncio.sleep(MINUTE_S)
            told = await alarms(api, "Alarm")
            assert len(told) == MOST_ROWS + 1
            assert told[-1].startswith(f"{TIMES - MOST_ROWS} more rows like this within a minute: the checkpoint of")
            assert stored(story) < MOST_STORED

    asyncio.run(live())


def test_damaged_checkpoints_without_end_are_remembered_up_to_a_hundred(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            flood(
                api,
                story.cloud,
                lambda worker, at: wire.Damaged(
                    worker_id=worker, paths=tuple(f"{at}-{part}" for part in range(1_000)), why="torn", step=1
                ),
            )
            await asyncio.sleep(1.0)
            assert len(api.record("j-1").damaged) == 100
            told = await alarms(api, "Damaged")
            assert len(told) == MOST_ROWS
            assert "and 990 more (torn)" in told[0]
            assert stored(story) < MOST_STORED

    asyncio.run(live())
