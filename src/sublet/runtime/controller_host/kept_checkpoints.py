"""Backup in a bucket of the newest checkpoint of each job that lies on a controller host's disk alone.

    checkpoints/JOB/HEAD        its register with that one commit, and which parts are in which pack
    checkpoints/JOB/pack-...    parts, each behind its name and length

A part is written once, whichever checkpoints have it. A head is replaced when all its parts are there, so that a reader
finds the newest whole one; packs of which it needs nothing go after that. Checkpoints in buckets of the jobs' own are
not here: they find them there.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sublet.errors import BadInput
from sublet.machine.files import FILES
from sublet.machine.objects import FileObjects, ObjectReading
from sublet.runtime.controller.files import Anchor, Commit, Head

__all__ = ["CheckpointCopies", "bring_checkpoints"]

FOLDER = "checkpoints"
PACK_BYTES = 64 << 20  # and a part more: of one object, and of the disk while it is made
PART = struct.Struct(">32sI")  # its name, its length


class CheckpointCopies:
    """From a state directory to objects."""

    def __init__(self, state_dir: Path, objects: FileObjects) -> None:
        self._folder, self._objects = state_dir / FOLDER, objects
        self._draft = state_dir / ".backup-pack"
        self._jobs: dict[str, _Kept] = {}
        self._gone = False  # checkpoints that are gone here were removed over there

    def write_some(self) -> bool:
        """A pack at most; whether there was anything to write."""
        here = [path.name for path in sorted(self._folder.glob("*")) if (path / "HEAD").is_file()]
        if not self._gone:
            self._forget_others(here)
        return any(self._write(job_id) for job_id in here)

    def _write(self, job_id: str) -> bool:
        kept = self._jobs.setdefault(job_id, _Kept(self._objects, job_id))
        try:
            anchor = Anchor(self._folder / job_id, FILES)
            commit = kept.choose(anchor.head)
            if commit is None:
                return False
            wanted = _parts_of(anchor, commit)
            lacking = [digest for digest in wanted if digest not in kept.parts]
            if not lacking:
                kept.settle(anchor.head, commit, set(wanted))
                return True
            kept.add(self._draft, self._pack(anchor, lacking))
        except (OSError, BadInput):  # it was replaced by newer ones while we read it: the next look takes one of those
            kept.target = ""
            return False
        finally:
            self._draft.unlink(missing_ok=True)
        return True

    def _pack(self, anchor: Anchor, digests: list[str]) -> list[str]:
        """Some of them, in one file."""
        packed = []
        with self._draft.open("wb") as file:
            for digest in digests:
                data = anchor.content.data(digest)
                if data is None:
                    raise BadInput(anchor.folder, f"part {digest[:12]} is gone")
                file.write(PART.pack(bytes.fromhex(digest), len(data)))
                file.write(data)
                packed.append(digest)
                if file.tell() >= PACK_BYTES:
                    break
        return packed

    def _forget_others(self, here: list[str]) -> None:
        """Forget jobs that are no more."""
        found = [each.key for each in self._objects.list(FOLDER)]
        self._objects.delete([key for key in found if key.split("/")[1] not in here])
        self._gone = True


class _Kept:
    """The checkpoint of one job over there."""

    def __init__(self, objects: FileObjects, job_id: str) -> None:
        self._objects, self._place = objects, f"{FOLDER}/{job_id}"
        self._facts: dict[str, Any] = {"head": None, "packs": {}}
        with contextlib.suppress(FileNotFoundError):
            self._facts = json.loads(objects.get(f"{self._place}/HEAD").data)
        self.target = ""  # the root that is being written: to its end, if more come meanwhile

    @property
    def parts(self) -> set[str]:
        """All that are there."""
        return {digest for digests in self._facts["packs"].values() for digest in digests}

    def choose(self, head: Head) -> Commit | None:
        """The one to be written; None if the newest is there."""
        done = self._facts["head"] and self._facts["head"]["commits"][0]["root"]
        if head.newest is None or done == head.newest.root:
            return None
        commit = next((each for each in head.commits if each.root == self.target), head.newest)
        self.target = commit.root
        return commit

    def add(self, path: Path, digests: list[str]) -> None:
        """A pack with these."""
        name = f"pack-{digests[0][:16]}-{len(self._facts['packs'])}"
        self._objects.upload(f"{self._place}/{name}", path)
        self._facts["packs"][name] = digests
        self._write()

    def settle(self, head: Head, commit: Commit, wanted: set[str]) -> None:
        """All of it is there: it counts, and packs that it does not need go."""
        packs: dict[str, list[str]] = self._facts["packs"]
        useless = [name for name, digests in packs.items() if not wanted.intersection(digests)]
        self._facts["head"] = asdict(replace(head, commits=(commit,)))
        self._facts["packs"] = {name: digests for name, digests in packs.items() if name not in useless}
        self._write()
        self._objects.delete([f"{self._place}/{name}" for name in useless])
        self.target = ""

    def _write(self) -> None:
        self._objects.put(f"{self._place}/HEAD", json.dumps(self._facts).encode())


def bring_checkpoints(objects: FileObjects, state_dir: Path) -> list[str]:
    """All that are whole over there, in place of what is here; a sentence about each."""
    keys = [each.key for each in objects.list(FOLDER) if each.key.endswith("/HEAD")]
    return [_bring(objects, key.split("/")[1], state_dir / FOLDER) for key in keys]


def _bring(objects: FileObjects, job_id: str, folder: Path) -> str:
    facts = json.loads(objects.get(f"{FOLDER}/{job_id}/HEAD").data)
    if facts["head"] is None:
        return f"{job_id}: no checkpoint was copied whole, and it begins at the one that it has elsewhere, or at 0"
    anchor, place = Anchor(folder / job_id, FILES), f"{objects.uri}/{FOLDER}/{job_id}"
    hint = f"try again; if it stays so, remove {place}/ from the bucket: without it {job_id} begins at step 0"
    for name in facts["packs"]:
        with objects.open(f"{FOLDER}/{job_id}/{name}") as reading:
            for digest, data in _parts_in(reading):
                if not anchor.content.take(digest, data):
                    raise BadInput(f"{place}/{name}", f"part {digest[:12]} is damaged", hint=hint)
    commit = Commit(**facts["head"].pop("commits")[0])
    try:
        anchor.adopt(replace(Head(**facts["head"]), commits=(commit,)))
    except BadInput as error:
        raise BadInput(place, f"the checkpoint of step {commit.step} is not whole ({error})", hint=hint) from None
    return f"{job_id}: goes on from step {commit.step}"


def _parts_in(reading: ObjectReading) -> Iterator[tuple[str, bytes]]:
    while header := _exactly(reading, PART.size):
        name, size = PART.unpack(header)
        yield name.hex(), _exactly(reading, size)


def _exactly(reading: ObjectReading, size: int) -> bytes:
    memory = bytearray(size)
    at = 0
    while at < size and (count := reading.readinto(memoryview(memory)[at:])):
        at += count
    return bytes(memory[:at])


def _parts_of(anchor: Anchor, commit: Commit) -> list[str]:
    """Each once: the manifest first."""
    names = anchor.names(commit)
    return list(dict.fromkeys([*names, *(digest for entry in anchor.entries(commit) for digest in entry.parts)]))
