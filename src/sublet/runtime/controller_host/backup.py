"""The backup of a controller host in a bucket: its log, and the records by which nodes and jobs are known.

Two objects: `state.tar.gz` when the log has grown, and `content.tar.gz`, the parts of jobs' files, when there are
others. Checkpoints that are on the controller host's disk alone have objects of their own (kept_checkpoints.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from sublet.errors import BadInput, MissingData
from sublet.machine.objects import FileObjects
from sublet.machine.remote import open_uri
from sublet.runtime.controller_host.kept_checkpoints import bring_checkpoints
from sublet.runtime.controller_host.parcel import take_place
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store

__all__ = ["Backup", "place_of", "restore_backup", "restore_from"]

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
