"""Parts of files by what is in them, named by their SHA-256 and packed, and the content of a folder as such parts.

A part is whole or not there: it is written beside and renamed, and a reader checks its content against its name. Code
is packed by zlib, which every Python has: a node needs nothing installed to unpack what comes first. Checkpoints are
kept as they are, since they hardly pack, and come by the gigabyte.

The *root*, one part, names the parts of the manifest; the name of the root is all that an order to start carries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import Protocol

from sublet.errors import BadInput
from sublet.machine.files import FILES, Files
from sublet.machine.wall import Wall
from sublet.wire.files import Lacks, Part

PLAIN, RUNS = 0o644, 0o755  # most files have one of them: they are 0 and 1 in a manifest, as ever
SHORT = {PLAIN: 0, RUNS: 1}
LONG = {short: mode for mode, short in SHORT.items()}
PART_BYTES = 128 << 10  # of a part, unpacked: one line of the wire, even if it cannot be packed
LARGE_PART_BYTES = 512 << 10  # of a checkpoint: fewer files, and still one line where that is all a peer reads
LEVEL = 1  # code packs well at any, and this is the quickest
SAMPLE_BYTES = 4096
WORTH = 0.95  # of the length: more than that is not worth the time
DIGITS = frozenset("0123456789abcdef")
LENGTH = 64  # of a SHA-256 in hexadecimal digits
DRAFT = ".draft"
MOST_DRAFTS = 8 << 20  # bytes, until they are forced to the disk together: lost with the machine, or the process
ZLIB = b"\x78"  # what is packed begins with this; what is not may, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. A path is below the working directory, unless it begins with / or ~/."""

    path: str
    parts: tuple[str, ...]
    size_bytes: int
    mode: int = PLAIN

    @property
    def part_bytes(self) -> int:
        """Bytes of each part but the last: there are two lengths, and their number tells which."""
        return PART_BYTES if len(self.parts) == -(-self.size_bytes // PART_BYTES) else LARGE_PART_BYTES


class _KnownParts(Protocol):
    """A store of parts: a `Content`, say."""

    def add(self, data: bytes) -> str:
        """Its name."""


def is_below(path: str) -> bool:
    """It names a file below whatever folder it is put into, and nothing outside."""
    return bool(path) and not path.startswith(("/", "~")) and ".." not in PurePosixPath(path).parts


def in_parts(data: bytes) -> Iterator[bytes]:
    """The parts of a file; none of an empty one."""
    return (data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES))


def write_manifest(content: _KnownParts, entries: Iterable[Entry]) -> str:
    """The name of its root. The same files give the same name, in whatever order they were found."""
    rows = [[e.path, SHORT.get(e.mode, e.mode), e.size_bytes, *e.parts] for e in sorted(entries, key=lambda e: e.path)]
    text = json.dumps(rows, separators=(",", ":")).encode()
    return content.add("\n".join(content.add(part) for part in in_parts(text)).encode())


def names_in(root: bytes) -> list[str]:
    """The parts of the manifest that a root names."""
    names = root.decode("ascii", errors="replace").split("\n")
    if not all(map(_is_digest, names)):
        raise BadInput("a manifest", "its root names no parts")
    return names


def entries_from(text: bytes) -> list[Entry]:
    """Entries of the text of a manifest; BadInput for one that should not be unpacked."""
    try:
        rows = json.loads(text)
        entries = [
            Entry(path=str(path), mode=LONG.get(mode, int(mode)) & RUNS, size_bytes=int(size), parts=tuple(parts))
            for path, mode, size, *parts in rows
        ]
    except (ValueError, TypeError) as error:
        raise BadInput("a manifest", f"cannot be read ({error})") from None
    for entry in entries:
        if ".." in PurePosixPath(entry.path).parts or not all(map(_is_digest, entry.parts)):
            raise BadInput("a manifest", f"has no file that could be called {entry.path!r}")
        if len(entry.parts) != -(-entry.size_bytes // entry.part_bytes):
            raise BadInput("a manifest", f"has {len(entry.parts)} parts of {entry.path!r}, which is not its length")
    return entries


def digest_of(data: bytes) -> str:
    """Its name."""
    return hashlib.sha256(data).hexdigest()


def _is_digest(text: str) -> bool:
    """Whether a part can have this name."""
    return len(text) == LENGTH and DIGITS.issuperset(text)


class Keep(Enum):
    """How parts are kept."""

    PACKED = auto()  # each for good, as soon as it is here
    RAW = auto()  # for good when `settle` was called; until then, all but the last few
    PASSING = auto()  # raw, for a reader of now: nothing is left to a later process


class Content:
    """All parts in `folder`."""

    def __init__(self, folder: Path, files: Files = FILES, keep: Keep = Keep.PACKED) -> None:
        self.folder, self._files, self._keep = folder, files, keep
        self._most_bytes = PART_BYTES if keep is Keep.PACKED else LARGE_PART_BYTES
        self._names: set[str] | None = None  # None = not looked at yet
        self._drafts: dict[str, int] = {}  # those that are not for good yet, with their lengths
        self._left: list[str] = []  # by a process that is gone, or by one that writes while we only read

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        return not self._known()

    def lacks(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here, each once, in order."""
        known = self._known()
        return [digest for digest in dict.fromkeys(digests) if digest not in known]

    def add(self, data: bytes) -> str:
        """Its name; written if it is new, or if what is there is not it: a crash may have left half of it."""
        digest = digest_of(data)
        if self.data(digest) is None:
            self._write(digest, _packed_part(data) if self._keep is Keep.PACKED else data)
        return digest

    def take(self, digest: str, packed: bytes) -> bool:
        """Keep the bytes that came over a line under this name; False if they are something else."""
        if not _is_digest(digest) or (data := _unpacked(digest, packed, self._most_bytes)) is None:
            return False
        if self.data(digest) is None:
            self._write(digest, packed if self._keep is Keep.PACKED else data)
        return True

    def packed(self, digest: str, *, sure: bool = True) -> bytes | None:
        """For a line; None where there is none of this name, or, if the caller is to be `sure`, it is not it."""
        packed = self._read(digest)
        return packed if packed is None or not sure or self._checked(digest, packed) is not None else None

    def data(self, digest: str) -> bytes | None:
        """The content of a part; None where there is none of this name, or what is there is not it."""
        return None if (packed := self._read(digest)) is None else self._checked(digest, packed)

    def settle(self) -> None:
        """All that is here is here for good."""
        if self._drafts:
            drafts, self._drafts = self._drafts, {}
            try:
                self._files.settle(self.folder, {f"{digest}{DRAFT}": digest for digest in drafts})
            except OSError:
                self._disown(drafts)
                raise

    def keep_only(self, digests: Iterable[str]) -> None:
        """Remove all others."""
        for digest in self._known() - set(digests):
            self._remove(digest)

    def _known(self) -> set[str]:
        if self._names is None:
            found = self._files.names(self.folder)
            self._names = set(filter(_is_digest, found)) if self._keep is not Keep.PASSING else set()
            self._left = [name for name in found if name.endswith(DRAFT)]
        return self._names

    def _read(self, digest: str) -> bytes | None:
        if digest not in self._known():
            return None
        try:
            return self._files.read(self._path(digest))
        except OSError:
            self._known().discard(digest)
            return None

    def _checked(self, digest: str, packed: bytes) -> bytes | None:
        data = _unpacked(digest, packed, self._most_bytes)
        if data is None:
            self._remove(digest)  # a disk that has lost something
        return data

    def _write(self, digest: str, packed: bytes) -> None:
        known = self._known()
        self._files.make_folder(self.folder)
        if self._keep is Keep.PACKED:
            self._files.write(self.folder / digest, packed)  # a job is written down for good, and so is what it needs
        else:
            self._tidy()
            self._drafts[digest] = len(packed)
            try:
                self._files.write(self._path(digest), packed, durable=False)
            except OSError:
                del self._drafts[digest]
                raise
        known.add(digest)
        if self._keep is Keep.RAW and sum(self._drafts.values()) >= MOST_DRAFTS:
            self.settle()

    def _tidy(self) -> None:
        """There is only one writer: files of others are of no use, and may not be whole."""
        left, self._left = self._left, []
        for name in left:
            with contextlib.suppress(OSError):
                self._files.remove(self.folder / name)

    def _disown(self, digests: Iterable[str]) -> None:
        """A disk would not have them for good, and which it has is unknown: none of them is here."""
        for digest in digests:
            self._remove(digest)
            with contextlib.suppress(OSError):
                self._files.remove(self.folder / f"{digest}{DRAFT}")

    def _remove(self, digest: str) -> None:
        self._known().discard(digest)
        with contextlib.suppress(OSError):
            self._files.remove(self._path(digest))
        self._drafts.pop(digest, None)

    def _path(self, digest: str) -> Path:
        return self.folder / (f"{digest}{DRAFT}" if digest in self._drafts else digest)


def _packed_part(data: bytes) -> bytes:
    """A part whose beginning cannot be made smaller is wrapped and no more: that is ten times as quick."""
    sample = data[:SAMPLE_BYTES]
    return zlib.compress(data, LEVEL if len(zlib.compress(sample, LEVEL)) < WORTH * len(sample) else 0)


def _unpacked(digest: str, packed: bytes, most_bytes: int) -> bytes | None:
    """The content of a part, if it is the one of this name; no peer can make us unpack more than a part."""
    if packed.startswith(ZLIB):
        unpacker = zlib.decompressobj()
        with contextlib.suppress(zlib.error):
            data = unpacker.decompress(packed, most_bytes + 1)
            if len(data) <= most_bytes and unpacker.eof and digest_of(data) == digest:
                return data
    return packed if len(packed) <= most_bytes and digest_of(packed) == digest else None


MOST_BYTES = 256 << 10  # asked for and not here yet: by so much, unpacked, an order may be late behind them
MOST_PARTS = 64  # ... of them, where files are small
AGAIN_S = 10.0  # without one of them: ask again
GONE = "its files are no longer there"
MOST_DAMAGED = 5  # that are not what their names say, before a fetch is given up


class Fetch:
    """One manifest, level by level: its root, its parts, the parts of its files; these not yet, if it is `held`."""

    def __init__(self, content: Content, root: str, *, held: bool = False) -> None:
        self._content, self._root, self._held = content, root, held
        self.entries: list[Entry] | None = None  # None = not known yet
        self.missing: dict[str, int] = {}  # part -> its length, or the most that it can have
        self.why_not = ""  # it will never be here
        self.damaged = 0
        self.look()

    @property
    def here(self) -> bool:
        """All of it."""
        return self.entries is not None and not (self.missing or self._held or self.why_not)

    def note(self, digest: str) -> None:
        """This part has come."""
        if self.missing.pop(digest, None) is not None and not self.missing and self.entries is None:
            self.look()

    def look(self) -> None:
        """At what is here; the first level that is not all here says what is missing."""
        self.entries = None
        try:
            self.missing = self._lacking()
        except BadInput as error:
            self.give_up(str(error))

    def go_on(self, without: Collection[str]) -> None:
        """To the parts of its files, but for those that are there."""
        self._held = False
        self.look()
        self.missing = {digest: size for digest, size in self.missing.items() if digest not in without}

    def give_up(self, why: str) -> None:
        """It will never be here."""
        self.why_not, self.missing = why, {}

    def _lacking(self) -> dict[str, int]:
        content = self._content
        if (root := content.data(self._root)) is None:
            return {self._root: PART_BYTES}
        names = names_in(root)
        text = [data for name in names if (data := content.data(name)) is not None]
        if len(text) < len(names):
            return dict.fromkeys(content.lacks(names), PART_BYTES)
        self.entries = entries_from(b"".join(text))
        if self._held:
            return {}
        sizes: dict[str, int] = {}
        for entry in self.entries:
            sizes |= dict.fromkeys(entry.parts, entry.part_bytes)
            if entry.parts:
                sizes[entry.parts[-1]] = entry.size_bytes - entry.part_bytes * (len(entry.parts) - 1)
        return {digest: sizes[digest] for digest in content.lacks(sizes)}


class Fetching:
    """All fetches into `content`. `ask` passes a message on; what came to nothing is asked for again."""

    def __init__(
        self, content: Content, ask: Callable[[Lacks], None], wall: Wall, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._content, self._ask, self._wall, self._most_bytes = content, ask, wall, most_bytes
        self._fetches: dict[str, Fetch] = {}
        self._asked: dict[str, int] = {}  # part -> its length
        self._doubted: set[str] = set()  # parts as which something else came
        self._again_s = float("inf")
        self.came = 0  # parts, ever

    def of(self, root: str, *, held: bool = False) -> Fetch:
        """The one of this manifest, begun if need be."""
        if root not in self._fetches:
            self._fetches[root] = Fetch(self._content, root, held=held)
            self._ask_for_more()
        return self._fetches[root]

    def keep_only(self, roots: Collection[str]) -> None:
        """The others are not waited for any more: a later request begins anew."""
        self._fetches = {root: fetch for root, fetch in self._fetches.items() if root in roots}
        missing = {digest for fetch in self._fetches.values() for digest in fetch.missing}
        self._asked = {digest: size for digest, size in self._asked.items() if digest in missing}

    def take(self, part: Part) -> None:
        """It has come, or what came is not it. OSError where it cannot be kept."""
        self._asked.pop(part.digest, None)
        waiting = [fetch for fetch in self._fetches.values() if part.digest in fetch.missing]
        if not waiting:
            return  # it was asked for twice
        if not part.data:
            for fetch in waiting:
                fetch.give_up(GONE)
        elif self._content.take(part.digest, part.data):
            self.came += 1
            self._doubted.discard(part.digest)
            for fetch in waiting:
                fetch.note(part.digest)
        else:
            self._doubted.add(part.digest)
            for fetch in waiting:
                fetch.damaged += 1
                if fetch.damaged > MOST_DAMAGED:
                    fetch.give_up("its files come damaged, again and again")
        self._ask_for_more()

    def ask_again(self) -> None:
        """The line is a new one: what was asked for on the old one may never come."""
        self._asked.clear()
        self._ask_for_more()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return self._again_s if self._asked else float("inf")

    def keep_time(self, now_s: float) -> None:
        """Nothing came for too long."""
        if self._asked and now_s >= self._again_s:
            self.ask_again()

    def _ask_for_more(self) -> None:
        under_way = sum(self._asked.values())
        if under_way > self._most_bytes // 2 or len(self._asked) > MOST_PARTS // 2:
            return  # a little later, for more of them at once
        wanted: list[str] = []
        for fetch in self._fetches.values():
            for digest, size in fetch.missing.items():
                if self._asked and (under_way + size > self._most_bytes or len(self._asked) >= MOST_PARTS):
                    break
                if digest not in self._asked:
                    self._asked[digest] = size
                    under_way += size
                    wanted.append(digest)
        if wanted:
            self._again_s = self._wall.monotonic() + AGAIN_S
            self._ask(Lacks(digests=tuple(wanted), doubted=tuple(sorted(self._doubted.intersection(wanted)))))
