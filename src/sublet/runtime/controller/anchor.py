"""The checkpoints of one job that the controller keeps for it: parts by content, and a register that names what counts.

    checkpoints/JOB/parts/DIGEST    as they came from nodes, each whole and checked
    checkpoints/JOB/HEAD            the generation that may commit, and the commits: step, generation, root, size
    checkpoints/JOB/HEAD.copy       the same, for a disk that loses something

`HEAD` is replaced in one go and for good, so a commit is seen whole or not at all, and so is its end. What it does not
name is not there for a reader. Nobody of a generation below the one that was announced commits: a host that was away
and comes back replaces nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.errors import BadInput
from sublet.machine.files import Files
from sublet.runtime.file_sync.content import Content, Keep
from sublet.runtime.file_sync.manifest import Entry, entries_from, names_in

__all__ = ["Anchor", "Commit", "Head"]


NAMES = ("HEAD", "HEAD.copy")  # the second is written first, and read where the first is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One checkpoint. `step` counts what a script without the SDK has saved, which has no step of its own."""

    step: int
    generation: int  # of its writer
    root: str
    size_bytes: int
    done: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What counts: commits, the newest last; who may commit; and who might before that was announced."""

    generation: int = 0
    before: int = 0
    commits: tuple[Commit, ...] = ()

    @property
    def newest(self) -> Commit | None:
        """The one to go on from."""
        return self.commits[-1] if self.commits else None


class Anchor:
    """In `folder`. Errors are OSError; BadInput for a register that cannot be read: beside parts it is no empty one.

    `insist` raises where the directory has become another controller's: it is asked before every change.
    """

    def __init__(self, folder: Path, files: Files, insist: Callable[[], None] = lambda: None) -> None:
        self.folder, self._files, self._insist = folder, files, insist
        self.content = Content(folder / "parts", files, Keep.RAW)
        self._head: Head | None = None  # None = nobody has looked yet

    @property
    def head(self) -> Head:
        """As it is written."""
        if self._head is None:
            self._head = self._read()
        return self._head

    def announce(self, generation: int) -> Head:
        """From now on nobody of a lower generation commits. Said again, it changes nothing."""
        if generation > self.head.generation:
            self._write(replace(self.head, generation=generation, before=self.head.generation))
        return self.head

    def commit(self, commit: Commit, *, keep: int) -> list[int]:
        """All its parts are here: from now on it counts. The oldest beyond `keep` go, with what only they need.

        Earlier ones that nobody can read any more, since what names their files has rotted, go as well: their steps.
        """
        head, rotten = self.head, list[int]()
        self.content.settle()
        wanted = {commit: self._wanted(commit)}
        for each in head.commits:
            if each.step != commit.step:
                try:
                    wanted[each] = self._wanted(each)
                except BadInput:
                    rotten.append(each.step)
        commits = sorted(wanted, key=lambda each: each.step)[-keep:]
        self._write(replace(head, commits=tuple(commits)))
        self.content.keep_only(set[str]().union(*(wanted[each] for each in commits)))
        return rotten

    def adopt(self, head: Head) -> None:
        """A copy of the register has come back, and all its parts before it; BadInput if they are not all here."""
        wanted = set[str]().union(*(self._wanted(commit) for commit in head.commits))
        if lacking := self.content.lacks(wanted):
            raise BadInput(self.folder, f"{len(lacking)} parts of a checkpoint are not there")
        self.content.settle()
        self._write(head)
        self.content.keep_only(wanted)

    def drop(self, steps: Collection[int]) -> None:
        """They are of no use: who loaded them says so."""
        if any(commit.step in steps for commit in self.head.commits):
            self._write(replace(self.head, commits=tuple(c for c in self.head.commits if c.step not in steps)))

    def is_whole(self, commit: Commit) -> bool:
        """Nobody has missed a part of it yet: one is read, and removed if it is damaged, when a node asks for it."""
        try:
            return not self.content.lacks(digest for entry in self.entries(commit) for digest in entry.parts)
        except BadInput:
            return False

    def entries(self, commit: Commit) -> list[Entry]:
        """Its files; BadInput if some of what names them is gone."""
        return entries_from(b"".join(self._manifest(commit)[1]))

    def names(self, commit: Commit) -> list[str]:
        """The parts that name its files; BadInput as above."""
        return [commit.root, *self._manifest(commit)[0]]

    def read(self, entry: Entry) -> Iterator[bytes]:
        """A file, part by part; BadInput where one is gone."""
        return (self._part(digest) for digest in entry.parts)

    def _wanted(self, commit: Commit) -> set[str]:
        """All parts of it; BadInput if some of what names them is gone."""
        names, text = self._manifest(commit)
        return {commit.root, *names, *(digest for entry in entries_from(b"".join(text)) for digest in entry.parts)}

    def _manifest(self, commit: Commit) -> tuple[list[str], list[bytes]]:
        names = names_in(self._part(commit.root))
        return names, [self._part(name) for name in names]

    def _part(self, digest: str) -> bytes:
        if (data := self.content.data(digest)) is None:
            raise BadInput(self.folder, f"part {digest[:12]} of a checkpoint is gone or damaged")
        return data

    def _read(self) -> Head:
        damaged: BadInput | None = None
        for name in NAMES:
            try:
                facts = json.loads(self._files.read(self.folder / name))
                commits = tuple(Commit(**commit) for commit in facts.pop("commits"))
                return Head(**facts, commits=commits)
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                damaged = BadInput(self.folder / name, f"cannot be read ({error})")
        if damaged is not None and not self.content.is_empty:
            raise damaged
        return Head()  # of no parts no register could name a checkpoint: the first that was written was cut short

    def _write(self, head: Head) -> None:
        self._insist()
        self._files.make_folder(self.folder)
        for name in reversed(NAMES):
            self._files.write(self.folder / name, json.dumps(asdict(head)).encode())
        self._head = head
