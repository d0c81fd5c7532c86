"""People hear that credentials end while they can still renew them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.watch.alarms import Access
from sublet.runtime.providers.aws.calls import Calls, expiry_of
from sublet_lab.memory_cloud import MemoryCloud, one_gpu_offer
from tests.rigs.story import Story, until

H = 3600.0
ENDS = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("left_h", "told"),
    [
        ([None, 26.0], []),
        ([26.0, 25.0, 24.9, 24.0, 1.0], ["end in 25.0 h"]),
        ([-1.0, -2.0], ["have ended"]),
        ([2.0, 72.0, 24.0], ["end in 2.0 h", "end in 24.0 h"]),
        ([2.0, None, 2.0], ["end in 2.0 h", "end in 2.0 h"]),
    ],
    ids=["later", "once", "ended", "renewed", "forgotten"],
)
def test_it_is_said_once_and_a_day_before_at_the_latest(left_h, told):
    left, heard = iter(left_h), []
    hours = lambda: None if (one := next(left)) is None else one * H  # noqa: E731
    access = Access(hours, SimpleNamespace(sound=lambda _, text: heard.append(text)))
    for _ in left_h:
        access.check()
    assert [text.partition(":")[0].removeprefix("the credentials of the cloud ") for text in heard] == told


class Ending(MemoryCloud):
    """Its credentials end in a day."""

    def access_left_s(self):
        return 24.0 * H


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(("cloud", "times"), [(Ending, 1), (MemoryCloud, 0)])
def test_a_running_controller_tells_it_in_the_history(tmp_path, cloud, times):
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=4)})
    story.cloud = cloud((one_gpu_offer("spot"),), Clock(speedup=60.0))

    async def live():
        async with story.controller() as api:
            looks = api._controller.nodes.reaper._paces.sweep_s * 5

            async def passed():
                return api._controller.clock.wall.monotonic() > began_s + looks

            began_s = api._controller.clock.wall.monotonic()
            await until(passed, "some sweeps")
            told = [event["text"] for event in await api.events() if event["kind"] == "Alarm"]
            assert sum("credentials" in text for text in told) == len(told) == times

    asyncio.run(live())


def a_client(**facts):
    return SimpleNamespace(_request_signer=SimpleNamespace(_credentials=SimpleNamespace(**facts)))


def test_credentials_that_are_renewed_do_not_end():
    assert expiry_of(a_client(method="env", _expiry_time=ENDS)) == ENDS
    assert expiry_of(a_client(method="iam-role", _expiry_time=ENDS)) is None
    assert expiry_of(a_client(method="shared-credentials-file")) is None
    assert expiry_of(object()) is None


def test_of_all_regions_the_credentials_are_the_same():
    calls = Calls(lambda service, region: a_client(method="env", _expiry_time=ENDS if region == "b" else None))
    assert calls.access_ends() is None
    for region in "ab":
        asyncio.run(calls._client(region))
    assert calls.access_ends() == ENDS
