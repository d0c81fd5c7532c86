"""Jobs that ended long ago are on the shelf: a start does not read them, the bill has them, whoever asks gets them."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import asdict, replace

import pytest

from sublet.errors import NoSuchJob
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.memory.archive import EARLIER
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, adds_up, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")
FEW = Paces(jobs_kept=1, jobs_shelved=1)


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path, paces=FEW)


async def finished(story, api, *numbers):
    """Jobs of one name, one after the other."""
    for number in numbers:
        story.cloud.jobs[f"j-{number}"] = Training(steps=10)
        await api.submit(a_spec(max_workers=1), key=f"key-{number}")
        await phase(api, f"j-{number}", "finished")
    table = api._controller.table
    await until(lambda: asyncio.sleep(0, not table.live), "one of them lives on")


def accounts(api):
    return {job_id: asdict(account) for job_id, account in api._controller.bill.jobs.items()}


def summed(found):
    return {purpose: sum(account[purpose] for account in found) for purpose in found[0]}


def test_what_ended_first_goes_and_what_it_cost_is_still_in_the_bill_to_the_grain(story):
    async def live():
        async with story.controller() as api:
            await finished(story, api, 1, 2, 3)
            before = accounts(api)
            api._controller.memory.write()
            assert list(api._controller.records) == ["j-3"]
            assert accounts(api)[EARLIER] == summed([before["j-1"], before["j-2"]])
            adds_up(api)
            cost = await api.cost()
            assert [job["name"] for job in cost["jobs"]] == ["j", "2 earlier jobs"]
            assert cost["usd_total"] == pytest.approx(api._controller.bill.total.usd)  # as of the same moment
            assert (await api.health())["earlier_jobs"] == 2

    asyncio.run(live())


def test_a_start_reads_none_of_them_and_gives_no_id_and_no_key_twice(story):
    async def live():
        async with story.controller() as api:
            await finished(story, api, 1, 2, 3)
        async with story.controller() as api:
            assert list(api._controller.records) == ["j-3"]
            adds_up(api)
            again = await api.submit(a_spec(max_workers=1), key="key-1")
            assert (again["job_id"], again["name"]) == ("j-1", "j")
            await finished(story, api, 4)
            numbers = [number for (number,) in api._controller.store.query("SELECT number FROM jobs")]
            assert len(set(numbers)) == len(numbers)

    asyncio.run(live())


def test_one_that_is_asked_for_comes_back_with_its_own_bill_and_stays_for_this_life(story):
    async def live():
        async with story.controller() as api:
            await finished(story, api, 1, 2, 3)
            before = accounts(api)
            api._controller.memory.write()
            view = await api.job("j-1")
            assert (view["phase"], view["name"]) == ("finished", "j")
            assert accounts(api)["j-1"] == before["j-1"]
            assert accounts(api)[EARLIER] == before["j-2"]
            assert (await api.events("j-1"))[0]["job_id"] == "j-1"
            api._controller.memory.write()
            assert "j-1" in api._controller.records
            adds_up(api)
            with pytest.raises(NoSuchJob):
                await api.job("j-77")
        async with story.controller(crash=True) as api:
            assert accounts(api)["j-2" if "j-2" in api._controller.records else "j-3"]
            adds_up(api)

    asyncio.run(live())


def test_one_that_failed_long_ago_can_still_be_resumed(story):
    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = Training(ends_with=1)
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "failed")
            await finished(story, api, 2, 3)
            api._controller.memory.write()
            assert "j-1" not in api._controller.records
            story.cloud.jobs["j-1"] = Training(steps=10)
            await api.resume("j-1")
            await phase(api, "j-1", "finished")
            adds_up(api)

    asyncio.run(live())


@pytest.mark.parametrize("damaged", ["the newest", "all"])
def test_an_older_snapshot_that_still_has_their_accounts_gives_the_same_sum(story, damaged):
    async def live():
        async with story.controller(crash=True) as api:
            await finished(story, api, 1, 2, 3)
            before = {job_id: replace(account).total for job_id, account in api._controller.bill.jobs.items()}
            api._controller.memory.write()
        with sqlite3.connect(story.folder / "log.sqlite") as db:
            which = "" if damaged == "all" else "WHERE seq = (SELECT MAX(seq) FROM snapshots)"
            db.execute(f"UPDATE snapshots SET state = substr(state, 1, 100) {which}")  # noqa: S608 - one of ours
        async with story.controller() as api:
            found = api._controller.bill.jobs
            assert found[EARLIER].total == before["j-1"] + before["j-2"]
            assert set(found) == {EARLIER, "j-3"}
            adds_up(api)

    asyncio.run(live())


def test_a_store_of_the_version_before_gets_a_shelf(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.add_job("i-1", "k", "{}")
    store._db.execute("DROP TABLE shelf")
    store.close()
    store = Store(tmp_path / "log.sqlite")
    assert store.query("SELECT COUNT(*) FROM shelf") == [(0,)]
    store.close()


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT MAX(number) FROM shelf",
        "SELECT COUNT(*) FROM shelf WHERE name = 'j'",
        "SELECT COUNT(*), SUM(steps_lost), SUM(noticed), SUM(unnoticed) FROM shelf",
    ],
)
def test_nobody_goes_through_all_that_is_packed(tmp_path, asked):
    store = Store(tmp_path / "log.sqlite")
    (*_, plan), *_ = store.query(f"EXPLAIN QUERY PLAN {asked}")
    assert "INDEX shelf_by_" in plan
    store.close()


@pytest.mark.parametrize("goes", ["node_released", "node_lost"])
def test_a_node_outlives_the_jobs_that_it_had(story, goes):
    async def live():
        async with story.controller() as api:
            await finished(story, api, 1, 2, 3)
            api._controller.memory.write()
            notices, jobs_on = api._controller.nodes.notices, api._controller.context.nodes.jobs_on
            assert "j-1" not in api._controller.records
            jobs_on["old"] = {"j-1", "j-3"}  # one after the other
            assert notices._needs_s("old") > 0.0
            getattr(notices, goes)("old", 0.0)
            assert "old" not in jobs_on

    asyncio.run(live())
