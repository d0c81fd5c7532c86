"""Machines that go away and come back, that we do not know, and that say what they have."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost
from sublet.errors import NoAccess
from sublet.runtime.providers.ssh.build import _as_found, look_at
from sublet.runtime.providers.ssh.provider import SshProvider
from sublet.testing.conformance.providers import opened
from sublet.testing.rigs import until
from tests.rigs.ssh_hosts import SshRig


@pytest.fixture
def rig():
    made = SshRig()
    yield made
    assert made.clean_up() == []


def one_host(rig, **knobs):
    rig.hosts = rig.hosts[:1]
    return rig.provider(**knobs)


async def supply_is(ears, nodes):
    await until(lambda: ears.all(AvailabilityChanged)[-1].nodes == nodes)


def test_a_node_outlives_a_broken_connection(rig):
    async def scene():
        provider = one_host(rig)
        async with opened(provider) as ears:
            await provider.rent("a", rig.offer_id, "token-a")
            before = await provider.list()
            rig.server.cut("ada")
            await supply_is(ears, 0)
            assert await provider.list() == before
            assert rig.left() == ["a"]
            rig.server.mend("ada")
            await supply_is(ears, 1)
            assert await provider.list() == before
            assert ears.all(NodeLost) == []

    asyncio.run(scene())


def test_a_machine_that_is_away_for_long_has_lost_its_node_and_ends_it_when_it_is_back(rig):
    async def scene():
        provider = one_host(rig, gone_s=0.0)
        async with opened(provider) as ears:
            await provider.rent("a", rig.offer_id, "token-a")
            rig.server.cut("ada")
            await ears.next(NodeLost, node_id="a")
            assert await provider.list() == []
            assert rig.left() == ["a"]  # it does not know yet
            rig.server.mend("ada")
            await supply_is(ears, 1)
            await until(lambda: rig.left() == [])
            await provider.rent("b", rig.offer_id, "token-b")
            assert rig.left() == ["b"]

    asyncio.run(scene())


def test_a_rent_whose_answer_was_lost_is_one_node(rig):
    """The claim was written; the next controller finds the agent, and the rent that is asked again finds it, too."""

    class Forgetful(SshProvider):
        def _keep(self, claim):
            raise ConnectionError("killed here")

    async def scene():
        rig.hosts = rig.hosts[:2]
        facts = {"state_dir": rig.folder, "clock": rig.clock, "hosts": rig.hosts, "way": rig.way, "gone_s": 60.0}
        first = Forgetful(**facts, request={"address": rig.address, "lease_s": 30.0})
        async with opened(first, give_back=False):
            with pytest.raises(ConnectionError, match="killed here"):
                await first.rent("a", rig.offer_id, "token-a")
        assert rig.left() == ["a"]
        second = rig.provider()
        async with opened(second):
            await second.rent("a", rig.offer_id, "token-a")
            assert rig.left() == ["a"]
            assert [node.node_id for node in await second.list()] == ["a"]

    asyncio.run(scene())


def test_a_machine_whose_key_is_not_known_is_never_spoken_to(rig):
    import asyncssh

    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    found = look_at([replace(rig.hosts[0], host_key=stranger)], rig.way)
    assert "host key is not" in found["ada"]
    assert not (rig.folder / "ada").exists()  # nothing ran there


def test_a_machine_is_looked_at_once_and_remembered(rig):
    asked = replace(rig.hosts[0], slots=0)
    kept = rig.folder / "ssh.json"
    (found,) = _as_found([asked], rig.way, kept)
    assert found.slots >= 1
    rig.server.cut("ada")
    assert _as_found([asked], rig.way, kept) == [found]
    with pytest.raises(NoAccess, match="bell"):
        _as_found([replace(rig.hosts[1], slots=0, port=1)], rig.way, kept)
