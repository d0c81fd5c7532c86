"""The cloud in a box: its market takes real processes, and no crash makes it forget one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from contextlib import asynccontextmanager

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed, PriceChanged
from sublet.domain.money import Price
from sublet.errors import InvalidValue, RentFailed
from sublet.runtime.agent import processes
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local import nodes
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.providers.local.records import NodeRecord, Records, new_life
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.testing.values import an_offer
from sublet_lab.walls import WallOf


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


@asynccontextmanager
async def cloud(rig, *held, give_back=True, **knobs):
    """A provider that has rented `held` by the time that the market begins to move."""
    provider, ears = rig.provider(**knobs), Ears()
    await provider.open(ears.tell)
    try:
        for node_id in held:
            await provider.rent(node_id, "spot", f"token-{node_id}")
        rig.watch.start()
        yield provider, ears
    finally:
        if give_back:
            for node in await provider.list():
                await provider.release(node.node_id)
        await provider.close()


async def held(provider):
    return {node.node_id for node in await provider.list()}


# ---------------------------------------------------------------------- the market


def test_a_fall_of_supply_notices_as_many_as_are_too_many_and_takes_those_and_no_others(rig):
    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        fall = [AvailabilityChanged(0.0, "spot", 4), AvailabilityChanged(130.0, "spot", 1)]
        async with cloud(rig, "a", "b", "c", market=fall, notice_s=60.0) as (provider, ears):
            await until(lambda: len(ears.all(NodeNoticed)) == 2)
            noticed = {event.node_id for event in ears.all(NodeNoticed)}
            assert {event.lost_s for event in ears.all(NodeNoticed)} == {130.0}
            assert ears.all(NodeLost) == []
            assert len(rig.left()) == 3  # they live until their time
            await until(lambda: len(ears.all(NodeLost)) == 2)
            assert rig.clock.now_s() >= 130.0
            assert {event.node_id for event in ears.all(NodeLost)} == noticed
            await until(lambda: set(rig.left()) == {"a", "b", "c"} - noticed)
            assert await held(provider) == {"a", "b", "c"} - noticed
            kinds = [type(news) for _, news in ears.heard]
            assert kinds == [AvailabilityChanged, *[NodeNoticed] * 2, AvailabilityChanged, *[NodeLost] * 2]
            times = [news.at_s for _, news in ears.heard]
            assert times == sorted(times)
            with pytest.raises(RentFailed, match="sold out"):
                await provider.rent("d", "spot", "token-d")

    asyncio.run(scene())


def test_above_our_cap_nothing_is_kept_or_rented(rig):
    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        offer = an_offer("spot", gpus=1, usd_per_h="1", cap=Price.from_usd_per_h("2"))
        prices = [PriceChanged(40.0, "spot", Price.from_usd_per_h(usd)) for usd in ("1.5",)]
        prices += [PriceChanged(60.0, "spot", Price.from_usd_per_h("2.5"))]
        prices += [PriceChanged(140.0, "spot", Price.from_usd_per_h("1"))]
        async with cloud(rig, "a", offers=[offer], market=prices) as (provider, ears):
            await ears.next(NodeLost, node_id="a")
            assert [event.price.usd_per_h for event in ears.all(PriceChanged)][:1] == [1.5]
            with pytest.raises(RentFailed, match="cap"):
                await provider.rent("b", "spot", "token-b")
            await until(lambda: len(ears.all(PriceChanged)) == 3)
            await provider.rent("b", "spot", "token-b")
            assert await held(provider) == {"b"}

    asyncio.run(scene())


def test_a_script_notices_kills_and_restores(rig):
    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        script = [
            Strike(at_s=60.0, verb="notice", nodes=1),
            Strike(at_s=80.0, verb="kill", nodes=("b",)),
            Strike(at_s=160.0, verb="restore", nodes=2),
        ]
        async with cloud(rig, "a", "b", "c", supply=3, script=script, notice_s=50.0, seed=5) as (provider, ears):
            noticed = (await ears.next(NodeNoticed)).node_id
            await ears.next(NodeLost, node_id="b")
            with pytest.raises(RentFailed, match="sold out"):
                await provider.rent("d", "spot", "token-d")
            await until(lambda: len(ears.all(AvailabilityChanged, nodes=3)) == 2)
            lost = [event.node_id for event in ears.all(NodeLost)]
            assert sorted(lost) == sorted({noticed, "b"})
            assert rig.clock.now_s() >= 160.0
            supply = [event.nodes for event in ears.all(AvailabilityChanged)]
            assert supply == ([3, 2, 1, 3] if noticed != "b" else [3, 2, 3])
            await provider.rent("d", "spot", "token-d")

    asyncio.run(scene())


class Work:
    """What the jobs have come to, as a test says."""

    def __init__(self):
        self.done, self.trains_on = 0.0, set()

    def share(self):
        return self.done

    def nodes(self):
        return self.trains_on


def test_a_script_strikes_by_the_work_done_and_only_where_a_job_trains(rig):
    async def scene():
        rig.clock, work = Clock(speedup=100.0, wall=WallOf(rig.watch)), Work()
        async with cloud(rig, "a", "b", script=[Strike(share=0.5, verb="kill")]) as (provider, ears):
            provider.at_work = work
            work.done = 0.6
            await asyncio.sleep(1.0)
            assert ears.all(NodeLost) == []  # nobody trains
            work.trains_on = {"b", "elsewhere"}
            await ears.next(NodeLost, node_id="b")
            assert await held(provider) == {"a"}

    asyncio.run(scene())


def test_a_notice_survives_the_controller_and_its_node_goes_on_time(rig):
    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        script = [Strike(at_s=50.0, verb="notice", nodes=("a",))]
        async with cloud(rig, "a", "b", give_back=False, script=script, notice_s=100.0) as (_, ears):
            told = await ears.next(NodeNoticed)
        async with cloud(rig, notice_s=100.0) as (provider, ears):
            assert (await ears.next(NodeNoticed)).lost_s == told.lost_s
            assert await held(provider) == {"a", "b"}
            lost = await ears.next(NodeLost)
            assert lost.node_id == "a"
            assert told.lost_s <= lost.at_s < told.lost_s + 500.0
            assert await held(provider) == {"b"}

    asyncio.run(scene())


def test_a_later_controller_hears_where_the_market_stands_and_loses_what_fell_meanwhile(rig):
    async def scene():
        async with cloud(rig, "a", "b", give_back=False):
            pass
        rig.clock = Clock(began_s=500.0)
        record = [AvailabilityChanged(0.0, "spot", 9), AvailabilityChanged(400.0, "spot", 1)]
        async with cloud(rig, market=[*record, AvailabilityChanged(9000.0, "spot", 7)]) as (provider, ears):
            assert [event.nodes for event in ears.all(AvailabilityChanged)] == [1]
            assert ears.all(AvailabilityChanged)[0].at_s >= 500.0
            assert len(ears.all(NodeLost)) == 1
            assert len(await held(provider)) == 1

    asyncio.run(scene())


# ---------------------------------------------------------------------- crashes


def test_an_intent_without_a_process_is_forgotten(rig):
    async def scene():
        async with cloud(rig) as (provider, _):
            provider._nodes.records.write(NodeRecord(node_id="x", offer_id="spot", token="t", began_s=0.0))  # noqa: S106
            os.close(new_life(provider._nodes.records.path("y", "life")))
            provider._nodes.records.write(NodeRecord(node_id="y", offer_id="spot", token="u", began_s=0.0))  # noqa: S106
        async with cloud(rig) as (provider, ears):
            assert await held(provider) == set()
            assert ears.all(NodeLost) == []  # it never was
            assert list((rig.folder / "nodes").glob("*.json")) == []
            await provider.rent("x", "spot", "t")

    asyncio.run(scene())


def test_a_node_whose_rent_was_cut_short_by_a_crash_is_found(rig):
    async def scene():
        async with cloud(rig, "a", give_back=False) as (provider, _):
            (record,) = provider._nodes.records.read()
            provider._nodes.records.write(  # as it was before the fork was confirmed
                NodeRecord(node_id="a", offer_id="spot", token=record.token, began_s=record.began_s)
            )
        async with cloud(rig) as (provider, _):
            (node,) = await provider.list()
            assert (node.node_id, node.instance) == ("a", f"pid {record.pid}")
            await provider.rent("a", "spot", "token-a")
            assert rig.left() == ["a"]

    asyncio.run(scene())


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(rig):
    async def scene():
        me = processes.look(os.getpid())
        async with cloud(rig) as (provider, _):
            for node_id, start, boot in (
                ("x", me.start - 1, provider._nodes.records.boot),
                ("y", me.start, "another boot"),
            ):
                provider._nodes.records.write(
                    NodeRecord(
                        node_id=node_id, offer_id="spot", token=node_id, began_s=0.0, pid=me.pid, start=start, boot=boot
                    )
                )
        async with cloud(rig) as (provider, ears):
            assert {event.node_id for event in ears.all(NodeLost)} == {"x", "y"}
            assert await held(provider) == set()

    asyncio.run(scene())


def test_a_record_that_cannot_be_read_stands_in_nobodys_way(rig):
    async def scene():
        async with cloud(rig, "a", give_back=False):
            (rig.folder / "nodes" / "torn.json").write_text('{"node_id": "to', encoding="utf-8")
        async with cloud(rig) as (provider, _):
            assert await held(provider) == {"a"}
        assert (rig.folder / "nodes" / "torn.damaged").exists()

    asyncio.run(scene())


@pytest.mark.parametrize("rest", [b"", b"{", b"\xff\xfe", b"[1]"])
def test_a_node_whose_record_is_damaged_is_ended_before_its_loss_is_told(rig, rest):
    async def scene():
        async with cloud(rig, "a", "b", give_back=False):
            record = json.loads((rig.folder / "nodes" / "a.json").read_text(encoding="utf-8"))
            (rig.folder / "nodes" / "a.json").write_bytes(rest)
        living = []
        provider = rig.provider()

        def hear(event):
            if isinstance(event, NodeLost):
                living.append((event.node_id, processes.instance(record["pid"], record["start"])))

        await provider.open(hear)
        assert living == [("a", [])]
        assert await held(provider) == {"b"}
        await provider.release("b")
        await provider.close()

    asyncio.run(scene())


def test_what_there_was_no_room_for_is_written_down_later(rig, monkeypatch):
    monkeypatch.setattr(nodes, "WRITE_AGAIN_S", 0.01)

    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        script = [Strike(at_s=50.0, verb="notice", nodes=("a",))]
        real, full = Records.write, [True]

        def write(self, record):
            if record.lost_s is not None and full:
                full.pop()
                raise OSError(errno.ENOSPC, "no space left on device")
            real(self, record)

        monkeypatch.setattr(Records, "write", write)
        async with cloud(rig, "a", script=script, notice_s=10_000.0) as (_, ears):
            await ears.next(NodeNoticed)
            path = rig.folder / "nodes" / "a.json"
            await until(lambda: json.loads(path.read_text(encoding="utf-8"))["lost_s"] is not None)

    asyncio.run(scene())


def test_an_agent_that_ends_by_itself_is_told_from_one_that_the_cloud_takes(rig):
    async def scene():
        script = [Strike(at_s=60.0, verb="kill", nodes=("b",))]
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        async with cloud(rig, "a", "b", script=script) as (_, ears):
            rig.kill("a")
            await until(lambda: len(ears.all(NodeLost)) == 2)
            whys = {event.node_id: getattr(event, "why", "") for event in ears.all(NodeLost)}
            assert whys == {"a": "its agent ended", "b": ""}

    asyncio.run(scene())


def test_a_template_that_dies_is_replaced_and_its_agents_stay(rig):
    async def scene():
        async with cloud(rig, "a") as (provider, ears):
            os.kill(provider._forker.template.pid, signal.SIGKILL)
            with pytest.raises(RentFailed, match="template"):
                await provider.rent("b", "spot", "token-b")
            assert await held(provider) == {"a"}
            await provider.rent("b", "spot", "token-b")
            assert await held(provider) == {"a", "b"}
            assert ears.all(NodeLost) == []

    asyncio.run(scene())


def test_what_is_written_down_is_for_this_user_alone(rig):
    async def scene():
        async with cloud(rig, "a"):
            folder = rig.folder / "nodes"
            assert folder.stat().st_mode & 0o077 == 0
            assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
            assert json.loads((folder / "a.json").read_text(encoding="utf-8"))["offer_id"] == "spot"

    asyncio.run(scene())


@pytest.mark.parametrize("node_id", ["../a", "", "a/b", ".a", "a" * 300])
def test_a_name_that_would_leave_the_folder_is_refused(rig, node_id):
    async def scene():
        async with cloud(rig) as (provider, _):
            with pytest.raises(InvalidValue, match="node_id"):
                await provider.rent(node_id, "spot", "token")

    asyncio.run(scene())


def test_a_token_is_good_for_one_node_only(rig):
    async def scene():
        async with cloud(rig, "a") as (provider, _):
            with pytest.raises(InvalidValue, match="another token"):
                await provider.rent("a", "spot", "other")
            await provider.release("a")
            with pytest.raises(RentFailed, match="gone"):
                await provider.rent("a", "spot", "token-a")
            assert rig.left() == []

    asyncio.run(scene())


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_full_disk_in_the_middle_of_a_rent_leaves_no_node(rig, monkeypatch, fails_at):
    async def scene():
        async with cloud(rig) as (provider, _):
            write, writes = Records.write, []

            def full(records, record):
                writes.append(record)
                if len(writes) == fails_at:
                    raise OSError(errno.ENOSPC, "no space left")
                write(records, record)

            monkeypatch.setattr(Records, "write", full)
            with pytest.raises(RentFailed, match="no space left"):
                await provider.rent("a", "spot", "token")
            assert len(writes) == fails_at
            assert [record.pid > 0 for record in writes] == [False, True][:fails_at]  # the second: it had been forked
            pids = [record.pid for record in writes if record.pid]
            assert [processes.look(pid) for pid in pids] == [None] * len(pids)
            assert await held(provider) == set()
            assert list((rig.folder / "nodes").glob("*.json")) == []

    asyncio.run(scene())


def test_a_caller_that_gives_up_in_the_middle_of_a_rent_leaves_it_whole(rig):
    async def scene():
        async with cloud(rig, "first") as (provider, _):
            renting = asyncio.create_task(provider.rent("a", "spot", "token-a"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            renting.cancel()
            await asyncio.wait([renting])
            assert renting.cancelled()
            await provider.rent("a", "spot", "token-a")  # comes after it, and changes nothing
            assert await held(provider) == {"first", "a"}

    asyncio.run(scene())


def test_what_is_released_while_it_is_being_rented_is_gone_in_the_end(rig):
    async def scene():
        async with cloud(rig) as (provider, ears):
            renting = [asyncio.create_task(provider.rent(name, "spot", name)) for name in ("a", "b")]
            await asyncio.sleep(0)
            await asyncio.gather(provider.release("a"), provider.release("b"), *renting)
            assert rig.left() == []
            assert await held(provider) == set()
            assert ears.all(NodeLost) == []

    asyncio.run(scene())


# ---------------------------------------------------------------------- GPUs


def test_nodes_of_the_box_have_gpus_of_their_own_and_share_only_where_there_are_fewer(rig, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")

    def gpus(node_id):
        return json.loads((rig.folder / "nodes" / f"{node_id}.json").read_text(encoding="utf-8"))["gpus"]

    async def scene():
        async with cloud(rig, "a", "b", "c") as (provider, _):
            assert [gpus(node_id) for node_id in "abc"] == [["7"], ["8"], ["7"]]
            await provider.release("b")
            await provider.rent("d", "spot", "token-d")
            assert gpus("d") == ["8"]

    asyncio.run(scene())
