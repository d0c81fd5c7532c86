"""Committed means durable: the power is cut after every order, and the disk keeps no more than it must.

The orders that real saves give to the operating system are recorded, and carried out again on a pessimist's disk:
what was written to a file since its last fsync is lost, whole or in part, and a name that was made, moved or removed
since the last fsync of its directory may be there or not, each on its own.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from sublet.train.checkpoint.checkpoints import Checkpoints, newest

DISKS_PER_CUT = 3
STEPS = (1, 2, 3, 4)  # with two kept, so that old ones are removed meanwhile


def state_of(step):
    return {"w": torch.full((300,), float(step)), "step": step}


@dataclass
class Recorder:
    """Every order to the operating system, in turn, and when a save was acknowledged."""

    orders: list[tuple] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)  # of open handles

    def listen(self, patch):
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")}

        def full(path, dir_fd):
            return Path(path) if dir_fd is None else self.paths[dir_fd] / path

        def open_(path, flags, mode=0o777, *, dir_fd=None):
            handle = real["open"](path, flags, mode, dir_fd=dir_fd)
            self.paths[handle] = full(path, dir_fd)
            if flags & os.O_CREAT:
                self.orders.append(("create", full(path, dir_fd)))
            return handle

        def write(handle, content):
            count = real["write"](handle, content)
            self.orders.append(("write", self.paths[handle], bytes(content[:count])))
            return count

        def fsync(handle):
            real["fsync"](handle)
            self.orders.append(("fsync", self.paths[handle]))

        def rename(source, target):
            real["rename"](source, target)
            self.orders.append(("rename", Path(source), Path(target)))

        def mkdir(path, mode=0o777):
            real["mkdir"](path, mode)
            self.orders.append(("mkdir", Path(path)))

        def unlink(path, *, dir_fd=None):
            real["unlink"](path, dir_fd=dir_fd)
            self.orders.append(("remove", full(path, dir_fd)))

        def rmdir(path, *, dir_fd=None):
            real["rmdir"](path, dir_fd=dir_fd)
            self.orders.append(("remove", full(path, dir_fd)))

        listeners = (open_, write, fsync, rename, mkdir, unlink, rmdir)
        for name, listener in zip(real, listeners, strict=True):
            patch.setattr(os, name, listener)


class File:
    def __init__(self):
        self.now = self.kept = b""

    def sync(self):
        self.kept = self.now

    def put(self, path, rng):
        contents = [self.kept, self.now, self.now[: len(self.now) // 2], bytes(len(self.now))]
        allowed = contents[:1] if self.now == self.kept or rng is None else contents
        path.write_bytes(allowed[0] if rng is None else rng.choice(allowed))


class Directory:
    def __init__(self):
        self.now, self.kept = {}, {}

    def sync(self):
        self.kept = dict(self.now)

    def put(self, path, rng):
        path.mkdir()
        for name in sorted(self.now.keys() | self.kept.keys()):
            node = (self.kept if rng is None else rng.choice([self.kept, self.now])).get(name)
            if node is not None:
                node.put(path / name, rng)


class PessimistsDisk:
    def __init__(self, base):
        self.base, self.root = base, Directory()

    def find(self, path):
        node = self.root
        for name in path.relative_to(self.base).parts:
            node = node.now[name]
        return node

    def do(self, order):
        match order:
            case ("mkdir", path):
                self.find(path.parent).now[path.name] = Directory()
            case ("create", path):
                self.find(path.parent).now.setdefault(path.name, File())
            case ("write", path, content):
                self.find(path).now += content
            case ("fsync", path):
                self.find(path).sync()
            case ("rename", source, target):
                self.find(target.parent).now[target.name] = self.find(source.parent).now.pop(source.name)
            case ("remove", path):
                del self.find(path.parent).now[path.name]


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        recorder.listen(patch)
        with Checkpoints(base / "job" / "checkpoints", keep=2, writer="w", generation=1) as kept:
            for step in STEPS:
                kept.save(step, state_of(step), {}).wait()
                recorder.orders.append(("acknowledged", step))
    return base, recorder.orders


def test_no_power_cut_loses_an_acknowledged_checkpoint_or_leaves_a_torn_one(orders, tmp_path):
    base, given = orders
    disk = PessimistsDisk(base)
    acknowledged = None
    for cut, order in enumerate(given):
        disk.do(order)
        acknowledged = order[1] if order[0] == "acknowledged" else acknowledged
        for case in range(DISKS_PER_CUT):
            after = tmp_path / "after"
            disk.root.put(after, random.Random(f"{cut} {case}") if case else None)  # 0: only what must be there
            loaded = newest(after / "job" / "checkpoints")
            told = f"cut after order {cut}, {order[:2]}, disk {case}"
            assert acknowledged is None or loaded is not None, told
            assert loaded is None or loaded.step >= (acknowledged or 0), told
            assert loaded is None or torch.equal(loaded.state["w"], state_of(loaded.step)["w"]), told
            shutil.rmtree(after)
    assert acknowledged == STEPS[-1]
    assert sum(order[0] == "fsync" for order in given) > 20


@pytest.mark.parametrize("lost", ["the file", "the staging directory", "the directory of checkpoints"])
def test_the_pessimists_disk_would_notice_a_missing_fsync(orders, tmp_path, lost):
    base, given = orders
    home = base / "job" / "checkpoints"
    is_lost = {
        "the file": lambda path: path.name == "data-0000.bin",
        "the staging directory": lambda path: path.parent.name == "staging",
        "the directory of checkpoints": lambda path: path == home,
    }[lost]
    disk = PessimistsDisk(base)
    for order in given:
        if not (order[0] == "fsync" and is_lost(order[1])):
            disk.do(order)
    disk.root.put(tmp_path / "after", None)
    assert newest(tmp_path / "after" / "job" / "checkpoints") is None
