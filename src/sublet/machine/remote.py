"""Opens what a URI names: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix.

    objects = open_uri("s3://bucket/some/prefix")   # sublet.machine.objects.Objects
    objects.get("name").data; objects.list(); objects.put("name", b"...")

Access and options come from the environment, in the words of the cloud's own tools: AWS_ACCESS_KEY_ID, AWS_REGION,
AWS_ENDPOINT_URL, ... or the role of the machine; GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME, ...
If boto3 is there, a profile of `aws configure` serves too. The library (obstore, the extra `store`) is imported at
the first use. `check_uri` says what is wrong with a URI without asking anybody.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sublet.errors import InvalidValue, MissingExtra
from sublet.machine.objects import Content, FileObjects, Found, ObjectReading, Overtaken, StoreFailed, Torn, Version

SCHEMES = ("s3", "gs", "az")
CONNECT_S = 5.0
ANSWER_S = 60.0  # of one request; a part of a large object is one
RETRY_S = 30.0  # from a request to its last repetition
RETRIES = 4
PART_BYTES = 1 << 24  # of a large object, in one request
MOST_PARTS = 9_000  # a store takes 10,000
WEAK = "W/"  # begins a tag that two contents may have, which no condition can name
AHEAD = 2  # pieces of one object that are asked for before they are read
LONGEST_WHY = 300
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
NO_PATH = ("object with invalid path",)  # as `a//b`, `../x`: the library lists nothing that has one
NO_ACCESS = ("403 Forbidden", "401 Unauthorized", "AccessDenied", "redential", "Account must be")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_STORAGE_BASE_URL", "AZURE_ENDPOINT")


def is_remote(place: object) -> bool:
    """Whether it is a URI, of whatever scheme but file:, and no path."""
    scheme, separator, _ = str(place).partition("://")
    return bool(separator) and scheme.isalnum() and scheme != "file"


def check_uri(field: str, uri: str) -> None:
    """The checks that are possible here: the scheme, the bucket, and whether the library is installed.

    The store is not asked.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES:
        allowed = "a directory, file:///a/directory, " + ", ".join(f"{each}://bucket/prefix" for each in SCHEMES)
        raise InvalidValue(field, uri, allowed)
    if (
        not bucket
        or "@" in bucket
        or any(sign in uri for sign in "?#%\\ \n")
        or ".." in prefix.split("/")
        or "//" in rest
    ):
        raise InvalidValue(field, uri, f"{scheme}://bucket/prefix, in letters that need no escape")
    if find_spec("obstore") is None:
        raise MissingExtra(f"obstore, which reads and writes {scheme}://,", "store")


def open_uri(uri: str) -> FileObjects:
    """All objects under it; the store is not asked yet.

    InvalidValue, MissingExtra, or StoreFailed where access is not set.
    """
    uri = uri.rstrip("/")
    check_uri("uri", uri)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    options: dict[str, Any] = {
        "client_options": {
            "allow_http": any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=ANSWER_S),
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    }
    try:
        if uri.startswith("s3://") and (profile := _profile()) is not None:
            options["credential_provider"] = profile
        return RemoteObjects(uri, from_url(uri, **options))
    except (BaseError, ValueError) as error:
        raise _failure_from(uri, error) from error


class RemoteObjects:
    """Over a store of obstore's, of any kind."""

    def __init__(self, uri: str, store: Any) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        self._uri, self._store, self._library = uri, store, obstore
        self._overtaken: tuple[type[Exception], ...] = (AlreadyExistsError, PreconditionError)
        self._failures: tuple[type[Exception], ...] = (BaseError, OSError)

    @property
    def uri(self) -> str:
        """The prefix of the keys."""
        return self._uri

    def put(self, key: str, content: bytes | memoryview, *, new: bool = False, over: Version | None = None) -> Version:
        """In one go, whatever its size: a large one is there once its last part is."""
        mode: Any = "create" if new else None if over is None else dict(over)
        size = max(PART_BYTES, -(-len(content) // MOST_PARTS))
        with self._asking(key):
            done = self._library.put(self._store, key, content, mode=mode, chunk_size=size)
        return _version(done)

    def upload(self, key: str, path: Path) -> str:
        """In parts, and there once its last one is."""
        size = max(PART_BYTES, -(-path.stat().st_size // MOST_PARTS))
        with self._asking(key):
            done = self._library.put(self._store, key, path, chunk_size=size)
        return str(done.get("e_tag") or "")

    def look(self, key: str) -> Found:
        """Its size, and when it was written."""
        with self._asking(key):
            return _found(self._library.head(self._store, key))

    def get(self, key: str) -> Content:
        """All of it."""
        with self._asking(key):
            found = self._library.get(self._store, key)
            return Content(bytes(found.bytes()), _version(found.meta))

    def read(self, key: str, start: int, stop: int) -> tuple[memoryview, str]:
        """A range of it, and the tag of the object that it is of."""
        with self._asking(key):
            found = self._library.get(self._store, key, options={"range": (start, stop)})
            return memoryview(found.bytes()).cast("B"), str(found.meta.get("e_tag") or "")

    def open(self, key: str) -> ObjectReading:
        """In pieces, the next one on its way: however slow the line, no request is for more than one of them.

        All are of the object that was there at the first: the store is asked for no other (If-Match).
        """
        with self._asking(key):
            seen = self._library.head(self._store, key)
        size, tag = int(seen["size"]), str(seen.get("e_tag") or "")
        return _Pieces(lambda start: self._piece(key, start, size, tag), size)

    def list(self, prefix: str = "") -> list[Found]:
        """However many there are."""
        with self._asking(prefix):
            rows = [row for page in self._library.list(self._store, prefix or None) for row in page]
        return sorted(map(_found, rows), key=lambda found: found.key)

    def walk(self) -> Iterator[Found]:
        """Page by page."""
        with self._asking(""):
            for page in self._library.list(self._store):
                yield from map(_found, page)

    def delete(self, keys: Iterable[str]) -> None:
        """All of them."""
        if names := list(keys):
            try:
                with self._asking(names[0]):
                    self._library.delete(self._store, names)
            except FileNotFoundError:
                for name in names if len(names) > 1 else ():  # one that is gone may have stopped it
                    self.delete([name])

    def _piece(self, key: str, start: int, size: int, tag: str) -> memoryview:
        options: Any = {"range": (start, min(start + PART_BYTES, size))}
        if tag and not tag.startswith(WEAK):
            options["if_match"] = tag
        try:
            with self._asking(key):
                found = self._library.get(self._store, key, options=options).bytes()
        except Overtaken as error:
            raise Torn(self._uri, key) from error
        return memoryview(found).cast("B")

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        try:
            yield
        except self._overtaken as error:
            raise Overtaken(self._uri, key) from error
        except FileNotFoundError as error:
            if any(word in str(error) for word in NO_BUCKET):
                raise _failure_from(self._uri, error) from error
            raise FileNotFoundError(errno.ENOENT, "there is no such object", f"{self._uri}/{key}") from error
        except self._failures as error:
            raise _failure_from(self._uri, error) from error


class _Pieces:
    """An object that is being read: what came over the line, and the pieces after it that are asked for."""

    def __init__(self, ask: Callable[[int], memoryview], size: int) -> None:
        self._size, self._rest = size, memoryview(b"")
        self._pool = ThreadPoolExecutor(AHEAD)
        self._starts = iter(range(0, size, PART_BYTES))
        self._ask = ask
        self._coming = deque(self._pool.submit(ask, start) for start in islice(self._starts, AHEAD))

    @property
    def size(self) -> int:
        """As the store says."""
        return self._size

    def readinto(self, memory: memoryview) -> int:
        """From what is here, or the next that comes."""
        if not self._rest and self._coming:
            self._rest = self._coming.popleft().result()
            self._coming.extend(self._pool.submit(self._ask, start) for start in islice(self._starts, 1))
        count = min(len(memory), len(self._rest))
        memory[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest = memoryview(b"")
        self._coming.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _found(row: Mapping[str, Any]) -> Found:
    return Found(row["path"], int(row["size"]), row["last_modified"].timestamp(), str(row.get("e_tag") or ""))


def _version(facts: Mapping[str, Any]) -> Version:
    return {name: facts[name] for name in ("e_tag", "version") if facts.get(name) is not None}


def _profile() -> Any:
    """Access by `aws configure`, where the environment names none and boto3 can read it; otherwise None."""
    home = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path("~/.aws/credentials").expanduser())
    if "AWS_ACCESS_KEY_ID" in os.environ or not ("AWS_PROFILE" in os.environ or home.exists()):
        return None
    if find_spec("boto3") is None:
        return None
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except BotoCoreError as error:  # a profile that is not there, a file that cannot be read
        raise ValueError(f"credentials: {error}") from error


def is_missing(error: StoreFailed) -> bool:
    """Whether it failed because there is no such bucket."""
    return any(word in error.why for word in NO_BUCKET)


def _failure_from(uri: str, error: Exception) -> StoreFailed:
    text = " ".join(str(error).partition("Debug source")[0].split())
    lasting = True
    if any(word in text for word in NO_BUCKET):
        hint = f"make the bucket of {uri}, or name another; also see AWS_REGION and AWS_ENDPOINT_URL"
    elif any(word in text for word in NO_ACCESS):
        hint = f"let this account get, put, list and delete under {uri}, and have its keys or the machine's role found"
    elif any(word in text for word in NO_PATH):
        hint = f"no folder can have a file of that name: rename the object, or name a prefix below {uri} without it"
    else:
        lasting = False
        hint = f"see that {uri} can be reached from this machine (network, region, AWS_ENDPOINT_URL); it is tried again"
    return StoreFailed(uri, text[:LONGEST_WHY] or repr(error), hint=hint, lasting=lasting)
