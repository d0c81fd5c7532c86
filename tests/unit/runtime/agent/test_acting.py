"""Root and what jobs put in its way: links, pipes, and directories that are not theirs."""

from __future__ import annotations

import json
import os

import pytest

from sublet.machine.files import FILES
from sublet.runtime.agent import users as users_module
from sublet.runtime.agent.acting import ActingDisk, acting_as
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.outside import Outside
from sublet.runtime.agent.snapshots import Snapshot
from sublet.runtime.agent.steps import Steps
from sublet.runtime.agent.trees import Tree
from sublet.runtime.agent.users import FIRST, Users
from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.manifest import Entry
from sublet.wire.messages import StartWorker

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
MANIFEST = json.dumps({"manifest": {"generation": 0, "meta": {}}})


def an_order(job_id="j-1", **facts):
    return StartWorker(
        **{"worker_id": f"{job_id}.1.0", "job_id": job_id, "argv": ("x",), "cwd": "/", "log": ""} | facts
    )


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Its folder beside its key, as root has them."""
    monkeypatch.setattr(users_module, "_open_the_way", lambda _: None)  # Python's folders stay as they are
    for place in (tmp_path, *tmp_path.parents):  # those of pytest are root's alone
        if not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o011)
    run = tmp_path / "run"
    run.mkdir()
    (run / "n1.pem").write_text("key of the node")
    (run / "n1.pem").chmod(0o600)
    return run


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "MANIFEST.json").write_text(MANIFEST)
    return tmp_path


def test_neither_links_nor_pipes_in_a_step_are_carried(folder):
    (folder / "key").write_text("of somebody else")
    (folder / "step-7" / "loot").symlink_to(folder / "key")
    os.mkfifo(folder / "step-7" / "pipe")
    found = Steps(str(folder), DISK).find(0.0, urgent=True)
    assert found is not None
    assert found.paths == ("step-7/MANIFEST.json",)


def test_what_becomes_a_link_or_a_pipe_after_it_was_found_is_not_read(folder):
    (folder / "key").write_text("of somebody else")
    (folder / "link").symlink_to(folder / "key")
    os.mkfifo(folder / "pipe")  # a plain open would wait for a writer for ever
    for name in ("link", "pipe"):
        for read in (DISK.piece, DISK.tail):
            with pytest.raises(OSError, match=name):
                read(str(folder / name), since_bytes=0, most_bytes=100)


@as_root
def test_the_agent_reads_checkpoints_as_the_job_so_that_a_folder_which_becomes_a_link_leads_nowhere(node):
    users = Users(node / "files")
    place = node / "files" / "checkpoints" / "j-1"
    users.prepare(an_order(), {"SUBLET_CHECKPOINT_DIR": str(place)}, 0)
    disk = ActingDisk(DISK, users.acting)
    with acting_as(FIRST):
        (place / "step-7").symlink_to(node)  # where n1.pem is
        (place / "mine").write_text("mine")
    snapshot = Snapshot(disk, str(place), ["step-7/n1.pem"])
    with pytest.raises(Exception, match=r"n1\.pem"):
        snapshot.work()
    with pytest.raises(PermissionError):
        disk.piece(f"{place}/step-7/n1.pem", since_bytes=0, most_bytes=100)
    assert disk.piece(f"{place}/mine", since_bytes=0, most_bytes=100) == b"mine"
    assert list(disk.below(str(place))) == [f"{place}/mine"]
    assert disk.piece(str(node / "n1.pem"), since_bytes=0, most_bytes=3) == b"key"  # its own it reads as root


@as_root
@pytest.mark.parametrize("saved", ["", "n1.files", "files", "files/work", "files/checkpoints", "files/checkpoints/j-2"])
def test_a_job_that_says_it_saves_in_a_folder_of_others_is_not_given_it(node, saved):
    users = Users(node / "files")
    other = node / "files" / "checkpoints" / "j-2"
    users.prepare(an_order("j-2"), {"SUBLET_CHECKPOINT_DIR": str(other)}, 0)
    before = {path: path.lstat().st_uid for path in (node, *node.rglob("*"))}
    with pytest.raises(PermissionError, match="checkpoint directory"):
        users.prepare(an_order("j-1"), {"SUBLET_CHECKPOINT_DIR": str(node / saved)}, 0)
    assert {path: path.lstat().st_uid for path in before} == before


@as_root
def test_nor_one_that_says_it_works_there(node):
    users = Users(node / "files")
    users.prepare(an_order(cwd=str(node / "files")), {}, 0)
    users.prepare(an_order(cwd=str(node / "files" / "work")), {}, 0)
    (other := node / "files" / "work" / "j-2-abc").mkdir()  # made for another job
    users.prepare(an_order(cwd=str(other)), {}, 0)
    users.give("j-1", str(node))
    places = (node, node / "files", node / "files" / "work", node / "n1.pem", other)
    assert {path.lstat().st_uid for path in places} == {0}


@as_root
def test_a_job_saves_where_all_may_write_and_owns_only_what_it_makes_there(node):
    users, shared = Users(node / "files"), node.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "of another").write_text("x")
    users.prepare(an_order(), {"SUBLET_CHECKPOINT_DIR": str(shared / "run-1")}, 0)
    owners = {path.name: path.stat().st_uid for path in shared.iterdir()}
    assert owners == {"of another": 0, "run-1": FIRST}


@as_root
def test_a_folder_is_given_without_what_links_lead_to_and_what_has_two_names(node):
    users, place = Users(node / "files"), node / "files" / "checkpoints" / "j-1"
    (place / "in").mkdir(parents=True)
    (place / "in" / "brought").write_text("x")
    (place / "in" / "link").symlink_to(node)
    (place / "in" / "twice").hardlink_to(node / "n1.pem")
    users.give("j-1", str(place))
    assert (place / "in" / "brought").stat().st_uid == FIRST
    assert (node.stat().st_uid, (node / "n1.pem").stat().st_uid) == (0, 0)


@as_root
def test_files_are_put_in_place_as_the_job_and_nowhere_else(node):
    users, content = Users(node / "files"), Content(node / "files" / "content", FILES)
    part, place = content.add(b"evil"), node / "files" / "work" / "j-1-abc"
    home = users.home("j-1", str(place), ())

    def put(*paths):
        entries = [Entry(path=path, parts=(part,), size_bytes=4) for path in paths]
        give = lambda folder: users.give("j-1", str(folder))  # noqa: E731 - as an agent has it
        tree = Tree(place, entries, content, FILES, home, give=give, acting=users.acting)
        while not tree.work():
            pass

    place.mkdir()
    users.give("j-1", str(place))
    assert ((home / "sky_workdir").readlink(), (home / "sky_workdir").lstat().st_uid) == (place, FIRST)
    outside = Outside(node / "files", FILES, DISK, lambda _: False)
    for name, error in (("n1.pem", FileExistsError), ("n2.pem", PermissionError)):
        entry = Entry(path=str(node / name), parts=(part,), size_bytes=4)
        with pytest.raises(error, match=r"stays|cannot write there"):
            list(outside.put("j-1", [entry], lambda _: b"evil", users.acting, str(place)))
    with acting_as(FIRST):
        (home / "out").symlink_to(node)
    with pytest.raises(PermissionError):
        put("~/out/n1.pem")
    assert (node / "n1.pem").read_text() == "key of the node"
    put("train.py", "~/data/a")
    assert {path.stat().st_uid for path in (place / "train.py", home / "data", home / "data" / "a")} == {FIRST}


@as_root
@pytest.mark.parametrize("name", ["mounted", "contained"])
def test_what_needs_root_is_refused(node, name):
    order = an_order(argv=("python", "-P", "-m", f"sublet.runtime.file_sync.{name}"))
    with pytest.raises(OSError, match="own_users"):
        Users(node / "files").prepare(order, {}, 0)
