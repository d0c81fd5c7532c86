"""HEAD, the one object that says what is committed in a bucket: moved by whoever saw the last one, and nobody else.

    {generation, step, manifest, turn, kept: [{step, generation, folder, sha256, saved_s}, ...], aside: [folder, ...]}

A generation that is announced stands here, too. So whoever commits for a generation that is over, wherever it was held
up, finds another HEAD than the one that it saw, reads it, and knows. `turn` counts the moves: no two contents are
alike, so a version that is made of the content (as S3 makes it) is of one move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sublet.errors import CheckpointFailed
from sublet.machine.objects import Objects, Overtaken, StoreFailed, Version
from sublet.train.checkpoint.manifest import MANIFEST, WHAT_PARSING_RAISES, Manifest

__all__ = ["HEAD", "Entry", "Head", "Register"]

HEAD = "HEAD"
SCHEMA = 1
BEGINS = b'{"sha256":'
MOST_TRIES = 50  # of one move; each was lost to a move of another
PROVED = 2  # moves of a HEAD that are tried once more: one where there was none, one over another


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One checkpoint that is committed."""

    step: int
    generation: int  # of its writer when it was written
    folder: str
    sha256: str  # of its manifest
    saved_s: float  # since 1970, by the clock of its writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is committed, the highest step first, and which generation may commit."""

    generation: int = 0
    kept: tuple[Entry, ...] = ()
    aside: tuple[str, ...] = ()  # folders of damaged ones, for people to look at
    turn: int = 0

    def entry(self, step: int) -> Entry | None:
        """That of a step."""
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
        """As it was written; ValueError or the like if one bit differs."""
        facts: dict[str, Any] = json.loads(text)["head"]
        if facts["schema"] != SCHEMA:
            why = f"{HEAD} has schema {facts['schema']!r}, this version reads {SCHEMA}"
            raise CheckpointFailed(HEAD, why, hint="install the version of Sublet that wrote it")
        head = cls(
            generation=facts["generation"],
            kept=tuple(Entry(**entry) for entry in facts["kept"]),
            aside=tuple(facts["aside"]),
            turn=facts["turn"],
        )
        if head.to_json() != text:
            raise ValueError("it does not match its own digest")
        return head


class Register:
    """HEAD of one bucket, as we last saw it. Two threads may ask: a head and its version are never of two reads."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._seen: tuple[Head, Version | None] | None = None  # without a version: there was none

    def seen(self) -> Head | None:
        """As we last saw it, if we know; nobody is asked."""
        return None if (seen := self._seen) is None else seen[0]

    def read(self) -> Head:
        """As it is now. One that is damaged or gone is made up from the manifests that are there."""
        return self._look()[0]

    def move(self, change: Callable[[Head], Head | None]) -> Head:
        """To what `change` makes of it, again and again until nobody moved it meanwhile; None = it is as it should be.

        A move whose answer was lost may have happened: `change` is then asked again, and must see that.
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
                self._seen = None  # who knows whether it was done
                raise
            else:
                self._seen = (wanted, moved)
                if wanted.turn <= PROVED:
                    self._prove(wanted, version)
                return wanted
        why = f"{HEAD} was moved by others {MOST_TRIES} times while we tried"
        raise CheckpointFailed(self._objects.uri, why, hint="see that no two jobs have the same checkpoint.uri")

    def _prove(self, moved: Head, before: Version | None) -> None:
        """What was there is not there any more: a store that takes the same move again lets writers pass each other."""
        try:
            self._objects.put(HEAD, moved.to_json(), new=before is None, over=before)
        except (Overtaken, StoreFailed):  # as it should be; or nobody knows, and HEAD is moved all the same
            return
        self._seen = None
        self._objects.delete([HEAD])  # it is no register; and whoever comes next is told, too
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
                hint = "give checkpoint.uri a prefix of its own; it may be an object of somebody else's"
                raise CheckpointFailed(self._objects.uri, f"{HEAD} there is not ours", hint=hint) from error
            head = self._made_up()
        self._seen = (head, version)
        return head, version

    def _made_up(self) -> Head:
        """The last resort: of each generation what is below the steps of those after it, since it may be stale."""
        found = list(self._manifests())
        taken: dict[int, Entry] = {}
        for generation in sorted({entry.generation for entry in found}, reverse=True):
            below = min(taken, default=None)
            for entry in found:
                if entry.generation == generation and (below is None or entry.step < below):
                    taken[entry.step] = entry
        kept = tuple(taken[step] for step in sorted(taken, reverse=True))
        return Head(generation=max((entry.generation for entry in found), default=0), kept=kept)

    def _manifests(self) -> Iterable[Entry]:
        for found in self._objects.list():
            folder, _, name = found.key.rpartition("/")
            if name != MANIFEST:
                continue
            try:
                text = self._objects.get(found.key).data
                manifest = Manifest.from_json(text)
            except (FileNotFoundError, *WHAT_PARSING_RAISES):
                continue  # no checkpoint
            yield Entry(
                step=manifest.step,
                generation=manifest.generation,
                folder=folder,
                sha256=hashlib.sha256(text).hexdigest(),
                saved_s=found.changed_s,
            )
