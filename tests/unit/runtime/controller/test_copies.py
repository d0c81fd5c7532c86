"""A copy of a state directory: it does not start beside the original, and neither ends what the other one renews."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.errors import BadInput, RentFailed
from sublet.runtime import last_run
from sublet.runtime.clock import Clock
from sublet.runtime.controller.host import Paces
from sublet.runtime.providers.aws.fleet import EXPIRES_S
from sublet.runtime.store import Store
from sublet.testing.rigs import LocalRig
from sublet_lab.memory_cloud import MemoryCloud, Node, api_over, one_gpu_offer
from tests.rigs.moto_cloud import AwsRig

PATIENCE_S = 90.0


@pytest.fixture
def rig():
    here = AwsRig()
    yield here
    here.clean_up()


async def opened(provider):
    await provider.open(lambda _: None)
    return provider


async def rented(rig):
    """What the original holds: n1, in its own directory."""
    original = await opened(rig.provider())
    await original.rent("n1", rig.offer_id, "token")
    return original


def copied(rig, tmp_path):
    return shutil.copytree(rig.folder, tmp_path / "copy")


def test_a_copy_is_refused_while_the_nodes_of_the_original_are_renewed(rig, tmp_path):
    async def scene():
        original = await rented(rig)
        copy = rig.provider(state_dir=copied(rig, tmp_path))
        with pytest.raises(BadInput, match=r"is a copy.* renews n1 until 20.*\n  next: .*original.*--moved"):
            await copy.open(lambda _: None)
        await copy.close()
        assert rig.left() == ["n1"]
        await (await opened(rig.provider())).close()  # the original itself is let in again
        await original.close()

    asyncio.run(scene())


def test_a_directory_that_was_moved_takes_over_what_it_rented(rig, tmp_path):
    async def scene():
        await (await rented(rig)).close()
        moved = await opened(rig.provider(state_dir=copied(rig, tmp_path), moved=True))
        (node,) = await moved.list()
        assert not node.elsewhere
        with pytest.raises(BadInput, match="is a copy"):  # the old place is the copy from now on
            await rig.provider().open(lambda _: None)
        await moved.release("n1")
        assert rig.left() == []
        await moved.close()

    asyncio.run(scene())


def test_once_the_last_renewal_has_run_out_a_moved_directory_needs_no_word(rig, tmp_path):
    async def scene():
        await (await rented(rig)).close()
        later = rig.provider(state_dir=copied(rig, tmp_path), unix_s=lambda: time.time() + EXPIRES_S + 60.0)
        await opened(later)
        await later.close()

    asyncio.run(scene())


def test_that_a_directory_was_moved_is_believed_once_and_only_of_this_place(tmp_path):
    here, copy = tmp_path / "here", tmp_path / "copy"
    here.mkdir()
    last_run.mark_moved(here)
    shutil.copytree(here, copy)
    for folder, expected in ((copy, [False, False]), (here, [True, False])):
        store = Store(folder / "log.sqlite")
        assert [last_run.take_moved_mark(store, folder), last_run.take_moved_mark(store, folder)] == expected
        store.close()


def test_two_controllers_of_one_id_end_and_adopt_nothing_of_one_another(rig, tmp_path):
    """Both began when nothing was rented, so that neither could know; node ids and tokens are the same."""

    async def scene():
        original = await opened(rig.provider())
        copy = await opened(rig.provider(state_dir=copied(rig, tmp_path)))
        await original.rent("n1", rig.offer_id, "token")
        (seen,) = await copy.list()
        assert (seen.node_id, seen.elsewhere) == ("n1", True)
        (own,) = await original.list()
        assert not own.elsewhere, "a look of the copy's must not renew what is not its own"
        with pytest.raises(RentFailed, match="another directory"):
            await copy.rent("n1", rig.offer_id, "token")
        await copy.release("n1")
        assert rig.left() == ["n1"]
        await original.release("n1")
        assert rig.left() == []
        await asyncio.gather(original.close(), copy.close())

    asyncio.run(scene())


def test_the_sweep_ends_an_orphan_but_only_sounds_an_alarm_for_what_another_directory_renews(tmp_path):
    paces = Paces(sweep_s=0.02)

    class Shared(MemoryCloud):
        async def list(self):
            return [replace(node, elsewhere=node.node_id == "theirs") for node in await super().list()]

    async def live():
        cloud = Shared([one_gpu_offer("spot")], Clock(speedup=60.0))
        policy = plugins.load("sublet.policies", "max-speedup")()
        with api_over(cloud, tmp_path / "state", policy, limits={"spot": Limit(max_nodes=2)}, paces=paces) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            for name in ("theirs", "orphan"):
                cloud.nodes[name] = Node(name, "spot", name)
            end_s = time.monotonic() + PATIENCE_S

            def told():
                return [event["node_id"] for event in history if event["kind"] == "Alarm"]

            history = await api.events()
            while "orphan" in cloud.nodes or not told():
                assert time.monotonic() < end_s, history
                await asyncio.sleep(0.02)
                history = await api.events()
            assert told() == ["theirs"]
            await api.shutdown()
            await running
        assert list(cloud.nodes) == ["theirs"], "nor does the end of this controller"

    asyncio.run(live())


def test_on_this_machine_a_copy_is_refused_and_a_moved_directory_goes_on(tmp_path):
    local = LocalRig(tmp_path / "state")

    async def scene():
        original = await opened(local.provider())
        await original.rent("n1", local.offer_id, "token")
        await original.close()
        copy = shutil.copytree(local.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
        there, local.folder = local.folder, copy
        second = local.provider()
        with pytest.raises(BadInput, match=r"is a copy.* has n1"):
            await second.open(lambda _: None)
        await second.close()
        local.folder = there.rename(tmp_path / "moved")
        moved = await opened(local.provider())
        assert [node.node_id for node in await moved.list()] == ["n1"]
        await moved.release("n1")
        await moved.close()

    asyncio.run(scene())
    assert local.left() == []
    local.clean_up()
