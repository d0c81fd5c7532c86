"""Scenarios 6, 8, 15, 16, 26 and 33: controllers, one after the other or two at once, over a cloud in memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from datetime import UTC, datetime, timedelta

import pytest

from sublet.domain.events import PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.check import _expiry
from sublet.runtime.providers.aws.offers import SpotPrices
from sublet.runtime.store import Store
from sublet.testing.rigs import LocalRig
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, api_over
from tests.rigs.story import OFFERS, Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.timeout(200)


async def texts(api, *kinds):
    return [event["text"] for event in await api.events() if event["kind"] in kinds]


# ---------------------------------------------------------------------- 6: credentials


@pytest.mark.scenario(
    6,
    "credentials expire during a run",
    "L",
    lacks="C: the switch on a real instance is its own shutdown",
)
def test_06_an_agent_whose_controller_can_do_nothing_any_more_ends_itself_with_its_lease(measured):
    """Nobody can terminate it from outside: the dead man's switch of a real agent is all there is."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    soon, late = (_expiry(now + timedelta(hours=hours), now) for hours in (24.0, 72.0))
    assert soon.hint, "a day ahead it must be said"
    assert late.ok
    assert not late.hint
    rig, lease_s = LocalRig(), 1.5
    try:

        async def live():
            engine = rig.engine(lease_s=lease_s)
            heard = asyncio.Event()
            await engine.open(lambda node_id, message: heard.set())
            engine.expect("n", "token")
            rig.agent("n", "token", lease_s=lease_s)
            await asyncio.wait_for(heard.wait(), 120.0)
            await engine.close()  # and nothing more is heard of the controller
            began_s = time.monotonic()
            while rig.left():
                assert time.monotonic() < began_s + lease_s + 60.0, "it outlives its lease"
                await asyncio.sleep(0.02)
            return time.monotonic() - began_s

        took_s = asyncio.run(live())
    finally:
        rig.clean_up()
    measured(
        f"warned {soon.text.split(', ')[-1]} before; lease {lease_s:g} s: the node ended itself after {took_s:.2f} s"
    )


# ---------------------------------------------------------------------- 8: two controllers


@pytest.mark.scenario(
    8,
    "two controllers: a pause longer than the lease, then it wakes",
    "M",
    lacks="S, in the scenario: a rent that is due as it wakes is in `tests/faults/test_law_holes.py`",
)
def test_08_the_one_that_slept_writes_nothing_launches_nothing_and_ends(tmp_path, measured):
    """The first sleeps while the second starts; when it wakes it has the store open and believes that all is well."""
    story = Story(tmp_path)

    async def live():
        async with story.controller(crash=True) as old:
            await old.submit(a_spec(max_workers=1))
            await trained(old, "j-1", 3)
            controller = old._controller
            async with story.controller() as new:
                await phase(new, "j-1", "running")
                rented = len(story.cloud.rented)
                before = new._controller.store.last_seq()
                began_s = time.monotonic()
                refused = 0
                for number in range(5):
                    try:
                        controller.add(f"late-{number}", a_spec(name="late"))
                    except SubletError:
                        refused += 1
                await asyncio.wait_for(controller.inbox.ended.wait(), 120.0)
                ended_s = time.monotonic() - began_s
                assert refused == 5, "a stale write was taken"
                assert not any(job_id.startswith("late") for job_id in new._controller.records)
                await trained(new, "j-1", 10)
                assert len(story.cloud.rented) == rented, "somebody launched for a slot that has a node"
                assert new._controller.store.last_seq() >= before
                adds_up(new)
        return refused, ended_s

    refused, ended_s = asyncio.run(live())
    measured(f"{refused} of 5 writes of the stale one refused; it ended itself {ended_s:.2f} s after its first try")


# ---------------------------------------------------------------------- 15: a rank that never answers


class Mute(MemoryCloud):
    """Workers on some nodes hear nothing."""

    def __init__(self, offers, clock):
        super().__init__(offers, clock)
        self.deaf = set()

    def _arrive(self, node_id, message):
        if node_id not in self.deaf:
            super()._arrive(node_id, message)


@pytest.mark.scenario(15, "a doomed rank never answers", "M", lacks="in a collective on GPUs (level G)")
def test_15_survivors_save_without_the_rank_that_never_answers_and_go_on(tmp_path, measured):
    """It hears nothing from the notice on; two minutes are left, and nobody may wait until the cloud takes it."""
    story = Story(tmp_path, speedup=10.0)
    story.cloud = Mute(OFFERS, Clock(speedup=10.0))

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=2, market="spot"))
            await trained(api, "j-1", 50)
            doomed = min(story.cloud.nodes)
            story.cloud.deaf.add(doomed)
            before, began_s = story.cloud.jobs["j-1"].saved, time.monotonic()
            story.cloud.warn(doomed, 1200.0)

            async def committed():
                return story.cloud.jobs["j-1"].saved > before

            await until(committed, "nobody committed")
            took_s = time.monotonic() - began_s
            saved = story.cloud.jobs["j-1"].saved
            await trained(api, "j-1", saved + 100)
            view = await api.job("j-1")
            adds_up(api)
            return view, took_s, before, saved

    view, took_s, before, saved = asyncio.run(live())
    assert view["phase"] == "running"
    assert view["steps_lost"] == 0
    measured(f"{took_s:.2f} s after the notice the others committed step {saved} ({before} before) without it")


@pytest.mark.scenario(16, "a bit flips, a file is cut, missing or empty in the newest checkpoint", "M")
def test_16_a_damaged_checkpoint_is_an_event_and_a_metric(tmp_path, measured):
    class Rotten(MemoryCloud):
        def _regroup(self, worker, order):
            if not self.told:
                self.told = True
                found = wire.Damaged(worker_id=worker.id, paths=("/ck/step-9",), why="digest", step=7)
                self._word(worker.node_id, found)
            super()._regroup(worker, order)

    story = Story(tmp_path)
    story.cloud = Rotten(OFFERS, Clock(speedup=60.0))
    story.cloud.told = False

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 3)
            (text,) = await texts(api, "Damaged")
            return text, (await api.metrics())["checkpoints_damaged"]

    text, counted = asyncio.run(live())
    assert "step-9" in text
    assert "step 7 is used" in text
    assert counted == 1
    measured("told in the history and counted in the metrics")


# ---------------------------------------------------------------------- 26: prices that are nonsense


class Feed:
    """What EC2 says about prices."""

    def __init__(self, text):
        self.text = text

    async def call(self, region, verb, **request):
        return {"AvailabilityZones": [{"ZoneName": f"{region}a", "ZoneId": "use1-az1"}]}

    async def pages(self, region, verb, field, **request):
        at = datetime.now(UTC)
        return [
            {"AvailabilityZone": f"{region}a", "InstanceType": "g4dn.xlarge", "SpotPrice": self.text, "Timestamp": at}
        ]


@pytest.mark.scenario(
    26,
    "spot price jumps five times; the feed is zero, negative, not a number, words",
    "M",
    lacks="at AWS (a jump is charged with its first reading, believed after ten minutes): unit tests, seeds; stale, S; "
    "that nothing is rented at a doubted price: whether it is doubted is asked",
)
def test_26_a_price_that_cannot_be_is_set_aside_and_nothing_is_rented_on_it(tmp_path, measured):
    offer = Offer(
        id="o", gpu="T4", gpus_per_node=1, market=Market.SPOT, price=Price.from_usd_per_h("0.2"), cloud="aws",
        region="us-east-1", zone="use1-az1", instance_type="g4dn.xlarge",
    )  # fmt: skip
    refused = []
    for text in ("0", "-1", "NaN", "inf", "-inf", "0,2", "USD 0.2", "", "1e99", "1.0"):
        feed = Feed("0.2")
        prices = SpotPrices(feed, Clock(), [offer])
        asyncio.run(prices.changes())
        assert not prices.doubts
        feed.text = text
        told = asyncio.run(prices.changes())
        assert not any(isinstance(change, PriceChanged) for change in told), f"{text!r} was taken for a price"
        assert len(told) == (text == "1.0"), f"{text!r}: only what may be a price is charged"
        assert "o" in prices.doubts, f"{text!r}: something may be rented on it"
        refused.append(text)
        feed.text = "0.21"
        assert [change.price.usd_per_h for change in asyncio.run(prices.changes())] == [pytest.approx(0.21)]
        assert not prices.doubts
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, market="spot"))
            await trained(api, "j-1", 3)
            began_s = time.monotonic()
            story.cloud.reprice("spot", 2.5)

            async def repriced():
                return (await api.budget())["burn_usd_per_h"] == pytest.approx(2.5)

            await until(repriced, "nobody looks at the new price")
            adds_up(api)
            return time.monotonic() - began_s

    took_s = asyncio.run(live())
    measured(
        f"{len(refused)} bad rows set aside, the next good one believed; what runs repriced 5x within {took_s:.2f} s"
    )


# ---------------------------------------------------------------------- 33: the store


STORES = (33, "the store is corrupted, full, read-only or locked; an older backup is put back")


@pytest.mark.scenario(*STORES, "M")
@pytest.mark.parametrize("trouble", ["read-only", "locked"])
def test_33_a_store_that_cannot_be_written_ends_its_controller_and_the_next_knows_every_paid_node(
    trouble, tmp_path, measured
):
    """By SQLite itself: a connection that may not write, and another program that holds the file."""
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 2)
            db, other = api._controller.store._db, sqlite3.connect(story.folder / "log.sqlite", isolation_level=None)
            if trouble == "locked":
                db.execute("PRAGMA busy_timeout=50")
                other.execute("BEGIN IMMEDIATE")
            else:
                db.execute("PRAGMA query_only=ON")
            before = list(story.cloud.rented), sorted(story.cloud.nodes)
            with pytest.raises(BadInput, match="cannot be written"):
                await api.submit(a_spec(name="k", max_workers=2))
            with pytest.raises(BadInput, match="cannot be written"):
                await asyncio.wait_for(running, 120)
            assert (list(story.cloud.rented), sorted(story.cloud.nodes)) == before, "it acted without its memory"
            other.close()
            await story.cloud.close()
        async with story.controller() as api:
            assert set(story.cloud.nodes) <= set(api._controller.kernel.cluster.nodes), "paid for, and unknown"
            await phase(api, "j-1", "running")
            adds_up(api)
        return before[1]

    paid = asyncio.run(live())
    assert not story.cloud.nodes, "left after the shutdown"
    measured(f"{trouble}: it ended in words and asked for nothing; {len(paid)} paid node, 0 unknown afterwards")


@pytest.mark.scenario(*STORES, "M")
def test_33_a_store_that_cannot_be_trusted_is_refused_and_an_older_one_forgets_no_paid_node(tmp_path, measured):
    story = Story(tmp_path)
    folder = story.folder

    async def before():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1, market="spot"))
            await trained(api, "j-1", 3)
            copy = sqlite3.connect(folder / "backup")
            sqlite3.connect(folder / "log.sqlite").backup(copy)
            copy.close()
            await api.submit(a_spec(name="k", max_workers=2, market="on-demand"))
            await trained(api, "k-1", 3)
            return set(story.cloud.nodes)

    paid = asyncio.run(before())
    damaged = folder / "damaged.sqlite"
    content = bytearray((folder / "backup").read_bytes())
    for at in range(5000, min(len(content), 12000)):
        content[at] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(BadInput):
        Store(damaged)
    (folder / "short.sqlite").write_bytes((folder / "backup").read_bytes()[:3000])
    with pytest.raises(BadInput):
        Store(folder / "short.sqlite")
    for end in ("-wal", "-shm"):
        (folder / f"log.sqlite{end}").unlink(missing_ok=True)
    os.replace(folder / "backup", folder / "log.sqlite")  # noqa: PTH105 - as a person does

    async def after():
        began_s = time.monotonic()
        async with story.controller() as api:

            async def none_unknown():
                known = set(api._controller.kernel.cluster.nodes)
                return set(story.cloud.nodes) <= known

            await until(none_unknown, "a node is paid for and nobody knows it")
            await phase(api, "j-1", "running", "starting", "queued", "recovering")
            took_s = time.monotonic() - began_s
            return took_s

    took_s = asyncio.run(after())
    assert not story.cloud.nodes, "left after the shutdown"
    measured(f"2 damages refused; an older backup: {len(paid)} paid nodes, 0 unknown after {took_s:.2f} s")
