"""A disk in memory for checkpoints, whose power can be cut before any order, and which keeps no more than it must.

After a power cut, bytes written to a file since its last sync are there, lost, or there in part. Each name that was
made, moved or removed since the last sync of its folder is there or not, independently of all others. After the mere
death of a process everything that it did is there, and nothing that it was about to do.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from pathlib import Path
from types import TracebackType
from typing import Self

from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.disk import Disk, Draft, Facts, Hold


class PowerCut(BaseException):
    """This process is no more. It is no Exception, so that no handler goes on."""


class _File:
    def __init__(self, inode: int, changed_ns: int, content: bytes = b"") -> None:
        self.inode, self.changed_ns = inode, changed_ns
        self.now, self.kept = bytearray(content), content

    def torn(self, rng: random.Random | None) -> _File:
        """Its state after a power cut; without an RNG only the certain part is there."""
        found = self.kept
        if rng is not None and self.now != self.kept:
            half = bytes(self.now[: rng.randrange(len(self.now) + 1)])
            found = rng.choice([self.kept, bytes(self.now), half, bytes(len(self.now))])
        return _File(self.inode, self.changed_ns, found)

    def copy(self, done: dict[int, _Node]) -> _Node:
        if self.inode not in done:
            copied = done[self.inode] = _File(self.inode, self.changed_ns, bytes(self.now))
            copied.kept = self.kept
        return done[self.inode]


class _Folder:
    def __init__(self, inode: int, changed_ns: int) -> None:
        self.inode, self.changed_ns = inode, changed_ns
        self.now: dict[str, _Node] = {}
        self.kept: dict[str, _Node] = {}

    def torn(self, rng: random.Random | None) -> _Folder:
        found = _Folder(self.inode, self.changed_ns)
        for name in sorted(self.now.keys() | self.kept.keys()):
            node = (self.kept if rng is None else rng.choice([self.kept, self.now])).get(name)
            if node is not None:
                found.now[name] = node.torn(rng)
        found.kept = dict(found.now)
        return found

    def copy(self, done: dict[int, _Node]) -> _Folder:
        """With what has moved between folders still one and the same (`done`)."""
        copied = done[self.inode] = _Folder(self.inode, self.changed_ns)
        for mine, its in ((self.now, copied.now), (self.kept, copied.kept)):
            for name, node in mine.items():
                its[name] = done.get(node.inode) or node.copy(done)
        return copied


_Node = _File | _Folder


class TornDisk(Disk):
    """A filesystem of one machine, as `sublet.train.checkpoint.disk.Disk` has it.

    `orders` counts those that change something. Before order `cut_at` the power goes: that one and all others after it
    raise PowerCut, and `after_power_cut` or `after_kill` is the disk that is found then.
    """

    def __init__(self, *, wall: Wall = WALL) -> None:
        self.orders = 0
        self.cut_at: int | None = None
        self.tears: random.Random | None = None  # how much of a write that is cut is done; None = nothing
        self._wall = wall
        self._inodes = itertools.count(1)
        self._root = _Folder(next(self._inodes), self.now_ns())
        self._held: set[int] = set()  # inodes

    # ------------------------------------------------------------------------------------------- what is left of it

    def after_kill(self) -> TornDisk:
        """As the next process finds it."""
        return self._next(self._root.copy({}))

    def after_power_cut(self, rng: random.Random | None) -> TornDisk:
        """The disk at the next boot; without an RNG only the certain part is there."""
        return self._next(self._root.torn(rng))

    def rot(self, path: Path, rng: random.Random) -> None:
        """A bit of a file is another one now, unnoticed."""
        file = self._find(path)
        assert isinstance(file, _File)
        file.now[rng.randrange(len(file.now))] ^= 1 << rng.randrange(8)
        file.kept = bytes(file.now)

    # ------------------------------------------------------------------------------------------- orders

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in order."""
        self._reads()
        return sorted(self._folder(folder).now)

    def facts(self, path: Path) -> Facts:
        """FileNotFoundError where there is nothing."""
        self._reads()
        node = self._find(path)
        return Facts(node.inode, len(node.now), node.changed_ns)

    def is_folder(self, path: Path) -> bool:
        """Whether there is one."""
        self._reads()
        try:
            return isinstance(self._find(path), _Folder)
        except OSError:
            return False

    def make_folder(self, path: Path) -> None:
        """FileExistsError if it is there already."""
        self.change()
        self._put(path, _Folder(next(self._inodes), self.now_ns()))

    def sync_folder(self, folder: Path) -> None:
        """The names in it survive."""
        self.change()
        found = self._folder(folder)
        found.kept = dict(found.now)

    def create(self, path: Path) -> _Draft:
        """FileExistsError if it is there already."""
        self.change()
        file = _File(next(self._inodes), self.now_ns())
        self._put(path, file)
        return _Draft(self, file)

    def touch(self, path: Path) -> None:
        """An empty file, unless there is one."""
        self.change()
        if path.name not in self._folder(path.parent).now:
            self._put(path, _File(next(self._inodes), self.now_ns()))

    def put(self, path: Path, content: bytes) -> None:
        """In place of what was there."""
        self.change()
        file = _File(next(self._inodes), self.now_ns())
        file.now[:] = content
        self._folder(path.parent).now[path.name] = file

    def open(self, path: Path) -> _Reading:
        """To be read."""
        self._reads()
        file = self._find(path)
        if isinstance(file, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return _Reading(bytes(file.now))

    def rename(self, source: Path, target: Path) -> None:
        """In one go."""
        self.change()
        node = self._find(source)
        if target.name in self._folder(target.parent).now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._folder(target.parent).now[target.name] = node
        del self._folder(source.parent).now[source.name]

    def remove(self, path: Path) -> None:
        """Whether it is there or not."""
        self.change()
        self._folder(path.parent).now.pop(path.name, None)

    def remove_tree(self, path: Path) -> None:
        """Name by name: each is an order."""
        try:
            node = self._find(path)
        except OSError:
            return
        if isinstance(node, _Folder):
            for name in sorted(node.now):
                self.remove_tree(path / name)
        self.remove(path)

    def hold(self, path: Path, *, folder: bool = False) -> _Hold:
        """A lock to be taken."""
        if not folder:
            self.touch(path)
        self._reads()
        return _Hold(self._held, self._find(path))

    # ------------------------------------------------------------------------------------------- inside

    def change(self) -> None:
        """One more order, unless the power goes before it."""
        self._reads()
        self.orders += 1

    def now_ns(self) -> int:
        """By the clock that dates files."""
        return int(self._wall.unix() * 1e9)

    def _reads(self) -> None:
        if self.cut_at is not None and self.orders >= self.cut_at:
            raise PowerCut

    def _next(self, root: _Folder) -> TornDisk:
        found = TornDisk(wall=self._wall)
        found._root, found._inodes = root, self._inodes
        return found

    def _find(self, path: Path) -> _Node:
        node: _Node = self._root
        for name in path.parts[1:] if path.is_absolute() else path.parts:
            if isinstance(node, _File):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if name not in node.now:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.now[name]
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._find(path)
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def _put(self, path: Path, node: _Node) -> None:
        folder = self._folder(path.parent)
        if path.name in folder.now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        folder.now[path.name], folder.changed_ns = node, self.now_ns()


class _Draft(Draft):
    def __init__(self, disk: TornDisk, file: _File) -> None:
        self._disk, self._file = disk, file

    def write(self, content: memoryview) -> int:
        try:
            self._disk.change()
        except PowerCut:
            if self._disk.tears is not None:
                self._file.now += content[: self._disk.tears.randrange(len(content) + 1)]
                self._disk.tears = None  # a cleanup does not write on
            raise
        self._file.now += content
        self._file.changed_ns = self._disk.now_ns()
        return len(content)

    def sync(self) -> None:
        self._disk.change()
        self._file.kept = bytes(self._file.now)

    def close(self) -> None:
        pass


class _Reading:
    def __init__(self, content: bytes) -> None:
        self._content, self._position, self.size = content, 0, len(content)

    def readinto(self, memory: memoryview) -> int:
        piece = self._content[self._position : self._position + len(memory)]
        memory[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Hold(Hold):
    """Nothing else runs while an order is carried out, so a lock that is taken is not waited for."""

    def __init__(self, held: set[int], node: _Node) -> None:
        self._held, self._node, self._ours = held, node, False

    def take(self, wait_s: float = 0.0) -> bool:
        del wait_s
        if self._node.inode in self._held and not self._ours:
            return False
        self._held.add(self._node.inode)
        self._ours = True
        return True

    def give_back(self) -> None:
        if self._ours:
            self._held.discard(self._node.inode)
            self._ours = False

    def close(self) -> None:
        self.give_back()
