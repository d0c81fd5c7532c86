"""A store that is full, read-only, locked or damaged: the controller says so, does nothing more, and rents nothing."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from sublet.errors import BadInput, StoreFailed
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import api_over
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
TROUBLES = {
    "full": (sqlite3.OperationalError("database or disk is full"), "make room or repair the disk, then 'sublet up'"),
    "read-only": (
        sqlite3.OperationalError("attempt to write a readonly database"),
        "let its owner write the file and its directory",
    ),
    "locked": (sqlite3.OperationalError("database is locked"), "another program has the file open for writing: end it"),
    "broken disk": (sqlite3.OperationalError("disk I/O error"), "make room or repair the disk"),
    "damaged": (sqlite3.DatabaseError("database disk image is malformed"), "put a backup in its place and 'sublet up'"),
}


class Broken:
    """A connection of which every statement of some kinds fails, from now on."""

    def __init__(self, db, error, kinds=("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")):
        self._db, self._error, self._kinds = db, error, kinds

    def execute(self, sql, values=()):
        if sql.startswith(self._kinds):
            raise self._error
        return self._db.execute(sql, values)

    def executemany(self, sql, rows):
        if sql.startswith(self._kinds):
            raise self._error
        return self._db.executemany(sql, rows)

    def __getattr__(self, name):
        return getattr(self._db, name)


def calls(story):
    """What the cloud was asked, and what it has."""
    return list(story.cloud.rented), sorted(story.cloud.nodes)


@pytest.mark.parametrize("kind", [("BEGIN",), ("INSERT",), ("COMMIT",)], ids=["begin", "insert", "commit"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_controller_whose_store_breaks_ends_in_words_with_the_next_step_and_asks_for_nothing_more(
    tmp_path, trouble, kind
):
    error, hint = TROUBLES[trouble]
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 2)
            store = api._controller.store
            sound, store._db = store._db, Broken(store._db, error, kind)
            before = calls(story)
            with pytest.raises(StoreFailed, match=f"cannot be written .*\n  next: {hint}"):
                await api.submit(a_spec(name="k", max_workers=2))
            with pytest.raises(StoreFailed, match="cannot be written"):
                await asyncio.wait_for(running, 120)
            assert calls(story) == before
            store._db = sound
            if sound.in_transaction:
                sound.execute("ROLLBACK")
            await story.cloud.close()
        async with story.controller() as api:  # and once it is mended, it goes on as if nothing had been
            await phase(api, "j-1", "running")
            assert [view["id"] for view in await api.jobs()] == ["j-1"]
            adds_up(api)

    asyncio.run(live())


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_start_on_a_store_that_cannot_be_written_is_refused_before_anybody_is_asked(tmp_path, trouble):
    error, hint = TROUBLES[trouble]
    story = Story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 2)
        before = calls(story)
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            store = api._controller.store
            store._db = Broken(store._db, error)
            with pytest.raises(StoreFailed, match=f"cannot be written .*\n  next: {hint}"):
                await asyncio.wait_for(api.run(), 120)
            assert story.cloud._tell is None  # the market was not opened
        assert calls(story) == before

    asyncio.run(live())


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_file_that_cannot_even_be_opened_is_refused_with_the_next_step(tmp_path, trouble):
    error, hint = TROUBLES[trouble]

    def connect(path):
        raise error

    with pytest.raises(BadInput, match=f"cannot be used as a store .*\n  next: {hint}"):
        Store(tmp_path / "log.sqlite", connect=connect)


def test_another_program_that_holds_the_file_is_waited_for_and_then_named(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store._db.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        store.put("a", "b")
    other.execute("COMMIT")
    store.put("a", "b")
    other.close()
    store.close()


def test_what_users_ask_of_a_controller_whose_store_broke_is_answered_in_words(tmp_path):
    story = Story(tmp_path)

    async def live():
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            store = api._controller.store
            store._db = Broken(store._db, TROUBLES["full"][0])
            with pytest.raises(StoreFailed, match="cannot be written"):
                await api.pause("j-1")
            await until(lambda: asyncio.sleep(0, running.done()), "it went on")
            await story.cloud.close()

    asyncio.run(live())
