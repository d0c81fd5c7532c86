"""An older backup of the store is put back: what was rented since is found and ended, and nobody is paid for unseen."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from sublet.domain.events import NodesFound
from sublet.kernel.invariants import check
from sublet.machine.wall import WALL
from sublet.runtime.controller.nodes.unknown_instances import row_of_end, unknown_among
from sublet.runtime.group.workers import Round
from sublet.runtime.providers.protocol import Billed, RentedNode
from sublet.runtime.store import Store
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def back_up(story):
    """As 'sqlite3 log.sqlite .backup' does."""
    copy = sqlite3.connect(story.folder / "backup")
    sqlite3.connect(story.folder / "log.sqlite").backup(copy)
    copy.close()


def put_back(story):
    for end in ("-wal", "-shm"):
        (story.folder / f"log.sqlite{end}").unlink(missing_ok=True)
    (story.folder / "backup").replace(story.folder / "log.sqlite")


async def lived_on(story, *, loses=()):
    """One job when the backup is made; another, and other nodes, when the controller dies."""
    async with story.controller(crash=True) as api:
        await api.submit(a_spec(market="spot", max_workers=1))
        await trained(api, "j-1", 3)
        back_up(story)
        known = set(story.cloud.nodes)
        await api.submit(a_spec(name="k", market="on-demand"))
        await trained(api, "k-1", 3)
        for node_id in loses:
            story.cloud.take(node_id)
        if loses:
            await phase(api, "j-1", "running")
        return known, set(story.cloud.nodes) - known


def rows(api, kind):
    return [row for row in api._controller.store.history(None, 0, 1000) if row.kind == kind]


def test_every_node_that_was_rented_since_is_found_by_its_mark_and_ended(tmp_path):
    story = Story(tmp_path)

    async def live():
        known, since = await lived_on(story)
        assert known
        assert since
        put_back(story)
        async with story.controller() as api:
            kernel = api._controller.kernel
            await until(lambda: asyncio.sleep(0, not since & story.cloud.nodes.keys()), "one of them runs on")
            await phase(api, "j-1", "running")
            assert set(story.cloud.nodes) <= set(kernel.cluster.nodes)  # none that nobody knows
            told = [row for row in rows(api, "Stranger") if "has ended" in row.text]
            assert {row.node_id for row in rows(api, "Stranger")} == {row.node_id for row in told} == since
            assert any("older backup was put back" in row.text for row in rows(api, "Alarm"))
            check(kernel)
            adds_up(api)

    asyncio.run(live())


def test_no_number_is_given_out_twice_so_no_cloud_takes_a_new_node_for_an_old_one(tmp_path):
    story = Story(tmp_path)

    async def live():
        _, since = await lived_on(story)
        put_back(story)
        before = len(story.cloud.rented)
        async with story.controller() as api:
            await api.submit(a_spec(name="l", market="on-demand"))
            await trained(api, "l-1", 3)
            new = story.cloud.rented[before:]
            assert new
            assert not set(new) & since
            assert len(story.cloud.rented) == len(set(story.cloud.rented))
            adds_up(api)

    asyncio.run(live())


def test_a_node_of_the_backup_that_is_gone_since_is_lost_and_its_job_goes_on_elsewhere(tmp_path):
    story = Story(tmp_path)

    async def live():
        await lived_on(story, loses=("n1",))
        put_back(story)
        async with story.controller() as api:
            await until(lambda: asyncio.sleep(0, "n1" not in api._controller.kernel.cluster.nodes), "n1 is waited for")
            await trained(api, "j-1", 3)
            adds_up(api)

    asyncio.run(live())


def group_of(api):
    return api._controller.records["j-1"].group


def test_groups_are_numbered_above_all_that_the_backup_has_forgotten(tmp_path, monkeypatch):
    """An order to a job, and a whole life of a controller, are not in it: the fence of its checkpoints knows both."""
    story, began_s = Story(tmp_path), WALL.unix()

    def later(seconds):
        monkeypatch.setattr(type(WALL), "unix", lambda _: began_s + seconds)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 3)
            back_up(story)
            first = group_of(api).generation
        later(60.0)
        async with story.controller(crash=True) as api:
            await phase(api, "j-1", "running")
            await api.scale("j-1", low=2, high=2)
            await until(lambda: asyncio.sleep(0, group_of(api).generation > first), "it was not told to move")
            await phase(api, "j-1", "running")
            given = group_of(api).round.number
        put_back(story)
        later(120.0)
        async with story.controller() as api:
            await phase(api, "j-1", "running")
            assert group_of(api).generation < Round.from_number(given).generation  # the log knows no better
            assert group_of(api).round.number > given

    asyncio.run(live())


def test_what_it_has_cost_is_told_as_far_as_it_can_be_known(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            kernel = api._controller.kernel
            listed = [
                RentedNode(node_id="n7", offer_id="spot", token="", began_s=3600.0),
                RentedNode(node_id="n8", offer_id="gone", token="", began_s=3600.0),
                RentedNode(node_id="n9", offer_id="spot", token="", began_s=0.0, elsewhere=True),
                RentedNode(node_id="of-others", offer_id="spot", token="", began_s=0.0),
            ]
            found = unknown_among(listed, kernel)
            assert (found.highest, [node.node_id for node in found.nodes]) == (8, ["n7", "n8"])
            first, second = found.nodes

            def told(node, billed, now_s=3 * 3600.0):
                return row_of_end("Stranger", node, billed, kernel, now_s).text

            assert told(first, Billed()).endswith("about USD 1.0000 for 2.00 h of spot are not in this bill")
            assert "about USD 0.2500 for 0.50 h of spot are not" in told(first, Billed(from_s=3600.0, to_s=5400.0))
            assert "USD 0.0083 for 0.02 h" in told(first, Billed(from_s=3600.0, to_s=3601.0))  # at least a minute
            assert told(first, Billed(nothing=True)) == "has ended, and cost nothing"
            assert "is not known here" in told(second, Billed(from_s=3600.0, to_s=5400.0))


def test_of_a_node_that_ran_on_after_its_bill_what_came_after_is_told(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            kernel = api._controller.kernel
            kernel.ledger.open("n1", "spot", 0.0)
            kernel.ledger.close("n1", 1800.0)
            node = RentedNode(node_id="n1", offer_id="spot", token="", began_s=0.0)
            row = row_of_end("Orphan", node, Billed(from_s=0.0, to_s=3600.0), kernel, 7200.0)
            assert "about USD 0.2500 for 0.50 h of spot" in row.text

    asyncio.run(live())


def test_that_numbers_were_skipped_is_in_the_log_so_a_replay_gives_the_same_orders(tmp_path):
    story = Story(tmp_path)

    async def live():
        await lived_on(story)
        put_back(story)
        async with story.controller() as api:
            await phase(api, "j-1", "running")

    asyncio.run(live())
    store = Store(story.folder / "log.sqlite")
    (line,) = [line for line in store.lines() if '"NodesFound"' in line]
    store.close()
    assert '"highest":3' in line
    from sublet.kernel.journal import replay

    replay(story.log())


@pytest.mark.parametrize("highest", [0, -1, 1.5])
def test_a_number_that_is_none_is_refused(highest):
    with pytest.raises(ValueError, match="highest"):
        NodesFound(0.0, highest)
