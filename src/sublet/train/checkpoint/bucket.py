"""Checkpoints in an object store, which has no rename and no lock: one object names the committed ones.

<uri>/
  HEAD                               which generation may commit, and what is committed
  step-400.gen-7.<token>/
    data-0000.bin ... tree.json      written first, under a unique name
    MANIFEST.json                    then this, if there is none yet
                                     and then HEAD is moved: the commit point

A folder that HEAD does not name is no checkpoint: it is being written, or its writer died or was too late. It is
removed when it is old. A checkpoint that is to be removed leaves HEAD first.

HEAD is moved by compare-and-swap, and holds the announced generation too. So a late writer of an old generation finds
another HEAD than the one it saw, and knows. `turn` counts the moves: no two contents are alike, so a version made of
the content (as S3 does) is of one move.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sublet.errors import CheckpointFailed, DamagedCheckpoint, StaleWriter
from sublet.machine.objects import Found, Objects, Overtaken, StoreFailed, Version
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.commit import below_whole
from sublet.train.checkpoint.disk import Folder, Reading
from sublet.train.checkpoint.manifest import MANIFEST, WHAT_PARSING_RAISES, Manifest, read_manifest

HEAD = "HEAD"
SCHEMA = 1
BEGINS = b'{"sha256":'
MOST_TRIES = 50  # of one move; each was lost to a move of another
PROVED = 2  # moves of a HEAD that are tried once more: one where there was none, one over another
STALE_S = 86_400.0  # a write that takes a day is dead
OVERTAKEN_S = 3_600.0  # one of a generation that is over, sooner
NAME_BYTES = 8  # random, in the name of a folder: it is unique
FOLDER = re.compile(r"step-(?:0|[1-9]\d*)\.gen-(\d+)\.[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """One checkpoint that is committed."""

    step: int
    generation: int  # of its writer when it was written
    folder: str
    sha256: str  # of its manifest
    saved_s: float  # since 1970, by the clock of its writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Committed checkpoints, the highest step first, and the generation that may commit."""

    generation: int = 0
    kept: tuple[CommittedStep, ...] = ()
    aside: tuple[str, ...] = ()  # folders of damaged ones, for people to look at
    turn: int = 0

    def entry(self, step: int) -> CommittedStep | None:
        """The entry of a step."""
        return next((entry for entry in self.kept if entry.step == step), None)

    def to_json(self) -> bytes:
        """With a digest of itself."""
        first = self.kept[0] if self.kept else None
        shown = {"step": first and first.step, "manifest": first and f"{first.folder}/{MANIFEST}"}
        body = {"schema": SCHEMA, **shown, **asdict(self)}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return BEGINS + f'"{hashlib.sha256(text.encode()).hexdigest()}",\n"head":{text}}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes) -> Head:
        """Counterpart of `to_json`; ValueError or the like if one bit differs."""
        facts: dict[str, Any] = json.loads(text)["head"]
        if facts["schema"] != SCHEMA:
            why = f"{HEAD} has schema {facts['schema']!r}, this version reads {SCHEMA}"
            raise CheckpointFailed(HEAD, why, hint="install the version of Sublet that wrote it")
        head = cls(
            generation=facts["generation"],
            kept=tuple(CommittedStep(**entry) for entry in facts["kept"]),
            aside=tuple(facts["aside"]),
            turn=facts["turn"],
        )
        if head.to_json() != text:
            raise ValueError("it does not match its own digest")
        return head


class Register:
    """HEAD of one bucket, as last seen; for several threads: a head and its version are always of one read."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._seen: tuple[Head, Version | None] | None = None  # without a version: there was none

    def seen(self) -> Head | None:
        """The last one that was read or written, if any."""
        return None if (seen := self._seen) is None else seen[0]

    def read(self) -> Head:
        """The present one. If it is damaged or gone, it is rebuilt from the manifests."""
        return self._look()[0]

    def move(self, change: Callable[[Head], Head | None]) -> Head:
        """Replace it by `change` of it, again until no other move came between; None = it is as it should be.

        A move whose answer was lost may have happened: `change` is then called again, and must see that.
        """
        head, version = self._look() if self._seen is None else self._seen
        for _ in range(MOST_TRIES):
            wanted = change(head)
            if wanted is None:
                return head
            wanted = replace(wanted, turn=head.turn + 1)
            try:
                moved = self._objects.put(HEAD, wanted.to_json(), new=version is None, over=version)
            except Overtaken:
                head, version = self._look()
            except BaseException:
                self._seen = None  # it may have been done
                raise
            else:
                self._seen = (wanted, moved)
                if wanted.turn <= PROVED:
                    self._prove(wanted, version)
                return wanted
        why = f"{HEAD} was moved by others {MOST_TRIES} times while we tried"
        raise CheckpointFailed(self._objects.uri, why, hint="see that no two jobs have the same checkpoint.uri")

    def _prove(self, moved: Head, before: Version | None) -> None:
        """Repeat the move, which must be refused: a store that accepts it would let writers overwrite each other."""
        try:
            self._objects.put(HEAD, moved.to_json(), new=before is None, over=before)
        except (Overtaken, StoreFailed):  # as it should be; or unknown, and HEAD is moved all the same
            return
        self._seen = None
        self._objects.delete([HEAD])  # it is no register: the next writer is to find out, too
        condition = "If-None-Match" if before is None else "If-Match"
        why = f"the store does not honour conditions ({condition}): two writers would undo what the other committed"
        raise CheckpointFailed(self._objects.uri, why, hint="name a bucket of a store that does, as S3, GCS and Azure")

    def _look(self) -> tuple[Head, Version | None]:
        version: Version | None = None
        text = b""
        try:
            found = self._objects.get(HEAD)
            text, version = found.data, found.version
            head = Head.from_json(text)
        except FileNotFoundError:
            head = self._made_up()
        except WHAT_PARSING_RAISES as error:
            if not text.startswith(BEGINS):
                hint = "give checkpoint.uri a prefix of its own; it may be another program's object"
                raise CheckpointFailed(self._objects.uri, f"{HEAD} there is not ours", hint=hint) from error
            head = self._made_up()
        self._seen = (head, version)
        return head, version

    def _made_up(self) -> Head:
        """The last resort: of each generation the steps below those of later generations, since it may be stale."""
        found = list(self._manifests())
        taken: dict[int, CommittedStep] = {}
        for generation in sorted({entry.generation for entry in found}, reverse=True):
            below = min(taken, default=None)
            for entry in found:
                if entry.generation == generation and (below is None or entry.step < below):
                    taken[entry.step] = entry
        kept = tuple(taken[step] for step in sorted(taken, reverse=True))
        return Head(generation=max((entry.generation for entry in found), default=0), kept=kept)

    def _manifests(self) -> Iterable[CommittedStep]:
        for found in self._objects.list():
            folder, _, name = found.key.rpartition("/")
            if name != MANIFEST:
                continue
            try:
                text = self._objects.get(found.key).data
                manifest = Manifest.from_json(text)
            except (FileNotFoundError, *WHAT_PARSING_RAISES):
                continue  # no checkpoint
            yield CommittedStep(
                step=manifest.step,
                generation=manifest.generation,
                folder=folder,
                sha256=hashlib.sha256(text).hexdigest(),
                saved_s=found.changed_s,
            )


@dataclass(slots=True)
class ObjectFolder:
    """The objects of one checkpoint: those under a prefix."""

    objects: Objects
    name: str
    written: dict[str, int] = field(default_factory=dict)  # sizes of what we put there
    digests: dict[str, str] = field(default_factory=dict)
    asked: bool = False  # HEAD may have been moved to it, if the answer was lost

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
        except Overtaken:  # the name is ours: it was put, and the answer was lost
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
    """All that is under one URI, as each of its writers and readers has it."""

    def __init__(self, objects: Objects, *, wall: Wall = WALL, rng: Rng = RNG) -> None:
        self.objects, self.place, self._wall, self._rng = objects, objects.uri, wall, rng
        self._register = Register(objects)
        self._generation = 0  # that we announced last
        self._damaged: set[str] = set()  # folders that a reader found damaged
        self._manifests: dict[str, Manifest] = {}

    def place_of(self, step: int) -> str:
        """The folder of a step, by the HEAD that was read last."""
        return self.folder(step).place

    def folder(self, step: int) -> ObjectFolder:
        """The objects of a step, by the HEAD that was read last."""
        entry = (self._register.seen() or self._register.read()).entry(step)
        return ObjectFolder(self.objects, f"step-{step}" if entry is None else entry.folder)

    def steps(self) -> list[int]:
        """Committed steps, highest first; not verified yet."""
        return [entry.step for entry in self._register.read().kept]

    def is_all_there(self, step: int) -> bool:
        """All objects of a step that is committed, in their sizes; what is in them is not read."""
        entry = (self._register.seen() or self._register.read()).entry(step)
        return entry is not None and self._is_good(
            entry, {each.key: each.size for each in self.objects.list(entry.folder)}
        )

    def commit_age_s(self) -> float:
        """Seconds since the highest step was committed, by the clocks of its writer and ours; infinite without any.

        By the HEAD that was read last, since training stands still for this.
        """
        head = self._register.seen()
        return max(0.0, self._wall.unix() - head.kept[0].saved_s) if head and head.kept else math.inf

    def announced(self) -> int:
        """The highest generation that was announced; 0 if none was."""
        return self._register.read().generation

    def announce(self, generation: int) -> None:
        """From now on no writer of a lower generation commits."""
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
        """The open folder of another writer, which needs no making."""
        return ObjectFolder(self.objects, f"step-{step}.gen-{generation}.{token}")

    def commit(self, staging: Folder, step: int, generation: int) -> None:
        """Move HEAD to it, unless a higher generation was announced. One of the same step that was there makes room."""
        assert isinstance(staging, ObjectFolder)  # noqa: S101 - it is of our open_staging
        entry = CommittedStep(
            step=step,
            generation=generation,
            folder=staging.name,
            sha256=staging.digests[MANIFEST],
            saved_s=self._wall.unix(),
        )
        there = {found.key: found.size for found in self.objects.list(staging.name)}
        if there != staging.written:
            why = f"not all of it is there: {len(there)} objects of {len(staging.written)}"
            raise CheckpointFailed(staging.place, why, hint="see that nothing else removes objects there")

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
        """Remove steps below the `keep`-th whole one, never the newest whole one nor the one just committed.

        A step counts as whole if all its objects have their sizes, and no reader found one damaged. Damaged ones above
        that line stay, for people to look at.
        """
        sizes = {found.key: found.size for found in self.objects.list()}
        gone: tuple[CommittedStep, ...] = ()

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
        """Remove leftovers of dead and late writers, once they are old by the clock of the store."""
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
        """Take steps out of the way of new ones; they stay, for people to look at. Returns their place."""

        def without(head: Head) -> Head | None:
            aside = [entry for entry in head.kept if entry.step in steps]
            if not aside:
                return None  # another reader was quicker
            kept = tuple(entry for entry in head.kept if entry not in aside)
            return replace(head, kept=kept, aside=(*head.aside, *(entry.folder for entry in aside)))

        self._register.move(without)
        return self.place

    def pass_over(self, step: int) -> None:
        """A reader has found it damaged: it no longer counts as kept."""
        self._damaged.add(self.folder(step).place)

    def _is_good(self, entry: CommittedStep, sizes: Mapping[str, int]) -> bool:
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
