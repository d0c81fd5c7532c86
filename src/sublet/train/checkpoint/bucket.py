"""Checkpoints in an object store: there is no rename and no lock, so one register says what is committed.

<uri>/
  HEAD                               which generation may commit, and what is committed (`register`)
  step-400.gen-7.<token>/
    data-0000.bin ... tree.json      written first, under a name that nobody else has
    MANIFEST.json                    then this, if there is none yet
                                     and then HEAD is moved: the commit point

What HEAD does not name is no checkpoint: it is being written, or was by somebody who died or was too late. It is
removed when it is old. What is to be thrown away leaves HEAD first.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sublet.errors import CheckpointFailed, DamagedCheckpoint, StaleWriter
from sublet.machine.objects import Found, Objects, Overtaken, StoreFailed
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.commit import below_whole
from sublet.train.checkpoint.disk import Reading
from sublet.train.checkpoint.folder import Folder
from sublet.train.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from sublet.train.checkpoint.register import HEAD, Entry, Head, Register

__all__ = ["Bucket", "ObjectFolder"]

STALE_S = 86_400.0  # a write that takes a day is dead
OVERTAKEN_S = 3_600.0  # one of a generation that is over, sooner
NAME_BYTES = 8  # of rng in the name of a folder: nobody else ever has it
FOLDER = re.compile(r"step-(?:0|[1-9]\d*)\.gen-(\d+)\.[0-9a-f]+")


@dataclass(slots=True)
class ObjectFolder:
    """The objects of one checkpoint: those under a prefix."""

    objects: Objects
    name: str
    written: dict[str, int] = field(default_factory=dict)  # sizes of what we put there
    digests: dict[str, str] = field(default_factory=dict)
    asked: bool = False  # HEAD was to be moved to it: nobody knows whether it was, unless it was told

    @property
    def place(self) -> str:
        """Its URI."""
        return f"{self.objects.uri}/{self.name}"

    def open(self, name: str) -> Reading:
        """From the store."""
        return self.objects.open(f"{self.name}/{name}")

    def write(self, name: str, content: memoryview) -> str:
        """Digested by us: what a store says of it is not enough. The manifest goes where there is none, only."""
        digest, key = hashlib.sha256(content).hexdigest(), f"{self.name}/{name}"
        try:
            self.objects.put(key, content, new=name == MANIFEST)
        except Overtaken:  # nobody else has this name: it was we, and the answer was lost
            if self.objects.get(key).data != content:
                raise
        self.written[key], self.digests[name] = len(content), digest
        return digest

    def expect(self, name: str, size: int) -> None:
        """The commit looks for it."""
        self.written[f"{self.name}/{name}"] = size

    def seal(self) -> None:
        """There is nothing to be done: an object that was put is there."""


class Bucket:
    """What is under one URI, as each of its writers and readers has it."""

    def __init__(self, objects: Objects, *, wall: Wall = WALL, rng: Rng = RNG) -> None:
        self.objects, self._wall, self._rng = objects, wall, rng
        self._register = Register(objects)
        self._generation = 0  # that we announced last
        self._damaged: set[str] = set()  # folders that a reader found damaged
        self._manifests: dict[str, Manifest] = {}

    @property
    def place(self) -> str:
        """Its URI."""
        return self.objects.uri

    def place_of(self, step: int) -> str:
        """Where the checkpoint of a step is, as HEAD was when we last asked."""
        return self.folder(step).place

    def folder(self, step: int) -> ObjectFolder:
        """The objects of a step, as HEAD was when we last asked."""
        entry = (self._register.seen() or self._register.read()).entry(step)
        return ObjectFolder(self.objects, f"step-{step}" if entry is None else entry.folder)

    def steps(self) -> list[int]:
        """Steps that are committed, highest first; whether they are whole is not known yet."""
        return [entry.step for entry in self._register.read().kept]

    def is_all_there(self, step: int) -> bool:
        """All objects of a step that is committed, in their sizes; what is in them is not read."""
        entry = (self._register.seen() or self._register.read()).entry(step)
        return entry is not None and self._is_good(
            entry, {each.key: each.size for each in self.objects.list(entry.folder)}
        )

    def commit_age_s(self) -> float:
        """Seconds since the highest step was committed, by the clocks of its writer and ours; infinite without any.

        Training stands still for this, so nobody is asked: it is as HEAD was when we last did.
        """
        head = self._register.seen()
        return max(0.0, self._wall.unix() - head.kept[0].saved_s) if head and head.kept else math.inf

    def announced(self) -> int:
        """The highest generation that was announced; 0, which fences off nobody, if none was."""
        return self._register.read().generation

    def announce(self, generation: int) -> None:
        """From now on nobody of a lower generation commits."""
        self._generation = max(self._generation, generation)

        def raised(head: Head) -> Head | None:
            return None if head.generation >= generation else replace(head, generation=generation)

        self._register.move(raised)

    def fence(self, generation: int) -> None:
        """The same: there is nothing between a look at HEAD and its move."""
        self.announce(generation)

    @contextlib.contextmanager
    def open_staging(self, step: int, token: str = "") -> Iterator[Folder]:
        """A folder of our own; what is in it is removed at the end, unless it was committed or may have been."""
        staging = self.share_staging(step, token or self._rng.token(NAME_BYTES), self._generation)
        try:
            yield staging
        finally:
            if not staging.asked:
                with contextlib.suppress(StoreFailed):  # a sweep finds it
                    self.objects.delete(staging.written)

    def share_staging(self, step: int, token: str, generation: int) -> ObjectFolder:
        """Nobody has to make it."""
        return ObjectFolder(self.objects, f"step-{step}.gen-{generation}.{token}")

    def commit(self, staging: Folder, step: int, generation: int) -> None:
        """Move HEAD to it, unless a higher generation was announced. One of the same step that was there makes room."""
        assert isinstance(staging, ObjectFolder)  # noqa: S101 - it is of our open_staging
        entry = Entry(
            step=step,
            generation=generation,
            folder=staging.name,
            sha256=staging.digests[MANIFEST],
            saved_s=self._wall.unix(),
        )
        there = {found.key: found.size for found in self.objects.list(staging.name)}
        if there != staging.written:
            why = f"not all of it is there: {len(there)} objects of {len(staging.written)}"
            raise CheckpointFailed(staging.place, why, hint="see that nobody else removes objects there")

        def moved(head: Head) -> Head | None:
            if entry in head.kept:
                return None  # it was done, and the answer was lost
            staging.asked = False
            if head.generation > generation:
                raise StaleWriter(self.place, step, generation=generation, announced=head.generation)
            others = [each for each in head.kept if each.step != step]
            kept = sorted([entry, *others], key=lambda each: each.step, reverse=True)
            staging.asked = True
            return replace(head, generation=generation, kept=tuple(kept))

        self._register.move(moved)

    def collect(self, *, keep: int, just_committed: int) -> list[int]:
        """Let go of steps below the `keep`-th whole one, never the newest whole one nor the one just committed.

        Whole is here: all objects are there in their sizes, and no reader found one damaged. All is read when it is
        loaded, not to throw others away. Damaged ones above that line stay, for people to look at.
        """
        sizes = {found.key: found.size for found in self.objects.list()}
        gone: tuple[Entry, ...] = ()

        def shortened(head: Head) -> Head | None:
            nonlocal gone
            below = below_whole(head.kept, lambda entry: self._is_good(entry, sizes), keep)
            gone = tuple(entry for entry in below if entry.step != just_committed)
            if not gone or head.generation > self._generation:  # then it is for others to say what is too old
                gone = ()
                return None
            return replace(head, kept=tuple(entry for entry in head.kept if entry not in gone))

        self._register.move(shortened)
        for entry in gone:
            self._remove(entry.folder, [key for key in sizes if key.startswith(f"{entry.folder}/")])
        return [entry.step for entry in gone]

    def sweep(self, *, wait_s: float = 0.0) -> None:  # noqa: ARG002 - there is no lock to wait for
        """Remove what dead writers left, and those that were too late, once it is old by the clock of the store."""
        by_folder: dict[str, list[Found]] = defaultdict(list)
        found = self.objects.list()
        for each in found:
            by_folder[each.key.rpartition("/")[0]].append(each)
        head = self._register.read()  # after the list: whatever was committed until then is in it
        now_s = max((each.changed_s for each in found if each.key == HEAD), default=-math.inf)
        in_use = {*head.aside, *(entry.folder for entry in head.kept)}
        for folder, inside in by_folder.items():
            match = FOLDER.fullmatch(folder)
            if match is None or folder in in_use:
                continue
            age_s = now_s - max(each.changed_s for each in inside)
            if age_s > (OVERTAKEN_S if int(match[1]) < head.generation else STALE_S):
                self._remove(folder, [each.key for each in inside])

    def set_aside(self, steps: list[int]) -> str:
        """Take steps out of the way of those to come; they stay, for people to look at. Where they are."""

        def without(head: Head) -> Head | None:
            aside = [entry for entry in head.kept if entry.step in steps]
            if not aside:
                return None  # another reader was quicker
            kept = tuple(entry for entry in head.kept if entry not in aside)
            return replace(head, kept=kept, aside=(*head.aside, *(entry.folder for entry in aside)))

        self._register.move(without)
        return self.place

    def pass_over(self, step: int) -> None:
        """A reader has found it damaged: it does not count among those that are kept."""
        self._damaged.add(self.folder(step).place)

    def _is_good(self, entry: Entry, sizes: Mapping[str, int]) -> bool:
        folder = ObjectFolder(self.objects, entry.folder)
        if folder.place in self._damaged:
            return False
        if entry.folder not in self._manifests:
            try:
                self._manifests[entry.folder] = read_manifest(folder, entry.step)
            except DamagedCheckpoint:
                return False
        files = self._manifests[entry.folder].files
        return all(sizes.get(f"{entry.folder}/{file.name}") == file.size for file in files)

    def _remove(self, folder: str, keys: Iterable[str]) -> None:
        """The manifest first: half of a checkpoint is none."""
        self.objects.delete([f"{folder}/{MANIFEST}"])
        self.objects.delete(key for key in keys if key != f"{folder}/{MANIFEST}")
        self._manifests.pop(folder, None)
