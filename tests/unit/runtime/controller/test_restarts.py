"""What a controller leaves to the next: other offers, other limits, other versions and wrong clocks lose nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sublet import plugins
from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money, Price
from sublet.errors import BadInput
from sublet.kernel.invariants import check
from sublet.runtime.clock import Clock
from sublet.runtime.controller_api.assemble import budget_from
from sublet.runtime.providers.local.build import local_offers
from sublet.runtime.settings import settings_from_json
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over
from sublet_lab.walls import WallOf
from tests.rigs.story import LIMITS, OFFERS, Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
OLD = Path(__file__).parents[3] / "data" / "state-0.1-382fdf2"


def kinds(api):
    return [row.kind for row in api._controller.store.history(None, 0, 1000)]


# ---------------------------------------------------------------------- other offers and limits


def test_other_offers_prices_and_limits_than_before_are_an_event_not_a_refusal(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await trained(api, "j-1", 5)
        story.cloud.offers = (replace(OFFERS[0], price=Price.from_usd_per_h("0.25"), cap=None),)
        story.limits = {"spot": Limit(max_nodes=1)}
        async with story.controller() as api:
            view = await phase(api, "j-1", "running")
            assert view["step"] >= 5
            controller = api._controller
            assert list(controller.kernel.supply.offers) == ["spot"]
            assert controller.kernel.ledger.price("spot") == Price.from_usd_per_h("0.25")
            assert len(story.cloud.nodes) == 1  # of two workers
            assert "OffersChanged" in kinds(api)
            check(controller.kernel)
            adds_up(api)
        story.cloud.offers, story.limits = OFFERS, LIMITS
        async with story.controller() as api:
            await phase(api, "j-1", "running")
            assert list(api._controller.kernel.supply.offers) == ["spot", "on-demand"]
            adds_up(api)

    asyncio.run(live())


def test_an_offer_that_vanished_while_a_node_of_it_is_held_stays_until_the_node_is_gone(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(market="spot", max_workers=1))
            await trained(api, "j-1", 5)
        story.cloud.offers, story.limits = OFFERS[1:], {"on-demand": Limit(max_nodes=4)}
        async with story.controller() as api:
            supply = api._controller.kernel.supply
            assert list(supply.offering.withdrawn) == ["spot"]
            assert supply.offering.state("spot").most == 1  # it can be kept, and no more of it rented
            (held,) = story.cloud.nodes
            story.cloud.take(held)

            async def forgotten():
                return list(supply.offers) == ["on-demand"]

            await until(forgotten, "the offer never went")
            check(api._controller.kernel)
            adds_up(api)

    asyncio.run(live())


def test_other_machines_under_a_held_node_are_refused_with_what_differs_and_what_to_do(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(market="spot"))
            await phase(api, "j-1", "running")
        story.cloud.offers = (replace(OFFERS[0], gpus_per_node=2, pool=""), OFFERS[1])
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            with pytest.raises(BadInput, match="gpus_per_node of offer spot") as refused:
                await asyncio.wait_for(api.run(), 120)
            assert "sublet up --fresh" in str(refused.value)

    asyncio.run(live())


# ---------------------------------------------------------------------- snapshot and tail


def test_a_start_costs_the_tail_of_the_log_and_not_its_history(tmp_path):
    story = Story(tmp_path, budget=Budget(purse=Money.from_usd(50)))
    story.cloud.jobs["j-1"] = Training(steps=20)

    async def live():
        async with story.controller() as api:
            for name in ("j", "k"):
                await api.submit(a_spec(name=name))
            await phase(api, "j-1", "finished")
            await trained(api, "k-1", 5)
        before = bill_of(api)
        with sqlite3.connect(story.folder / "log.sqlite") as db:
            read = db.execute("DELETE FROM events WHERE seq < (SELECT MAX(seq) FROM snapshots)").rowcount
        assert read > 10  # all of it was history
        async with story.controller() as api:
            assert (await api.job("j-1"))["phase"] == "finished"
            assert api._controller.bill.jobs["j-1"] == before["j-1"]  # to the grain
            await phase(api, "k-1", "running")
            check(api._controller.kernel)
            adds_up(api)

    asyncio.run(live())


def bill_of(api):
    return {job_id: replace(account) for job_id, account in api._controller.bill.jobs.items()}


def test_a_snapshot_that_cannot_be_read_is_passed_over_with_an_alarm(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=20)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await phase(api, "j-1", "finished")
        with sqlite3.connect(story.folder / "log.sqlite") as db:
            db.execute(
                "UPDATE snapshots SET state = substr(state, 1, 100) WHERE seq = (SELECT MAX(seq) FROM snapshots)"
            )
        async with story.controller() as api:
            assert (await api.job("j-1"))["phase"] == "finished"
            await until(lambda: asyncio.sleep(0, "Alarm" in kinds(api)), "nobody was told")
            adds_up(api)

    asyncio.run(live())


# ---------------------------------------------------------------------- a directory of another version


def test_a_state_directory_of_the_version_before_snapshots_starts_with_its_jobs_bill_and_budget(tmp_path):
    expected = json.loads((OLD / "expected.json").read_text())
    settings = settings_from_json((OLD / "settings.json").read_text())
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "log.sqlite").write_bytes(gzip.decompress((OLD / "log.sqlite.gz").read_bytes()))
    offers = local_offers(settings, [])
    days_later = Clock(speedup=settings.speedup, began_s=expected["now_s"] + 40 * 86_400.0)
    cloud = MemoryCloud(offers, days_later)
    policy = plugins.load("sublet.policies", settings.policy)()

    async def live():
        limits = {offer.id: Limit(max_nodes=settings.most_nodes) for offer in offers}
        with api_over(cloud, folder, policy, budget=budget_from(settings), limits=limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            controller = api._controller
            ledger, budget = controller.kernel.ledger, controller.kernel.supply.budget
            assert budget.purse == Money(expected["purse_grains"])  # as it was topped up, not as it was started
            assert budget.burn == Price(expected["burn_micro_usd_per_h"])
            outcomes = {view["id"]: view["phase"] for view in await api.jobs()}
            assert (outcomes["short-1"], outcomes["third-1"]) == ("finished", "finished")
            await phase(api, "long-1", "running")
            before = next(lease for lease in ledger.closed if lease.node_id == "n3")
            until_s = expected["now_s"] + (30.0 + 10.0) * settings.speedup  # a lease after its last sign of life
            assert before.end_us / 1e6 == pytest.approx(until_s)
            more = before.last_price.over(before.end_us - round(expected["now_s"] * 1e6))
            new = sum(lease.cost.grains for lease in ledger.closed if lease.node_id not in ("n1", "n2", "n3"))
            open_now = ledger.spent(controller.kernel.now_s).grains - sum(each.cost.grains for each in ledger.closed)
            spent = ledger.spent(controller.kernel.now_s).grains - new - open_now
            assert spent == expected["spent_grains"] + more.grains
            adds_up(api)
            check(controller.kernel)
            await api.shutdown()
            await running
        store = Store(folder / "log.sqlite")
        assert len(store.snapshots()) == 2
        store.close()

    asyncio.run(live())


# ---------------------------------------------------------------------- clocks


class Jumping:
    """A clock that somebody sets."""

    def __init__(self):
        self.extra_s = 0.0

    def __call__(self):
        import time

        return time.monotonic() + self.extra_s


@pytest.mark.parametrize("survives", [False, True], ids=["its node is gone", "its agent comes back"])
def test_a_clock_set_forward_between_two_starts_books_no_more_rent_than_a_lease(tmp_path, survives):
    wall = Jumping()
    story = Story(tmp_path, budget=Budget(purse=Money.from_usd(5)))
    story.cloud.clock = Clock(
        speedup=60.0, wall=WallOf(wall), certain=False
    )  # as after a boot: it was read, not measured

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(market="on-demand"))
            await trained(api, "j-1", 5)
            spent = (await api.budget())["spent_usd"]
        wall.extra_s += 11 * 3600.0 / 60.0  # eleven hours of cloud time: 16.40 for one node
        if not survives:
            for node_id in list(story.cloud.nodes):
                story.cloud.take(node_id)
        async with story.controller() as api:
            await phase(api, "j-1", "running")
            budget = await api.budget()
            assert budget["spent_usd"] < spent + 2.5  # two nodes, a lease of half an hour of the cloud's time
            assert not budget["exhausted"]
            check(api._controller.kernel)
            adds_up(api)

    asyncio.run(live())
