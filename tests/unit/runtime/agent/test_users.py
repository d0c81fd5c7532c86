"""Workers as users of their own: what they may not read, what they own, and that they are the agent's children."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FOUND = {Path(found).resolve() for found in (sys.base_prefix, sys.prefix, *sys.path) if Path(found).is_dir()}
WAYS = [found for found in FOUND if not FOUND.intersection(found.parents)]  # to Python and to what it imports


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
