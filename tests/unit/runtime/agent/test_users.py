"""Workers as users of their own: what they may not read, what they own, and that they are the agent's children."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.machine.files import FILES
from sublet.runtime.agent import users as users_module
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.outside import Outside, sweep
from sublet.runtime.agent.preparing import Tree
from sublet.runtime.agent.snapshots import Snapshot, Steps
from sublet.runtime.agent.users import FIRST, ActingDisk, Homes, Users, acting_as
from sublet.runtime.file_sync.content import Content, Entry
from sublet.runtime.providers.local.records import Records
from sublet.testing.rigs import LocalRig, until
from sublet.wire.messages import StartWorker, WorkerDown, WorkerUp
from tests.rigs.blind_node import scene

FOUND = {Path(found).resolve() for found in (sys.base_prefix, sys.prefix, *sys.path) if Path(found).is_dir()}
WAYS = [found for found in FOUND if not FOUND.intersection(found.parents)]  # to Python and to what it imports
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
MANIFEST = json.dumps({"manifest": {"generation": 0, "meta": {}}})


def is_closed(place):
    return not place.stat().st_mode & 0o001


CLOSED = [place for way in WAYS for place in way.parents if is_closed(place)]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else"),
    pytest.mark.skipif(any(map(is_closed, FOUND)), reason="what this Python imports is for its owner alone"),
]


def with_homes_of_its_own(aside):
    """Before a command: with mounts of its own, in which a closed folder holds nothing but what Python needs.

    So an agent can open the way to a Python in root's home, and the home of this machine stays as it is.
    """
    if not CLOSED:
        return []
    lines = ["set -e", "umask 022"]
    for number, closed in enumerate({place for place in CLOSED if not set(place.parents).intersection(CLOSED)}):
        home, kept = shlex.quote(str(closed)), shlex.quote(str(aside / f"{number}"))
        lines += [f"mkdir {kept}", f"mount --rbind {home} {kept}", f"mount -t tmpfs -o mode=700 none {home}"]
        for way in (way for way in WAYS if closed in way.parents):
            there, below = shlex.quote(str(way)), shlex.quote(str(way.relative_to(closed)))
            lines += [f"mkdir -p {there}", f"mount --rbind {kept}/{below} {there}"]
        lines += [f"umount --lazy {kept}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh"]


AGENT = """
import ctypes, gc, json, os, pathlib, sys, time
from sublet.runtime.agent import processes
from sublet.runtime.agent.forking import Forked, begin
from sublet.runtime.agent.nursery import Nursery
from sublet.runtime.agent.users import Users
from sublet.wire.messages import StartWorker

os.setsid()
nursery = Nursery(begin)
secret = "the-key-" + "of-the-node"
processes.adopt_orphans()
root = pathlib.Path(sys.argv[1])
(root / "token").write_text(secret)
(root / "token").chmod(0o600)
forked = Forked(Users(root / "files"), nursery)
(root / "elsewhere").mkdir()
(root / "elsewhere").chmod(0o1777)  # as a disk that all share has to be
seen = {}
for job in ("a", "b"):
    work = root / "files" / "work" / f"{job}-0123"
    work.mkdir(mode=0o700)
    (work / "given").write_text("code")
    (work / "look.py").write_text(pathlib.Path(sys.argv[2]).read_text())
    order = StartWorker(
        worker_id=f"{job}.1.0", job_id=job, argv=(sys.executable, "look.py", str(root), str(os.getpid())),
        cwd=str(work), env={"SUBLET_CHECKPOINT_DIR": str(root / "elsewhere" / job)},
        log=str(root / "files" / f"{job}.log"),
    )
    worker = forked.start(order, {})
    ends = time.monotonic() + 60.0
    while not (over := dict(forked.ended())) and time.monotonic() < ends:
        time.sleep(0.005)
    seen[job] = {"code": over.get(worker.pid), "log": (root / "files" / f"{job}.log").read_text()}
print(json.dumps(seen))
"""
WORKER = """
import gc, json, os, pathlib, sys
root, agent = pathlib.Path(sys.argv[1]), sys.argv[2]

def refused(what):
    try:
        what()
    except PermissionError:
        return True
    return False

other = "b" if pathlib.Path.cwd().name == "a-0123" else "a"
pathlib.Path("written").write_text("mine")
pathlib.Path(os.environ["SUBLET_CHECKPOINT_DIR"], "last.pt").write_text("mine")
pathlib.Path(os.environ["HOME"], "cache").write_text("mine")
with open("/dev/stdout", "a"):
    pass
print(json.dumps({
    "user": os.geteuid(), "home": os.environ["HOME"], "mine": os.getppid() == int(agent),
    "token": refused(lambda: (root / "token").read_text()),
    "environ": refused(lambda: pathlib.Path(f"/proc/{agent}/environ").read_bytes()),
    "memory": refused(lambda: open(f"/proc/{agent}/mem", "rb")),
    "listing": refused(lambda: list(root.iterdir())),
    "other": other == "b" or refused(lambda: (root / "files" / "work" / "a-0123" / "given").read_text()),
    "root again": refused(lambda: os.setuid(0)),
    "knows": any(isinstance(each, dict) and "the-key-of-the-node" in list(map(str, each.values()))
                 for each in gc.get_objects()),
}))
"""


def test_a_worker_reads_neither_the_key_nor_another_job_and_writes_where_it_should(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    for place in (tmp_path, *tmp_path.parents):  # those of pytest are root's alone
        if not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o011)
    (tmp_path / "look.py").write_text(WORKER)
    (tmp_path / "aside").mkdir(mode=0o700)
    command = [*with_homes_of_its_own(tmp_path / "aside"), sys.executable, "-c", AGENT]
    command += [str(tmp_path / "run"), str(tmp_path / "look.py")]
    if subprocess.run([*command[:2], "true"] if CLOSED else ["true"], capture_output=True, check=False).returncode:
        pytest.skip(f"mounts of its own are not allowed here, and this Python is in {CLOSED[0]}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert all(map(is_closed, CLOSED)), "the machine that this test runs on is as it was"
    seen = {job: (facts["code"], facts["log"]) for job, facts in json.loads(done.stdout).items()}
    said = {}
    for job, (code, log) in seen.items():
        assert code == 0, log
        said[job] = json.loads(log)
    users = {facts.pop("user") for facts in said.values()}
    homes = {facts.pop("home") for facts in said.values()}
    assert len(users) == len(homes) == 2
    assert 0 not in users
    yes = dict.fromkeys(["mine", "token", "environ", "memory", "listing", "other", "root again"], True)
    assert said == {"a": {**yes, "knows": False}, "b": {**yes, "knows": False}}


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """The home of the machine's owner."""
    home = tmp_path / "owner"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("the owner's")
    (home / ".bashrc").write_text("# the owner's\n")
    (home / ".bashrc").chmod(0o600)
    (home / "tokens.json").write_text("the owner's")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.json").write_text(f"of {name}")
    return folder


def state_of(folder):
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------- homes


def test_a_job_has_what_is_in_the_machines_home_and_its_own_in_the_place_of_what_it_mounts(tmp_path, owner):
    (owner / "sky_workdir").mkdir()
    (owner / "tokens.json.new").write_text("the owner's draft")
    before = state_of(owner)
    homes, place = Homes(tmp_path / "homes", owner), tmp_path / "place"
    place.mkdir()
    home = homes.home("job-1", str(place), ["~/tokens.json", "~/.ssh/key", "~/data"])
    assert (home / ".ssh" / "id").read_text() == "the owner's"
    assert (home / ".bashrc").read_text() == "# the owner's\n"
    assert (home / "sky_workdir").resolve() == place
    assert not (home / "tokens.json").exists()
    for name in ("tokens.json", "tokens.json.new", ".ssh/key", ".bashrc"):
        (home / name).write_text("the job's")
    assert state_of(owner) == before
    assert (homes.home("job-1", str(place), ["~/tokens.json"]) / "tokens.json").read_text() == "the job's"
    assert (homes.home("job-2", str(place), []) / "tokens.json").read_text() == "the owner's"
    (home / ".cache" / "model").write_text("fetched once")
    assert (owner / ".cache" / "model").read_text() == "fetched once"
    FILES.remove_tree(tmp_path / "homes")
    assert state_of(owner).items() >= before.items(), "no link is followed when the node is given back"


# ---------------------------------------------------------------------- agents


def test_two_jobs_that_mount_one_path_of_home_read_each_its_own_and_the_owner_keeps_his(rig, owner, work):
    before = state_of(owner)
    script = "until test -e go; do sleep 0.05; done; cat ~/tokens.json ~/.bashrc; cd ~/sky_workdir && pwd -P && ls"

    async def live():
        async with scene(rig) as sender:
            for job, name in (("job-1", "a"), ("job-2", "b")):
                mounts = {"~/tokens.json": str(work / f"{name}.json"), "~/.bashrc": str(work / f"{name}.json")}
                setup = "cat ~/tokens.json > of-setup"
                await sender.start(f"{job}.1.0", ("bash", "-c", script), cwd=str(work), mounts=mounts, setup=setup)
                await sender.next(WorkerUp, worker_id=f"{job}.1.0")
            places = sorted((rig.folder).rglob("of-setup"))
            for place in places:
                (place.parent / "go").touch()
            assert sorted(place.read_text() for place in places) == ["of a", "of b"]
            for job, name in (("job-1", "a"), ("job-2", "b")):
                assert (await sender.next(WorkerDown, worker_id=f"{job}.1.0")).code == 0
                told = sender.log(f"{job}.1.0")
                assert told.startswith(f"of {name}of {name}/")
                assert told.splitlines()[1:] == ["a.json", "b.json", "go", "of-setup"]

    asyncio.run(live())
    assert state_of(owner) == before


def test_a_path_of_the_machine_is_refused_where_a_file_is_that_is_not_ours_or_another_jobs(rig, work, tmp_path):
    theirs, there = tmp_path / "data" / "theirs.json", tmp_path / "data" / "there.json"
    theirs.parent.mkdir()
    theirs.write_text("the owner's")
    same = tmp_path / "data" / "same.json"
    same.write_text("of a")
    stay, read = ("sleep", "600"), ("cat", str(there))

    async def live():
        async with scene(rig) as sender:

            async def start(worker, argv, name, *more):
                mounts = {str(path): str(work / f"{name}.json") for path in (there, *more)}
                await sender.start(worker, argv, cwd=str(work), mounts=mounts)

            await start("job-1.1.0", stay, "a", theirs)
            down = await sender.next(WorkerDown, worker_id="job-1.1.0")
            assert (down.code, theirs.read_text()) == (127, "the owner's")
            assert "theirs.json: something is there that did not come for a job" in down.error
            assert not there.exists(), "all or nothing"
            await start("job-2.1.0", stay, "a", same)
            await sender.next(WorkerUp, worker_id="job-2.1.0")
            await start("job-3.1.0", read, "b")
            down = await sender.next(WorkerDown, worker_id="job-3.1.0")
            assert "there.json: job-2, which runs on this node, has another file there" in down.error
            assert there.read_text() == "of a"
            await start("job-4.1.0", read, "a")  # the same file serves both
            assert (await sender.next(WorkerDown, worker_id="job-4.1.0")).code == 0
            sender.end("job-2.1.0")
            await sender.next(WorkerDown, worker_id="job-2.1.0")
            await start("job-3.1.1", read, "b")  # now it may
            assert (await sender.next(WorkerDown, worker_id="job-3.1.1")).code == 0
            await start("job-2.1.1", read, "a")  # looked at before each start
            assert (await sender.next(WorkerDown, worker_id="job-2.1.1")).code == 0
            assert [sender.log(name) for name in ("job-3.1.1", "job-2.1.1")] == ["of b", "of a"]

    asyncio.run(live())
    assert not there.exists(), "it went with the node"
    assert (theirs.read_text(), same.read_text()) == ("the owner's", "of a")


def test_what_an_agent_that_was_killed_has_left_is_deleted_with_its_record_but_not_what_changed(rig, work, tmp_path):
    there, edited = tmp_path / "there.json", tmp_path / "edited.json"

    async def live():
        async with scene(rig) as sender:
            mounts = {str(path): str(work / "a.json") for path in (there, edited)}
            await sender.start("job-1.1.0", ("true",), cwd=str(work), mounts=mounts)
            assert (await sender.next(WorkerDown)).code == 0
            edited.write_text("by its owner since")
            rig.kill("n")
            await until(lambda: not rig.left())

    asyncio.run(live())
    (register,) = rig.folder.rglob("outside.json")
    assert set(json.loads(register.read_text())) == {str(there), str(edited)}
    assert there.exists()
    records = Records(tmp_path / "nodes")
    kept: Path = records.path("n", "notice.files")
    register.parent.rename(kept)
    records.remove("n")
    assert not there.exists()
    assert not kept.exists()
    assert edited.read_text() == "by its owner since"
    sweep(kept, FILES, DISK)  # twice is as good as once


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
