"""The backup of a controller host in a bucket: its log, and the records by which nodes and jobs are known.

Two objects: `state.tar.gz` when the log has grown, and `content.tar.gz`, the parts of jobs' files, when there are
others. Checkpoints that are on the controller host's disk alone have objects of their own (kept_checkpoints.py).

    checkpoints/JOB/HEAD        its register with that one commit, and which parts are in which pack
    checkpoints/JOB/pack-...    parts, each behind its name and length

A part is written once, whichever checkpoints have it. A head is replaced when all its parts are there, so that a reader
finds the newest whole one; packs of which it needs nothing go after that. Checkpoints in buckets of the jobs' own are
not here: they find them there.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import struct
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, MissingData
from sublet.machine.files import FILES
from sublet.machine.objects import FileObjects, ObjectReading
from sublet.machine.remote import open_uri
from sublet.runtime.controller.files import Anchor, Commit, Head
from sublet.runtime.controller_host.parcel import take_place
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store

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


STATE, CONTENT = "state.tar.gz", "content.tar.gz"
KEPT = ("settings.json", "aws.toml", "identity", "profiles", "aws")  # beside the log


def place_of(uri: str, server: str) -> str:
    """The place of the backup of one controller: several may name the same bucket, and none has another's state."""
    return f"{uri.rstrip('/')}/{server}"


class Backup:
    """Backup of one state directory, to one URI; unchanged files are not written again."""

    def __init__(self, state_dir: Path, uri: str) -> None:
        self._state_dir, self._uri = state_dir, uri
        self._seen: object = None
        self._names: list[str] = []

    @cached_property
    def _objects(self) -> FileObjects:
        return open_uri(self._uri)

    def write(self) -> bool:
        """Whether there was anything new."""
        log = self._state_dir / "log.sqlite"
        if not log.is_file():
            return False
        seen = [_look(path) for path in sorted(self._state_dir.glob("log.sqlite*"))]
        names = sorted(path.name for path in (self._state_dir / "content").glob("*"))
        if names != self._names:
            self._objects.put(CONTENT, _packed(self._state_dir, ["content"]))
            self._names = names
        if seen == self._seen:
            return False
        copy = self._state_dir / ".backup"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o700)
        source, target = sqlite3.connect(log), sqlite3.connect(copy / "log.sqlite")
        try:
            source.backup(target)  # whole, also during writes
        finally:
            source.close()
            target.close()
        self._objects.put(STATE, _packed(self._state_dir, KEPT, copy / "log.sqlite"))
        shutil.rmtree(copy)
        self._seen = seen
        return True


def _packed(state_dir: Path, names: Sequence[str], *more: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in [*(state_dir / name for name in names), *more]:
            for each in [path, *sorted(path.rglob("*"))]:
                with contextlib.suppress(FileNotFoundError):  # a controller works there: drafts of its files go
                    archive.add(each, each.relative_to(path.parent), recursive=False)
    return packed.getvalue()


def _look(path: Path) -> tuple[int, int] | None:
    """When it was written and how long it is; None for one that SQLite has removed since it was listed."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    return None


def restore_backup(uri: str, state_dir: Path, spare: Sequence[str]) -> list[str]:
    """Replace the files here by the last ones written there; the messages on each checkpoint."""
    return restore_from(open_uri(uri), state_dir, spare)


def restore_from(objects: FileObjects, state_dir: Path, spare: Sequence[str]) -> list[str]:
    """The same, from these objects."""
    found = {each.key for each in objects.list()}
    if STATE not in found:
        raise MissingData(
            f"{objects.uri}/{STATE}", hint="nothing was ever written there: begin anew with 'sublet down'"
        )
    said = bring_checkpoints(objects, state_dir)  # before the log that names their jobs
    for key in (CONTENT, STATE):
        if key in found:
            _put(objects.get(key).data, state_dir, spare)
    return [*said, *_without_secrets(state_dir)]


def _without_secrets(state_dir: Path) -> list[str]:
    """Jobs that had secrets: no backup has them."""
    if not (state_dir / "log.sqlite").is_file():
        return []
    store, files = Store(state_dir / "log.sqlite"), SecretFiles(state_dir)
    try:
        lacking = [
            (job_id, json.loads(text).get("secrets", {}))
            for job_id, text, facts in store.jobs()
            if not facts.get("outcome") and not files.has(job_id)
        ]
    finally:
        store.close()
    return [
        f"{job_id}: waits for its secrets ({', '.join(names)}): next, sublet resume {job_id} --secret NAME for each"
        for job_id, names in lacking
        if names
    ]


def _put(data: bytes, state_dir: Path, spare: Sequence[str]) -> None:
    fresh = state_dir / ".backup"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(fresh, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput("the backup", f"did not arrive whole ({error})", hint="try again") from None
    take_place(fresh, state_dir, spare)
