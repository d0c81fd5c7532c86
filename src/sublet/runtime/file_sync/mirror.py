"""A bucket as a folder of a node: filled from it, and what is written there goes back, a whole file at a time.

`pull` brings what is new in the bucket, `push` takes back what is new in the folder. An index, outside the folder, says
what of each file is in both, so that a second pull or push goes on where the first was ended. If folder and bucket were
both written, the later one stays; if several write an object, the last whole one.

An object that is replaced within the second by one of the same length has their like. Its tag tells the versions apart,
so that is noted before the file is there: an interruption in between leaves a note without its file, which says
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from sublet.machine.objects import FileObjects, Found, Objects, StoreFailed, Torn

CHUNK_BYTES: Final = 1 << 23
MOST_TRIES: Final = 3  # at an object that others write while it is read
DRAFT: Final = ".sublet-part"  # ends the name of a file that is not whole yet


class Shape(NamedTuple):
    """The facts that change when a file is written."""

    size: int
    written_ns: int


def shape_of(facts: os.stat_result) -> Shape:
    """The shape of a file."""
    return Shape(facts.st_size, facts.st_mtime_ns)


class Came:
    """Notes of a folder, in a file outside it: a line each, of which the last counts."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._known: dict[str, tuple[Shape, str, str]] = {}  # with the tag, and the URI that the key is under
        with contextlib.suppress(FileNotFoundError):
            for line in notes.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):  # cut off by an end
                    facts: Any = json.loads(line)
                    shape, uri = Shape(facts["size"], facts["written_ns"]), str(facts.get("uri", ""))
                    self._known[facts["key"]] = shape, str(facts["tag"]), uri

    def tag_of(self, key: str, place: Path) -> str | None:
        """The tag of the object from which `place` was fetched; None where it was not, or was written since."""
        try:
            shape, tag, _ = self._known[key]
            return tag if shape_of(place.stat()) == shape else None
        except (KeyError, OSError):
            return None

    def uri_of(self, key: str) -> str:
        """Under which the key was when it was noted last; "" where it is unknown."""
        return self._known[key][2] if key in self._known else ""

    def note(self, found: Found, shape: Shape, uri: str) -> None:
        """This object is about to be a file of this shape. Lines are short: those of two threads do not mix."""
        self._known[found.key] = shape, found.tag, uri
        line = json.dumps({"key": found.key, **shape._asdict(), "tag": found.tag, "uri": uri})
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        with self._notes.open("ab", buffering=0) as notes:
            notes.write(f"{line}\n".encode())

    def clear(self) -> None:
        """They are written elsewhere, or of no use any more."""
        self._known = {}
        self._notes.unlink(missing_ok=True)


def fetch(objects: Objects, key: str, place: Path, *, found: Found | None = None, came: Came | None = None) -> None:
    """Written beside, noted, and there when it is whole; with the time of the object that a list has `found`.

    One that is replaced meanwhile is read again from its beginning; Torn where that happens each time.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(place.name + DRAFT)
    for left in reversed(range(MOST_TRIES)):
        try:
            _read(objects, key, draft)
            break
        except Torn:
            if not left:
                draft.unlink(missing_ok=True)
                raise
    if found is not None:
        os.utime(draft, (found.changed_s, found.changed_s))
        if came is not None:
            came.note(found, shape_of(draft.stat()), objects.uri)
    draft.replace(place)


def _read(objects: Objects, key: str, draft: Path) -> None:
    written, memory = 0, memoryview(bytearray(CHUNK_BYTES))
    with objects.open(key) as source, draft.open("wb") as file:
        while count := source.readinto(memory):
            written += file.write(memory[:count])
        whole = source.size
    if written != whole:
        raise OSError(f"{objects.uri}/{key}: {written} bytes came of {whole}")


AT_ONCE: Final = 8  # files, each way
SAME_NS: Final = 2_000_000  # two times that differ by less went through a float


def open_for_writing(*, besides: int | None = None) -> set[tuple[int, int]]:
    """Device and number of each, since names differ between containers; not by processes of the group `besides`."""
    found: set[tuple[int, int]] = set()
    for pid in os.listdir("/proc"):  # noqa: PTH208 - names are all it takes
        with contextlib.suppress(OSError):  # it has ended
            if pid.isdigit() and os.getpgid(int(pid)) != besides:
                _add(found, f"/proc/{pid}")
    return found


def _add(found: set[tuple[int, int]], process: str) -> None:
    try:
        numbers = os.listdir(f"{process}/fd")  # noqa: PTH208 - as above
    except OSError:
        return  # it has ended, or is another user's
    for number in numbers:
        try:
            with open(f"{process}/fdinfo/{number}", encoding="ascii") as facts:  # noqa: PTH123 - read by the thousand
                flags = next((int(line.split()[1], 8) for line in facts if line.startswith("flags:")), 0)
            if flags & os.O_ACCMODE == os.O_RDONLY:
                continue
            seen = os.stat(f"{process}/fd/{number}")  # noqa: PTH116 - as above
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode):
            found.add((seen.st_dev, seen.st_ino))


class NotOurs(OSError):
    """The folder has files of another owner."""


@dataclass(slots=True)
class MirrorEntry:
    """A file as it was when folder and bucket had the same."""

    size: int
    written_ns: int
    tag: str
    ours: bool  # it was written here

    @property
    def shape(self) -> Shape:
        """Size and time."""
        return Shape(self.size, self.written_ns)


class Pushed(NamedTuple):
    """The result of a push, and its failures."""

    uploaded: int
    deleted: int
    failed: StoreFailed | None


class Mirror:
    """`index` is a file that is there as long as the folder."""

    def __init__(self, objects: FileObjects, place: Path, index: Path) -> None:
        self._objects, self._place, self._index = objects, place, index
        self._last: dict[str, Shape] = {}  # as a push found them
        self.told: set[str] = set()  # names that are not taken back, as they were told

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While a job uses the folder, no other bucket comes there. BlockingIOError where another one is there."""
        self._index.parent.mkdir(parents=True, exist_ok=True)
        with self._index.with_suffix(".users").open("a") as users:
            self._claim(users)
            yield

    def _claim(self, users: IO[str]) -> None:
        fcntl.flock(users, fcntl.LOCK_SH)
        if self._owner() in ("", self._objects.uri):
            return
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOurs(errno.EBUSY, f"a job that runs has {self._owner()} there", str(self._place)) from None
        self._clear()
        fcntl.flock(users, fcntl.LOCK_SH)

    def _clear(self) -> None:
        """It is not used any more: objects in the bucket that was there go, and nothing else."""
        with self._alone():
            files = self._load()
            here = dict(self._files())
            if changed := [key for key in here if key not in files or files[key].shape != here[key]]:
                why = f"{changed[0]} there was not taken back to {self._owner()}"
                raise NotOurs(errno.EBUSY, why, str(self._place))
            for key in here:
                (self._place / key).unlink(missing_ok=True)
            for folder, _, _ in os.walk(self._place, topdown=False):
                with contextlib.suppress(OSError):  # it has a link, say
                    Path(folder).rmdir()
            self._index.unlink(missing_ok=True)

    # ------------------------------------------------------------------ to the node

    def pull(self) -> int:
        """All that is in the bucket, as it is now; how many files came."""
        with self._alone():
            files = self._begin()
            listed = files_among(self._objects.list(), self._objects.uri)
            came = Came(self._index.with_suffix(".came"))
            for key in listed:
                self._adopt(key, files, came)
            wanted = [found for found in listed.values() if self._is_wanted(found, files.get(found.key))]
            self._make_room(wanted)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                shapes = pool.map(lambda found: self._fetch(found, came), wanted)
                brought = {found: shape for found, shape in zip(wanted, shapes, strict=True) if shape is not None}
                files |= {found.key: MirrorEntry(*shape, found.tag, ours=False) for found, shape in brought.items()}
            for key in [key for key in files if key not in listed]:
                self._forget(key, files)
            self._save(files)
            came.clear()
        return len(brought)

    def _begin(self) -> dict[str, MirrorEntry]:
        """The index; at the first time the folder must have nothing that we could take for the job's."""
        if self._owner():
            return self._load()
        self._place.mkdir(parents=True, exist_ok=True)
        if any(self._place.iterdir()):
            raise NotOurs(errno.ENOTEMPTY, "a bucket is mounted over an empty folder alone", str(self._place))
        self._save({})
        return {}

    def _adopt(self, key: str, files: dict[str, MirrorEntry], came: Came) -> None:
        """A file that was brought by a pull that was ended before it could write the index."""
        tag, shape = came.tag_of(key, self._place / key), self._shape(key)
        if key not in files and shape is not None and tag is not None:
            files[key] = MirrorEntry(*shape, tag, ours=False)

    def _is_wanted(self, found: Found, entry: MirrorEntry | None) -> bool:
        """The bucket has it, and the folder has not, or has an older one."""
        shape = self._shape(found.key)
        if shape is None:
            return entry is None or not (entry.ours and entry.tag == found.tag)  # what the job deleted of its own
        if entry is not None and (entry.tag == found.tag or entry.shape == shape):
            return entry.tag != found.tag
        return _differ(found, shape) > 0  # both were written: which was last?

    def _make_room(self, wanted: Sequence[Found]) -> None:
        needed, free = sum(found.size for found in wanted), shutil.disk_usage(self._place).free
        if needed > free:
            why = f"{needed} bytes are to come, and the disk has {free}"
            raise OSError(errno.ENOSPC, why, str(self._place))

    def _fetch(self, found: Found, came: Came) -> Shape | None:
        """None for a folder: of one without files S3's console makes an object `key/`, which is listed as `key`."""
        place = self._place / found.key
        try:
            fetch(self._objects, found.key, place, found=found, came=came)
        except FileNotFoundError:
            if found.size:
                raise
            place.mkdir(parents=True, exist_ok=True)
            return None
        return shape_of(place.stat())

    def _forget(self, key: str, files: dict[str, MirrorEntry]) -> None:
        """The bucket has it no more; what was written here since is another file."""
        if self._shape(key) == files[key].shape:
            (self._place / key).unlink(missing_ok=True)
        del files[key]

    # ------------------------------------------------------------------ back

    def push(self, *, last: bool = False) -> Pushed:
        """New files in the folder, if it has been quiet since the last time and has no writers; or all of it."""
        with self._alone():
            files, here = self._load(), dict(self._files())
            changed = [key for key, shape in here.items() if key not in files or files[key].shape != shape]
            if not last:
                changed = [key for key in changed if self._last.get(key) == here[key]]
            changed = self._closed(changed, besides=os.getpgrp() if last else None)
            self._last = here
            gone = [key for key, entry in files.items() if entry.ours and key not in here]
            if not (changed or gone) or not self._place.is_dir():
                return Pushed(0, 0, None)
            done = self._upload(changed, here, files)
            done = done if done.failed else self._delete(gone, files, done)
            self._save(files)
        return done

    def _closed(self, keys: list[str], *, besides: int | None) -> list[str]:
        """Files without writers; at the end of a worker those of others, which will take them back themselves."""
        busy = open_for_writing(besides=besides) if keys else set()
        return [key for key in keys if (self._place / key).exists() and _identity(self._place / key) not in busy]

    def _upload(self, keys: Sequence[str], here: dict[str, Shape], files: dict[str, MirrorEntry]) -> Pushed:
        """If one fails, those that did not are still noted."""
        count, failed = 0, None

        def upload(key: str) -> str | StoreFailed | None:
            try:
                return self._objects.upload(key, self._place / key)
            except FileNotFoundError:
                return None  # deleted meanwhile
            except ValueError:
                self.told.add(key)  # in letters that no bucket takes
                return None
            except StoreFailed as error:
                return error

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for key, tag in zip(keys, pool.map(upload, keys), strict=True):
                if isinstance(tag, StoreFailed):
                    failed = tag
                elif tag is not None:
                    files[key] = MirrorEntry(*here[key], tag, ours=True)  # as before: a change since is seen next
                    count += 1
        return Pushed(count, 0, failed)

    def _delete(self, keys: Sequence[str], files: dict[str, MirrorEntry], done: Pushed) -> Pushed:
        """Files that the job wrote here and deleted, if they are still those in the bucket."""
        deleted = 0
        try:
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    if self._objects.look(key).tag == files[key].tag:
                        self._objects.delete([key])
                        deleted += 1
                del files[key]
        except StoreFailed as error:
            return done._replace(deleted=deleted, failed=error)
        return done._replace(deleted=deleted)

    # ------------------------------------------------------------------ folder and index

    def _files(self) -> Iterator[tuple[str, Shape]]:
        """Those that are whole. A link is none: what it leads to may be anybody's."""
        for folder, _, names in os.walk(self._place):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # deleted meanwhile
                    facts, key = path.lstat(), path.relative_to(self._place).as_posix()
                    if stat.S_ISREG(facts.st_mode) and not name.endswith(DRAFT):
                        yield key, shape_of(facts)
                    elif stat.S_ISLNK(facts.st_mode):
                        self.told.add(key)

    def _shape(self, key: str) -> Shape | None:
        try:
            return shape_of((self._place / key).lstat())
        except OSError:
            return None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude all other workers on this node that have the folder."""
        self._index.parent.mkdir(parents=True, exist_ok=True)
        with self._index.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _owner(self) -> str:
        """The URI of the bucket that is in the folder; "" for none."""
        return str(self._read().get("uri", ""))

    def _load(self) -> dict[str, MirrorEntry]:
        return {key: MirrorEntry(**facts) for key, facts in self._read().get("files", {}).items()}

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._index.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self, files: dict[str, MirrorEntry]) -> None:
        text = json.dumps({"uri": self._objects.uri, "files": {key: asdict(entry) for key, entry in files.items()}})
        draft = self._index.with_suffix(".new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(self._index)


def _differ(found: Found, shape: Shape) -> int:
    """1: the object was written after the file, -1: before it, 0: at the same time, as far as clocks tell."""
    apart_ns = round(found.changed_s * 1e9) - shape.written_ns
    return 0 if abs(apart_ns) < SAME_NS else 1 if apart_ns > 0 else -1


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def files_among(listed: Sequence[Found], uri: str) -> dict[str, Found]:
    """Some tools make an empty object for a folder; its name is a folder here. Names that no disk can have are told."""
    folders = {parent.as_posix() for found in listed for parent in Path(found.key).parents}
    if both := next((found.key for found in listed if found.size and found.key in folders), None):
        hint = f"rename one of them, or name what lies below {uri}/{both}"
        raise StoreFailed(uri, f"{both!r} is a file and a folder there: no disk can have both", hint=hint, lasting=True)
    return {found.key: found for found in listed if found.key not in folders}
