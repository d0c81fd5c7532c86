"""Plans are made one at a time: of two, the older might come last and undo the newer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from sublet.runtime.controller.core.decisions import Decisions
from sublet.runtime.controller.watch.alarms import Gauges


class Slow:
    """Thinks until it is let go."""

    def __init__(self):
        self.thinking = []

    async def plan(self, snapshot):
        seen, done = snapshot(), asyncio.Event()
        self.thinking.append(done)
        await done.wait()
        return SimpleNamespace(seconds=0.1, plan=object(), snapshot=seen)


def test_a_second_order_for_a_plan_asks_for_the_one_that_is_being_made():
    async def asked_twice():
        told, seen = [], iter(range(9))
        kernel = SimpleNamespace(snapshot=lambda frozen: SimpleNamespace(seen=next(seen)))
        inbox = SimpleNamespace(kernel=kernel, now_s=lambda: 0.0, tell=told.append)
        planner = Slow()
        decisions = Decisions(inbox, planner, SimpleNamespace(gauges=Gauges()))
        orders = []
        for _ in range(2):
            orders.append(asyncio.create_task(decisions.make()))
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.0)
        for thinking in reversed(planner.thinking):  # the youngest is the first to be done
            thinking.set()
            await asyncio.sleep(0.0)
        await asyncio.gather(*orders)
        assert [event.seen for event in told] == [0]
        orders.append(asyncio.create_task(decisions.make()))  # that one is over
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        planner.thinking[-1].set()
        await asyncio.gather(*orders)
        assert [event.seen for event in told] == [0, 1]

    asyncio.run(asked_twice())
