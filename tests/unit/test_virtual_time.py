from __future__ import annotations

import asyncio
import threading
import time

import pytest

from sublet.machine.wall import WALL

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_a_loop_does_not_wait_and_all_clocks_have_moved_on(virtual_time):
    async def sleep():
        loop = asyncio.get_running_loop()
        before = (loop.time(), WALL.monotonic(), WALL.unix(), WALL.since_boot()[1])
        await asyncio.sleep(3600.0)
        after = (loop.time(), WALL.monotonic(), WALL.unix(), WALL.since_boot()[1])
        return [now_s - then_s for now_s, then_s in zip(after, before, strict=True)]

    assert asyncio.run(sleep()) == pytest.approx([3600.0] * 4, abs=1e-3)


def test_what_follows_from_something_is_later():
    async def follow():
        loop, later_s = asyncio.get_running_loop(), []
        before_s = loop.time()
        loop.call_soon(lambda: later_s.append(loop.time()))
        await asyncio.sleep(0)
        return later_s[0] - before_s

    assert 0.0 < asyncio.run(follow()) < 1.0


def test_timers_ring_in_their_order():
    async def rings():
        heard = []

        async def ring(after_s):
            await asyncio.sleep(after_s)
            heard.append(after_s)

        await asyncio.gather(*map(ring, (30.0, 10.0, 20.0)))
        return heard

    assert asyncio.run(rings()) == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("by", ["an executor", "a policy's thread"])
def test_while_a_thread_works_nothing_is_late(by):
    """Its answer comes before a timer of ten minutes, however far away the timer is for a loop that does not wait."""

    async def ask():
        loop, answer = asyncio.get_running_loop(), asyncio.Event()

        def work():
            time.sleep(0.01)
            loop.call_soon_threadsafe(answer.set)

        if by == "an executor":
            task = asyncio.create_task(asyncio.to_thread(work))
        else:
            task = None
            threading.Thread(target=work, name="policy", daemon=True).start()
        await asyncio.wait_for(answer.wait(), 600.0)
        if task is not None:
            await task

    asyncio.run(ask())
