"""Parts of files by what is in them: named by their SHA-256, packed, in one folder. Both ends of the line have one.

A part is whole or not there: it is written beside and renamed, and whoever reads it checks that it is what its name
says. Packed by zlib, which every Python has: a node needs nothing installed to unpack what comes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path

from sublet.machine.files import FILES, Files

__all__ = ["PART_BYTES", "Content", "digest_of", "is_digest", "packed_part"]

PART_BYTES = 128 << 10  # of a part, unpacked: one line of the wire, even if it cannot be packed
LEVEL = 1  # code packs well at any, and this is the quickest
SAMPLE_BYTES = 4096
WORTH = 0.95  # of the length: more than that is not worth the time
DIGITS = frozenset("0123456789abcdef")
LENGTH = 64  # of a SHA-256 in hexadecimal digits


def digest_of(data: bytes) -> str:
    """Its name."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether a part can have this name."""
    return len(text) == LENGTH and DIGITS.issuperset(text)


class Content:
    """All parts in `folder`."""

    def __init__(self, folder: Path, files: Files = FILES) -> None:
        self.folder, self._files = folder, files
        self._names: set[str] | None = None  # None = nobody has looked yet

    def lacks(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here, each once, in order."""
        known = self._known()
        return [digest for digest in dict.fromkeys(digests) if digest not in known]

    def add(self, data: bytes) -> str:
        """Its name; written if it is new, or if what is there is not it: a crash may have left half of it."""
        digest = digest_of(data)
        if self.data(digest) is None:
            self._write(digest, packed_part(data))
        return digest

    def take(self, digest: str, packed: bytes) -> bool:
        """What came over a line under this name; False if it is something else, and nothing is kept."""
        if not is_digest(digest) or _unpacked(digest, packed) is None:
            return False
        if self.data(digest) is None:
            self._write(digest, packed)
        return True

    def packed(self, digest: str) -> bytes | None:
        """For a line; None where there is none of this name, or what is there is not it."""
        return packed if (packed := self._read(digest)) is not None and self._checked(digest, packed) else None

    def data(self, digest: str) -> bytes | None:
        """What is in it; None as above."""
        return None if (packed := self._read(digest)) is None else self._checked(digest, packed)

    def keep_only(self, digests: Iterable[str]) -> None:
        """Remove all others."""
        for digest in self._known() - set(digests):
            self._remove(digest)

    def _known(self) -> set[str]:
        if self._names is None:
            self._names = set(filter(is_digest, self._files.names(self.folder)))
        return self._names

    def _read(self, digest: str) -> bytes | None:
        if digest not in self._known():
            return None
        try:
            return self._files.read(self.folder / digest)
        except OSError:
            self._known().discard(digest)
            return None

    def _checked(self, digest: str, packed: bytes) -> bytes | None:
        data = _unpacked(digest, packed)
        if data is None:
            self._remove(digest)  # a disk that has lost something
        return data

    def _write(self, digest: str, packed: bytes) -> None:
        self._files.make_folder(self.folder)
        self._files.write(self.folder / digest, packed)  # a job is written down for good, and so is what it needs
        self._known().add(digest)

    def _remove(self, digest: str) -> None:
        self._known().discard(digest)
        with contextlib.suppress(OSError):
            self._files.remove(self.folder / digest)


def packed_part(data: bytes) -> bytes:
    """What its beginning shows cannot be made smaller is wrapped and no more: that is ten times as quick."""
    sample = data[:SAMPLE_BYTES]
    return zlib.compress(data, LEVEL if len(zlib.compress(sample, LEVEL)) < WORTH * len(sample) else 0)


def _unpacked(digest: str, packed: bytes) -> bytes | None:
    """What is in a part, if it is the one of this name; nobody can make us unpack more than a part."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, PART_BYTES + 1)
    except zlib.error:
        return None
    return data if len(data) <= PART_BYTES and unpacker.eof and digest_of(data) == digest else None
