"""Conformance of providers: no node twice, none forgotten, none left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost
from sublet.errors import RentFailed, UnknownName
from sublet.runtime.providers.protocol import Provider
from sublet.testing.conformance import Suite
from sublet.testing.rigs import Ears, ProviderRig, until


class ProviderSuite(Suite):
    """Inherit it as `TestMine`, say `registered_as = "mine"`, and write `make_rig`: your cloud, seen from outside."""

    group = "sublet.providers"

    def make_rig(self) -> ProviderRig:
        """A corner of your cloud that belongs to this test alone."""
        pytest.fail(f"{type(self).__name__}: write make_rig(), see sublet.testing.rigs.ProviderRig")

    @pytest.fixture
    def rig(self) -> Iterator[ProviderRig]:
        """A rig for one test, which must leave nothing that costs money."""
        here = self.make_rig()
        yield here
        assert here.clean_up() == [], "these nodes were left, and would have been paid for"

    def test_two_rents_with_one_token_are_one_node(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider()
            async with opened(provider):
                await provider.rent("a", rig.offer_id, "token-a")
                await provider.rent("a", rig.offer_id, "token-a")
                await asyncio.gather(*(provider.rent("b", rig.offer_id, "token-b") for _ in range(3)))
                assert await node_ids(provider) == rig.left() == ["a", "b"]

        asyncio.run(scene())

    def test_a_rented_node_is_listed_with_its_offer_and_token(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider()
            async with opened(provider):
                before_s = rig.clock.now_s()
                await provider.rent("a", rig.offer_id, "token-a")
                (node,) = await provider.list()
                assert (node.node_id, node.offer_id, node.token) == ("a", rig.offer_id, "token-a")
                assert before_s <= node.began_s <= rig.clock.now_s()
                assert node.instance

        asyncio.run(scene())

    def test_a_released_node_is_gone_when_release_returns_and_may_be_released_again(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider()
            async with opened(provider) as ears:
                await provider.rent("a", rig.offer_id, "token-a")
                assert rig.left() == ["a"]
                await asyncio.gather(provider.release("a"), provider.release("a"))
                assert rig.left() == []
                assert await provider.list() == []
                await provider.release("a")
                await provider.release("never rented")
                assert ears.all(NodeLost) == []  # what we give back is not lost

        asyncio.run(scene())

    def test_a_later_controller_finds_what_an_earlier_one_rented(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            first = rig.provider()
            async with opened(first, give_back=False):
                await first.rent("a", rig.offer_id, "token-a")
                await first.rent("b", rig.offer_id, "token-b")
                rented = await first.list()
            assert rig.left() == ["a", "b"]  # closing gives nothing back
            second = rig.provider()
            async with opened(second):
                assert await second.list() == rented
                await second.rent("a", rig.offer_id, "token-a")
                assert rig.left() == ["a", "b"]
                await second.release("a")
                assert rig.left() == await node_ids(second) == ["b"]

        asyncio.run(scene())

    def test_a_node_that_dies_is_told_once_and_no_longer_listed(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider()
            async with opened(provider) as ears:
                await provider.rent("a", rig.offer_id, "token-a")
                await provider.rent("b", rig.offer_id, "token-b")
                rig.kill("a")
                await ears.next(NodeLost, node_id="a")
                assert await node_ids(provider) == ["b"]
                await until(lambda: rig.left() == ["b"])
                await asyncio.sleep(0.05)
                assert [event.node_id for event in ears.all(NodeLost)] == ["a"]

        asyncio.run(scene())

    def test_a_node_that_died_while_no_controller_was_there_is_told_to_the_next(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            first = rig.provider()
            async with opened(first, give_back=False):
                await first.rent("a", rig.offer_id, "token-a")
                await first.rent("b", rig.offer_id, "token-b")
            rig.kill("a")
            second = rig.provider()
            async with opened(second) as ears:
                await ears.next(NodeLost, node_id="a")
                assert await node_ids(second) == ["b"]

        asyncio.run(scene())

    def test_a_dead_node_of_an_adopted_fleet_is_told(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            first = rig.provider()
            async with opened(first, give_back=False):
                await first.rent("a", rig.offer_id, "token-a")
            second = rig.provider()
            async with opened(second) as ears:
                rig.kill("a")
                await ears.next(NodeLost, node_id="a")

        asyncio.run(scene())

    def test_what_is_sold_out_is_refused_and_leaves_nothing(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider(supply=1)
            async with opened(provider) as ears:
                assert (await ears.next(AvailabilityChanged)).nodes == 1
                await provider.rent("a", rig.offer_id, "token-a")
                with pytest.raises(RentFailed) as refused:
                    await provider.rent("b", rig.offer_id, "token-b")
                assert refused.value.offer_id == rig.offer_id
                assert refused.value.wait_s > 0
                assert rig.left() == await node_ids(provider) == ["a"]
                await provider.release("a")
                await provider.rent("b", rig.offer_id, "token-b")  # the same token, once there is one
                assert rig.left() == ["b"]

        asyncio.run(scene())

    def test_an_offer_that_does_not_exist_gets_a_suggestion(self, rig: ProviderRig) -> None:
        async def scene() -> None:
            provider = rig.provider()
            async with opened(provider):
                with pytest.raises(UnknownName, match=rig.offer_id):
                    await provider.rent("a", rig.offer_id + "t", "token-a")
                assert rig.left() == []
                assert rig.offer_id in {offer.id for offer in provider.offers}

        asyncio.run(scene())


@asynccontextmanager
async def opened(provider: Provider, *, give_back: bool = True) -> AsyncIterator[Ears]:
    """With ears; what is rented is given back at the end, unless the test says otherwise."""
    ears = Ears()
    await provider.open(ears.tell)
    try:
        yield ears
    finally:
        if give_back:
            for node in await provider.list():
                await provider.release(node.node_id)
        await provider.close()


async def node_ids(provider: Provider) -> list[str]:
    """Sorted."""
    return sorted(node.node_id for node in await provider.list())
