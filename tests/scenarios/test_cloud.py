"""Scenarios 2 to 6 and 29 against EC2 on loopback (level C): the shipped provider, and answers that lie."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from sublet.errors import NoAnswer, SubletError
from sublet.runtime.providers.aws.calls import Calls, client_maker
from tests.rigs.moto_cloud import AwsRig, moto

pytestmark = pytest.mark.timeout(300)


class Lying:
    """A client of EC2 whose answers a test chooses: `lies` maps a verb to what happens instead of its answer."""

    def __init__(self, real, lies, asked):
        self._real, self._lies, self._asked = real, lies, asked

    def __getattr__(self, verb):
        real = getattr(self._real, verb)
        if verb not in self._lies:
            return real

        def call(**request):
            self._asked.append((time.monotonic(), verb))
            return self._lies[verb](real, request)

        return call


def lying(**lies):
    """(calls, what was asked and when)."""
    asked, make = [], client_maker(moto())
    return Calls(lambda service, region: Lying(make(service, region), lies, asked)), asked


def refusal(code, status=400):
    facts = {"Error": {"Code": code, "Message": "as a test wants it"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(facts, "verb")


def once(error):
    """Done, and then the answer is lost, the first time."""
    left = [error]

    def lie(real, request):
        answer = real(**request)
        if left:
            raise left.pop()
        return answer

    return lie


async def insisted(work):
    """What the controller does with a call that has no answer: the same again."""
    for _ in range(5):
        try:
            return await work()
        except NoAnswer:
            await asyncio.sleep(0.05)
    raise AssertionError("no answer in five tries")


@pytest.fixture
def cloud():
    rig = AwsRig()
    yield rig
    rig.clean_up()


@pytest.mark.scenario(2, "a create that times out, and the instance exists", "C")
def test_02_a_create_that_timed_out_is_one_instance_and_is_adopted(cloud, measured):
    calls, asked = lying(run_instances=once(ReadTimeoutError(endpoint_url="https://ec2")))

    async def live():
        provider = cloud.provider(calls=calls)
        await provider.open(lambda news: None)
        began_s = time.monotonic()
        await insisted(lambda: provider.rent("n1", cloud.offer_id, "token-1"))
        took_s = time.monotonic() - began_s
        assert cloud.left() == ["n1"], "exactly one per slot and token"
        assert [node.node_id for node in await provider.list()] == ["n1"]
        await provider.rent("n1", cloud.offer_id, "token-1")
        assert cloud.left() == ["n1"]
        await provider.release("n1")
        await provider.close()
        return took_s

    took_s = asyncio.run(live())
    assert asked, "nothing was asked of EC2"
    assert cloud.left() == []
    measured(f"1 instance, adopted after {took_s:.2f} s ({len(asked)} creates asked)")


@pytest.mark.scenario(3, "a create that answers with an error, and the instance exists", "C")
def test_03_a_create_that_failed_by_its_own_word_is_found_and_paid_for_or_ended(cloud, measured):
    """The controller dies in doubt; the next one finds the instance by its tags and ends what nobody wants."""
    calls, _ = lying(run_instances=once(refusal("InternalError", 500)))

    async def first():
        provider = cloud.provider(calls=calls)
        await provider.open(lambda news: None)
        with suppress(NoAnswer):  # whether it asks again by itself or not: then its controller dies
            await provider.rent("n1", cloud.offer_id, "token-1")
        await provider.close()

    async def second():
        began_s = time.monotonic()
        provider = cloud.provider()
        await provider.open(lambda news: None)
        found = await provider.list()
        assert [node.node_id for node in found] == ["n1"], "it is paid for and nobody knows it"
        billed = await provider.release("n1")
        await provider.close()
        return time.monotonic() - began_s, billed

    asyncio.run(first())
    assert cloud.left() == ["n1"]
    took_s, billed = asyncio.run(second())
    assert cloud.left() == []
    assert billed is not None
    assert not billed.nothing, "its cost belongs into the ledger"
    measured(f"found by its tags and ended after {took_s:.2f} s, with its bill")


@pytest.mark.scenario(4, "a new instance is missing in listings for up to 60 s", "C")
def test_04_a_new_instance_that_no_listing_shows_is_still_ours(cloud, measured):
    hidden = [True]

    def blind(real, request):
        answer = real(**request)
        if hidden[0]:
            answer["Reservations"] = []
        return answer

    calls, asked = lying(describe_instances=blind)
    news = []

    async def live():
        provider = cloud.provider(calls=calls, poll_s=0.05)
        await provider.open(news.append)
        await provider.rent("n1", cloud.offer_id, "token-1")
        for _ in range(10):
            await asyncio.sleep(0.06)
            assert [node.node_id for node in await provider.list()] == ["n1"], "it was forgotten"
        await provider.rent("n1", cloud.offer_id, "token-1")
        assert cloud.left() == ["n1"]
        hidden[0] = False
        await provider.release("n1")
        await provider.close()

    asyncio.run(live())
    assert [type(event).__name__ for event in news if type(event).__name__ == "NodeLost"] == []
    measured(f"{len(asked)} listings without it: 1 instance, never told as lost")


@pytest.mark.scenario(
    5,
    "a terminate that is accepted and not done; one that is refused for an hour",
    "C",
    lacks="that tries become rarer: no test looks at the times between them",
)
def test_05_what_was_not_ended_is_never_told_as_ended_and_is_asked_again_more_slowly(cloud, measured):
    refused = {"left": 3}

    def stubborn(real, request):
        if refused["left"]:
            refused["left"] -= 1
            if refused["left"] % 2:
                return {"TerminatingInstances": []}  # accepted, and not done
            raise refusal("UnauthorizedOperation", 403)
        return real(**request)

    calls, asked = lying(terminate_instances=stubborn)
    news = []

    async def live():
        provider = cloud.provider(calls=calls, poll_s=0.05)
        await provider.open(news.append)
        await provider.rent("n1", cloud.offer_id, "token-1")
        tries = 0
        while True:
            tries += 1
            assert tries < 20
            try:
                await asyncio.wait_for(provider.release("n1"), 5.0)
            except (SubletError, TimeoutError):
                assert cloud.left() == ["n1"]
                assert [node.node_id for node in await provider.list()] == ["n1"], "it costs, and is not held"
                await asyncio.sleep(0.2)
            else:
                break
        assert cloud.left() == [], "told as ended, and it runs"
        await provider.close()
        return tries

    tries = asyncio.run(live())
    assert not refused["left"]
    measured(f"3 refusals: {tries} tries, {len(asked)} calls; held and listed until it was gone")
