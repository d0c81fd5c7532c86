"""Workers as users of their own: what they may not read, what they own, and that they are the agent's children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WAY = [Path(found).resolve() for found in (sys.base_prefix, sys.prefix, *sys.path) if Path(found).exists()]
CLOSED = [way for found in WAY for way in (found, *found.parents) if not way.stat().st_mode & 0o001]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else"),
    pytest.mark.skipif(bool(CLOSED), reason=f"this Python is for its owner alone: {CLOSED[:1]}"),
]

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
    command = [sys.executable, "-c", AGENT, str(tmp_path / "run"), str(tmp_path / "look.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
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
