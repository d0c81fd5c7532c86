"""The log is cut into an archive and a tail: a start needs the tail alone, and nothing of what was is lost."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.domain.budget import Budget
from sublet.domain.money import Money
from sublet.errors import BadInput
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.machine.files import FILES
from sublet.runtime import last_run
from sublet.runtime.archive import Kept, WholeLog, archive_lines, refuse_lost_log
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.memory.archive import Compaction
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import Training, api_over
from tests.rigs.life import a_life
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
SHORT = Paces(events_a_snapshot=4, events_a_file=10, history_kept=15)


def cut_until(story, kind=Kept.EVENTS):
    store = Store(story.folder / "log.sqlite")
    found = store.cut_until(kind)
    store.close()
    return found


async def has_cut(api, kind=Kept.EVENTS, least=1):
    store = api._controller.store
    await until(lambda: asyncio.sleep(0, store.cut_until(kind) >= least), "nothing was cut")


async def busy_market(story):
    """Events, and rows of history."""
    for number in range(40):
        story.cloud.reprice("spot", 0.5 + number / 1000)
        await asyncio.sleep(0.001)


async def a_cut_life(story):
    """Two jobs, one of which has ended; a crash. The bill by then."""
    story.cloud.jobs["j-1"] = Training(steps=20)
    async with story.controller(crash=True) as api:
        for name in ("j", "k"):
            await api.submit(a_spec(name=name))
        await phase(api, "j-1", "finished")
        await trained(api, "k-1", 5)
        await busy_market(story)
        await has_cut(api, least=20)
        return {"j-1": replace(api._controller.bill.jobs["j-1"])}


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path, budget=Budget(purse=Money.from_usd(50)), paces=SHORT)


def test_a_controller_whose_log_was_cut_goes_on_with_its_jobs_and_its_bill_to_the_grain(story):
    async def live():
        before = await a_cut_life(story)
        async with story.controller() as api:
            controller = api._controller
            assert (await api.job("j-1"))["phase"] == "finished"
            assert controller.bill.jobs["j-1"] == before["j-1"]
            await phase(api, "k-1", "running")
            check(controller.kernel)
            adds_up(api)
            left = controller.store.last_seq() - controller.store.cut_until(Kept.EVENTS)
            assert left < SHORT.events_a_file + 3 * SHORT.events_a_snapshot + 30  # and what came while it was written

    asyncio.run(live())


def test_archive_and_log_together_are_the_whole_life_and_replay_compares_all_of_it(story, capsys):
    asyncio.run(a_cut_life(story))
    store = Store(story.folder / "log.sqlite")
    log = WholeLog(store)
    lines, last = list(log.lines()), store.last_seq()
    assert (log.is_whole, log.first, len(lines)) == (True, 1, last)
    assert list(log.lines(after=3, until=last - 1)) == lines[3:-1]
    store.close()
    assert run(["replay", str(story.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["events"], found["verified"]) == (last, True)


def test_without_its_archive_replay_begins_at_the_cut_and_says_so(story, capsys):
    asyncio.run(a_cut_life(story))
    for file in story.folder.glob("events-*.gz"):
        file.unlink()
    cut = cut_until(story)
    assert run(["replay", str(story.folder)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert f"orders as recorded; the {cut} before them were cut, and their archive is not there, or damaged" in said
    assert run(["replay", str(story.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["missing"], found["verified"]) == (cut, False)
    assert found["compared"] == found["events"] > 0


def damage_snapshots(story):
    with sqlite3.connect(story.folder / "log.sqlite") as db:
        db.execute("UPDATE snapshots SET state = substr(state, 1, 100)")


def test_where_no_snapshot_can_be_read_the_archive_is(story):
    async def live():
        await a_cut_life(story)
        damage_snapshots(story)
        async with story.controller() as api:
            assert (await api.job("j-1"))["phase"] == "finished"
            await phase(api, "k-1", "running")
            check(api._controller.kernel)
            adds_up(api)

    asyncio.run(live())


def test_with_neither_snapshots_nor_archive_a_start_is_refused_in_words_and_nothing_is_rented(story):
    async def live():
        await a_cut_life(story)
        damage_snapshots(story)
        next(story.folder.glob("events-*.gz")).unlink()
        rented = list(story.cloud.rented)
        why = r"no snapshot can be read.*archive is not whole\n  next: put a backup"
        with (
            api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api,
            pytest.raises(BadInput, match=why),
        ):
            await asyncio.wait_for(api.run(), 120)
        assert story.cloud.rented == rented

    asyncio.run(live())


def test_of_a_history_that_was_cut_people_are_told_where_the_rest_is(story):
    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(name="j0", max_workers=1))
            await busy_market(story)
            await has_cut(api, Kept.HISTORY)
            cut = api._controller.store.cut_until(Kept.HISTORY)
            first, second, *_ = await api.events()
            assert (first["seq"], first["kind"], second["seq"]) == (cut, "Archived", cut + 1)
            assert f"rows 1 to {cut} are in {story.folder}/history-*.jsonl.gz" in first["text"]
            assert (await api.events("j0-1"))[0]["kind"] == "Archived"
            assert (await api.events(after=cut))[0]["seq"] == cut + 1

    asyncio.run(live())
    files = sorted(story.folder.glob("history-*.gz"))
    rows = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    cut = cut_until(story, Kept.HISTORY)  # what is beyond it was archived when the controller ended, and is here too
    assert [row["seq"] for row in rows if row["seq"] <= cut] == list(range(1, cut + 1))
    assert {"at", "text", "facts"} <= rows[0].keys()


def test_a_budget_that_was_changed_before_the_cut_is_still_the_one_in_force(story):
    async def live():
        async with story.controller() as api:
            await api.set_budget(purse_usd=77.0)
            store = api._controller.store
            store._db.execute("DELETE FROM meta WHERE key = 'budget_in_force'")  # as a version before left it
            await busy_market(story)
            await has_cut(api)

    asyncio.run(live())
    store = Store(story.folder / "log.sqlite")
    assert not any('"BudgetChanged"' in line for line in store.lines())
    assert last_run._budget_in_force(store).purse == Money.from_usd(77)
    store.close()


# ---------------------------------------------------------------------- crashes and full disks


class Ends(Exception):
    """The program is killed."""


class Dying:
    """Files that end the program before, or after, a write."""

    def __init__(self, before=None, after=None, error=None):
        self.before, self.after, self.error, self.writes = before, after, error, 0

    def write(self, path, data, **how):
        self.writes += 1
        if self.error is not None:
            raise self.error
        if self.writes == self.before:
            raise Ends
        FILES.write(path, data, **how)
        if self.writes == self.after:
            raise Ends

    def read(self, path):
        return FILES.read(path)


class Inbox:
    """Does what is spawned, when it is told to."""

    def __init__(self):
        self.work = []

    def spawn(self, work, name):
        self.work.append(work)

    def drain(self):
        while self.work:
            asyncio.run(self.work.pop())


class Alarms:
    def __init__(self):
        self.texts = []

    def sound(self, kind, text):
        self.texts.append(text)


def a_long_store(folder):
    """As many events as make three files, with snapshots."""
    header, *lines = a_life()
    store = Store(folder / "log.sqlite")
    store.put("header", header)
    for number, line in enumerate(lines, start=1):
        store.append(json.loads(line)["event"]["at_s"], line)
        if number % 6 == 0:
            kernel = replay([header, *lines[:number]])
            store.add_snapshot(KERNEL_VERSION, json.dumps({"kernel": kernel.facts()}))
    return store, lines


@pytest.mark.parametrize("point", ["before", "after", "while it is cut"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_program_that_ends_at_any_moment_of_a_cut_loses_nothing_and_tells_nothing_twice(tmp_path, point, number):
    store, lines = a_long_store(tmp_path)
    paces, inbox = Paces(events_a_file=8), Inbox()
    files = Dying(**({point: number} if point in ("before", "after") else {}))
    if point == "while it is cut":
        store.put = _dying_put(store.put, number)
    Compaction(inbox, store=store, alarms=Alarms(), files=files, paces=paces).look()
    with pytest.raises(Ends):
        inbox.drain()
    store.close()
    store = Store(tmp_path / "log.sqlite")
    log = WholeLog(store)
    assert log.is_whole
    assert list(log.lines()) == lines
    Compaction(inbox, store=store, alarms=Alarms(), paces=paces).look()  # the next one goes on
    inbox.drain()
    log = WholeLog(store)
    assert (list(log.lines()), log.cut) == (lines, store.snapshots()[1][0])
    assert sum(1 for _ in store.lines()) == len(lines) - log.cut
    assert store.snapshots()[-1][0] == log.cut  # from where a replay can begin
    store.close()


def _dying_put(put, number):
    """Ends the program in the transaction of the n-th cut."""
    left = [number]

    def dying(key, value):
        left[0] -= key.endswith("_cut")
        if not left[0]:
            raise Ends
        put(key, value)

    return dying


def test_a_disk_that_is_full_leaves_the_log_as_it_is_and_sounds_an_alarm(tmp_path):
    store, lines = a_long_store(tmp_path)
    inbox, alarms = Inbox(), Alarms()
    full = Dying(error=OSError(errno.ENOSPC, "No space left on device"))
    Compaction(inbox, store=store, alarms=alarms, files=full, paces=Paces(events_a_file=8)).look()
    inbox.drain()
    assert list(store.lines()) == lines
    assert alarms.texts == ["the log cannot be cut, and grows: its archive cannot be written (No space left on device)"]
    store.close()


def test_a_damaged_file_of_the_archive_is_as_good_as_none(tmp_path):
    store, lines = a_long_store(tmp_path)
    inbox = Inbox()
    Compaction(inbox, store=store, alarms=Alarms(), paces=Paces(events_a_file=8)).look()
    inbox.drain()
    file = sorted(tmp_path.glob("events-*.gz"))[1]
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-8] + b"\0" * 8, b"no archive at all"):
        file.write_bytes(damaged)
        log = WholeLog(store)
        assert (log.is_whole, log.first) == (False, log.cut + 1)
        assert list(log.lines()) == lines[log.cut :]
    store.close()


def test_an_archive_of_another_time_is_not_taken_for_ours(tmp_path):
    """A backup was put back: what the time that is lost had archived beyond its cut is no part of this life."""
    store, lines = a_long_store(tmp_path)
    inbox = Inbox()
    Compaction(inbox, store=store, alarms=Alarms(), paces=Paces(events_a_file=8)).look()
    inbox.drain()
    cut = store.cut_until(Kept.EVENTS)
    archive_lines(tmp_path, Kept.EVENTS, cut + 1, ["{}"] * 10)
    assert list(WholeLog(store).lines()) == lines
    store.close()


def test_an_archive_of_another_time_is_never_written_over(tmp_path):
    """What the log has not is kept beside; what it has is written once more, with what has come since."""
    archive_lines(tmp_path, Kept.EVENTS, 1, ["x", "y"])
    archive_lines(tmp_path, Kept.EVENTS, 1, ["x", "y", "z"])
    assert [path.name for path in tmp_path.iterdir()] == ["events-000000000001.jsonl.gz"]
    archive_lines(tmp_path, Kept.EVENTS, 1, ["x", "other"])
    archive_lines(tmp_path, Kept.EVENTS, 1, ["another"])
    (tmp_path / "events-000000000001.jsonl.gz").write_bytes(b"damaged")
    archive_lines(tmp_path, Kept.EVENTS, 1, ["new"])
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    texts = {name: gzip.decompress(data).decode() for name, data in found.items() if data != b"damaged"}
    assert texts == {
        "events-000000000001.jsonl.gz": "new\n",
        "events-000000000001.other-1.jsonl.gz": "x\ny\nz\n",
        "events-000000000001.other-2.jsonl.gz": "x\nother\n",
    }
    assert found["events-000000000001.other-3.jsonl.gz"] == b"damaged"


def test_an_archive_without_its_log_is_no_place_to_begin_anew(tmp_path):
    refuse_lost_log(tmp_path)
    archive_lines(tmp_path, Kept.EVENTS, 1, ["x"])
    with pytest.raises(BadInput, match=r"log.sqlite is missing, and events-000000000001.jsonl.gz.*\n.*--fresh"):
        refuse_lost_log(tmp_path)
    assert not (tmp_path / "log.sqlite").exists()
    Store(tmp_path / "log.sqlite").close()
    refuse_lost_log(tmp_path)


def test_the_same_lines_make_the_same_file(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        archive_lines(tmp_path / folder, Kept.EVENTS, 1, ["x", "y"])
    (one,), (two,) = ([*Path(tmp_path / folder).iterdir()] for folder in ("a", "b"))
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())
    assert one.stat().st_mode & 0o077 == 0
    shutil.rmtree(tmp_path / "a")
