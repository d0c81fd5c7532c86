"""Reads ranges of objects, many at a time: of a folder in this process, of a bucket through one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sublet.errors import BadInput, InvalidValue
from sublet.machine.objects import Found, Replaced, StoreFailed
from sublet.machine.remote import check_uri, is_remote

THREADS = 16


def folder_of(uri: str) -> Path:
    """The path of a URI: a path, ~/a/path, or file:///a/path with escaped characters (%20)."""
    if not uri.startswith("file://"):
        return Path(uri).expanduser() if uri.startswith("~/") else Path(uri)
    host, _, path = uri.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise InvalidValue(
            "uri", uri, "file:///a/folder, with three slashes: what stands before the third is a machine"
        )
    as_it_stands = Path(f"/{path}")
    return as_it_stands if as_it_stands.exists() else Path(f"/{unquote(path)}")


class FolderReader:
    """A folder of this machine, or of a shared disk."""

    def __init__(self, uri: str) -> None:
        self._uri, self._root = uri, folder_of(uri)
        self._pool = ThreadPoolExecutor(THREADS)

    def list(self) -> list[Found]:
        """All files below it; without those that begin with a dot. BadInput if it is no folder."""
        if not self._root.is_dir():
            is_file = self._root.exists()
            why = "it is a file, and not a folder" if is_file else f"there is no folder {self._root.absolute()}"
            hint = "name its folder, and suffix= for its name" if is_file else "name the folder of the samples"
            raise BadInput(self._uri, why, hint=hint)
        return sorted(self._walk(), key=lambda found: found.key)

    def ask(self, found: Found, start: int, stop: int) -> Future[bytes]:
        """A range of an object as it was listed, by a thread; Replaced if it is another one now."""
        return self._pool.submit(self._read, found, start, stop)

    def _walk(self) -> Iterator[Found]:
        """Links are followed, but to a folder that we are in already: its files are found there."""
        within = {str(self._root): frozenset([_identity_of(self._root)])}  # of folders that are still to come
        for folder, folders, names in os.walk(self._root, followlinks=True):
            around = within.pop(folder)
            found = {each: _identity_of(Path(folder, each)) for each in folders if not each.startswith(".")}
            folders[:] = [each for each, identity in found.items() if identity not in around]
            within.update({os.path.join(folder, each): around | {found[each]} for each in folders})  # noqa: PTH118 - as os.walk names them
            for name in names:
                if not name.startswith("."):
                    path = Path(folder) / name
                    facts = path.stat()
                    yield Found(path.relative_to(self._root).as_posix(), facts.st_size, facts.st_mtime, _tag_of(facts))

    def _read(self, found: Found, start: int, stop: int) -> bytes:
        try:
            with (self._root / found.key).open("rb") as file:
                tag = _tag_of(os.fstat(file.fileno()))
                file.seek(start)
                return _whole(self._uri, found, tag, file.read(stop - start), stop - start)
        except FileNotFoundError as error:
            raise Replaced(self._uri, found.key, "it is gone") from error


class BucketReader:
    """Through a process that is started anew (`fetcher`)."""

    def __init__(self, uri: str) -> None:
        check_uri("uri", uri)
        self._uri, self._lock, self._next = uri, threading.Lock(), 0
        self._asked: dict[int, tuple[Found | None, int, Future[bytes]]] = {}
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "sublet.train.data.stored.fetcher", uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._hear, daemon=True).start()

    def list(self) -> list[Found]:
        """All objects below the URI."""
        rows = json.loads(self._ask(None, 0, {"what": "list"}).result())
        return [Found(*row) for row in rows if row[1] or not row[0].endswith("/")]

    def ask(self, found: Found, start: int, stop: int) -> Future[bytes]:
        """Request a range of an object."""
        return self._ask(found, stop - start, {"what": "read", "key": found.key, "start": start, "stop": stop})

    def _ask(self, found: Found | None, size: int, request: dict[str, Any]) -> Future[bytes]:
        future: Future[bytes] = Future()
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - it was asked for
        with self._lock:
            self._next += 1
            self._asked[self._next] = found, size, future
            try:
                pipe.write(json.dumps({"id": self._next, **request}).encode() + b"\n")
                pipe.flush()
            except OSError:
                self._fail_all()
        return future

    def _hear(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 - it was asked for
        while line := pipe.readline():
            facts = json.loads(line)
            body = pipe.read(facts["size"])
            with self._lock:
                found, size, future = self._asked.pop(facts["id"])
            try:
                future.set_result(self._judged(found, size, facts, body))
            except (Replaced, StoreFailed) as error:
                future.set_exception(error)
        with self._lock:
            self._fail_all()

    def _judged(self, found: Found | None, size: int, facts: dict[str, Any], body: bytes) -> bytes:
        if "failed" in facts:
            raise StoreFailed(self._uri, facts["failed"], hint=facts["hint"], lasting=facts["lasting"])
        if found is None:
            return body
        if facts.get("missing"):
            raise Replaced(self._uri, found.key, "it is gone")
        return _whole(self._uri, found, facts["tag"], body, size)

    def _fail_all(self) -> None:
        why = f"the process that reads it has ended with {self._process.poll()}"
        while self._asked:
            _, (_, _, future) = self._asked.popitem()
            future.set_exception(StoreFailed(self._uri, why, hint="see its error in the log"))


Fetching = FolderReader | BucketReader  # what lies under one URI: `list`, in order of the keys, and `ask` for ranges
_opened: dict[tuple[int, str], Fetching] = {}  # by process, because none of them survives a fork


def fetching(uri: str) -> Fetching:
    """One for each process and URI."""
    key = (os.getpid(), uri)
    if key not in _opened:
        _opened[key] = BucketReader(uri) if is_remote(uri) else FolderReader(uri)
    return _opened[key]


def _whole(uri: str, found: Found, tag: str, body: bytes, size: int) -> bytes:
    if tag != found.tag:
        raise Replaced(uri, found.key, f"its tag is {tag}, and was {found.tag} when it was listed")
    if len(body) != size:
        raise Replaced(uri, found.key, f"{len(body)} bytes came in place of {size}")
    return body


def _identity_of(folder: Path) -> tuple[int, int]:
    facts = folder.stat()
    return facts.st_dev, facts.st_ino


def _tag_of(facts: os.stat_result) -> str:
    return f"{facts.st_mtime_ns:x}-{facts.st_size:x}"
