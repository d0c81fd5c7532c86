"""Laws that a bug once lived beside: a notice that is lost for good, two calls at once about one node, a stale call."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.agent.agent import Agent
from sublet.runtime.store import Store
from sublet.wire.messages import Noticed
from sublet_lab.world.disk import Disk
from sublet_lab.world.fence import Fence, WatchedProvider
from sublet_lab.world.heap import World
from sublet_lab.world.life import Life
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.plain import PlainProvider
from tests.rigs.shrunk import a_job, a_story


def a_life_whose_controller_ends_as_it_hears_of_a_notice():
    """It had read the line, and written nothing down."""
    job = a_job("job0", 5.0, 600, 0.5, 1.0, 0.5)
    life = Life(a_story(1, [job], [], cloud="aws", told_inside=True))
    heard = []

    def watch(lived):
        controllers, world = lived.stage.controllers, lived.stage.world

        def hear(number, way, node_id, message):
            if isinstance(message, Noticed):
                heard.append(number)
                if number == 1:
                    controllers.crash(controllers.process)

        def interrupt():
            (instance,) = lived.cloud.alive()
            instance.node.service.interrupt(120.0)

        controllers.heard = hear
        world.after(60.0, interrupt)

    life.watch = watch
    return life, heard


def test_a_notice_that_went_down_with_a_controller_is_known_to_the_next():
    life, heard = a_life_whose_controller_ends_as_it_hears_of_a_notice()
    assert life.live().broken is None
    assert heard == [1, 2]


def test_an_agent_that_says_it_once_breaks_a_law(monkeypatch):
    greet = Agent._greet

    def without_its_notice(self):
        kept, self._notice = self._notice, None
        greet(self)
        self._notice = kept

    monkeypatch.setattr(Agent, "_greet", without_its_notice)
    life, heard = a_life_whose_controller_ends_as_it_hears_of_a_notice()
    assert life.live().broken.law == "N"
    assert heard == [1]


@pytest.fixture
def succeeded(monkeypatch):
    """A life whose controller falls asleep between two tries to rent; awake again, its next try is due at once."""
    life = Life(a_story(1, [a_job("job0", 5.0, 60, 0.5, 1.0, 0.5)], []))
    rent, tries = PlainProvider.rent, []

    async def fail_at_first(self, *facts):
        tries.append(facts)
        if len(tries) > 1:
            return await rent(self, *facts)
        life.stage.world.after(0.1, life.stage.controllers.succeed, 30.0)  # its next try is due before its next tick
        raise OSError("500")

    monkeypatch.setattr(PlainProvider, "rent", fail_at_first)
    return life


def test_who_was_succeeded_between_two_tries_to_rent_does_not_try_again(succeeded):
    outcome = succeeded.live()
    assert outcome.broken is None
    assert outcome.lives == 2


def test_a_call_of_a_controller_that_was_succeeded_breaks_the_law(succeeded, monkeypatch):
    monkeypatch.setattr(Store, "insist", lambda store: None)  # its writes are refused still
    broken = succeeded.live().broken
    assert broken.law == "F"
    assert "was succeeded, and still commits or calls" in broken.what


class Endless:
    """A provider that never answers."""

    async def rent(self, node_id, offer_id, token):
        await asyncio.Event().wait()

    async def release(self, node_id):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("first", "second", "other", "crossed"),
    [
        ("rent", "release", "n1", "release n1 is asked for while rent n1 is under way"),
        ("release", "release", "n1", "release n1 is asked for while release n1 is under way"),
        ("release", "release", "n2", ""),
    ],
)
def test_two_calls_at_once_about_one_node_are_seen(first, second, other, crossed):
    fence = Fence(Disk())
    provider = WatchedProvider(Endless(), LoopProcess(World(1), "controller", "here", None), fence)
    facts = {"rent": ("spot", "token"), "release": ()}

    async def live():
        calls = [asyncio.create_task(getattr(provider, first)("n1", *facts[first]))]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(getattr(provider, second)(other, *facts[second])))
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        after = asyncio.create_task(provider.release("n1"))  # what is over crosses nothing
        await asyncio.sleep(0)
        after.cancel()

    asyncio.run(live())
    assert fence.crossed == crossed
