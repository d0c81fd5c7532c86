"""A state directory as a stream of bytes: what a controller needs to go on elsewhere, and nothing of its old place.

An archive (tar) goes in pieces, packed where that is worth it, each behind its length; after the last comes the SHA-256
of all of it. Neither end holds more than a piece in memory. Files that arrive are put together beside, and take their
place when all of it is there. If the way breaks, the large files that came whole are named next time, and not sent
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from sublet.errors import BadInput

ARRIVING = "anchor.arriving"
# Of the place, not of the run: the address, the holder of the lock, the laptop's record of its controller host.
STAYS = (
    "anchor",
    "anchor.new",
    "controller.json",
    "controller.lock",
    "fenced",
    "watchdog.log",
    "watchdog.lock",
    "nodes",
)
STAYS_TOO = ("token", "token.read", "start-failure.txt", "witness", "credentials.env", "desk.lock", ARRIVING)
STAYS_ALSO = ("keeper-troubles.json",)
LARGE = "checkpoints"  # the folder whose files do not change once they are there
OF_WORKERS = re.compile(rf"jobs/([^/]+)/{LARGE}/")  # which workers of this machine wrote
FRESH, LISTED = "anchor.new", ".parcel.json"
PIECE_BYTES = 1 << 18
SAMPLE_BYTES, WORTH = 4096, 0.95  # as `travel.content` has it
HEAD = struct.Struct(">IB")  # the length of a piece, and how it is packed
AS_IT_IS, PACKED, LAST = range(3)
BAD = "did not arrive whole"


def pack_state(
    state_dir: Path, instead: Mapping[str, str] | None = None, have: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """Pack the state of a stopped controller, piece by piece; `instead` are files as they are to be over there.

    `have` is what the other side has `staged`: of that, whatever is the same here is not sent.
    """
    whole = hashlib.sha256()
    for piece in _in_pieces(_archive(state_dir, instead or {}, have or {})):
        whole.update(piece)
        small = zlib.compress(piece, 1) if _packs(piece) else piece
        packed = len(small) < len(piece)
        yield HEAD.pack(len(small if packed else piece), PACKED if packed else AS_IT_IS) + (small if packed else piece)
    yield HEAD.pack(whole.digest_size, LAST) + whole.digest()


def staged(state_dir: Path) -> dict[str, str]:
    """Large files that came before the way broke, with their SHA-256."""
    folder = state_dir / FRESH
    paths = (path for path in sorted((folder / LARGE).rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in paths}


def unpack_state(source: IO[bytes], state_dir: Path, spare: Collection[str] = ()) -> None:
    """New files take the place of old ones; others stay, and so does `spare`."""
    fresh, arriving = state_dir / FRESH, Arriving(source)
    fresh.mkdir(parents=True, mode=0o700, exist_ok=True)
    for path in fresh.iterdir():
        if path.name != LARGE:  # it belongs to a stream that broke
            _remove(path)
    try:
        came = _extract(arriving, fresh)
        arriving.finish()
        _keep_only(fresh, came)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise BadInput("the state", f"{BAD} ({error})", hint="try again: nothing was changed") from None
    take_place(fresh, state_dir, spare)


def take_place(fresh: Path, state_dir: Path, spare: Collection[str] = ()) -> None:
    """All that is in `fresh`, which is no more then."""
    if (fresh / "log.sqlite").exists():
        for end in ("-wal", "-shm"):
            (state_dir / f"log.sqlite{end}").unlink(missing_ok=True)  # of another log than the one that comes
    for path in sorted(fresh.iterdir()):
        place = state_dir / path.name
        if path.name in spare and place.exists():
            continue
        if place.is_dir():
            shutil.rmtree(place)
        path.replace(place)
    shutil.rmtree(fresh)


class Arriving(io.RawIOBase):
    """The archive out of a stream of pieces, read like a file, with one piece in memory."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._source, self._whole = source, hashlib.sha256()
        self._rest, self._over = b"", False
        self.most = 0  # bytes that were held at any time

    def read(self, size: int = PIECE_BYTES) -> bytes:
        """As many, or fewer at the end. ValueError for a stream that is not what was sent."""
        while not self._rest and not self._over:
            self._rest = self._next()
            self.most = max(self.most, len(self._rest))
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def finish(self) -> None:
        """To the end: what it says must be so."""
        while self.read():
            pass

    def _next(self) -> bytes:
        size, kind = HEAD.unpack(self._exactly(HEAD.size))
        if size > PIECE_BYTES or kind > LAST:
            raise ValueError("no such piece")
        data = self._exactly(size)
        if kind == LAST:
            self._over = True
            if data != self._whole.digest():
                raise ValueError("it is not what was sent")
            return b""
        if kind == PACKED:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(data, PIECE_BYTES)
            if not unpacker.eof:
                raise ValueError("a piece is too long")
        self._whole.update(data)
        return data

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) < size:
            raise EOFError("it ends in the middle")
        return data


# ---------------------------------------------------------------------- there


def _archive(state_dir: Path, instead: Mapping[str, str], have: Mapping[str, str]) -> Iterator[bytes]:
    same = [name for name, digest in have.items() if _is_same(state_dir / name, digest)]
    for name, text in {LISTED: json.dumps(same), **instead}.items():
        yield from _entry(_info(name, len(text.encode()), 0o600), io.BytesIO(text.encode()))
    carried = {head.parent.name for head in (state_dir / LARGE).glob("*/HEAD")}
    for path in _files(state_dir, {*STAYS, *STAYS_TOO, *STAYS_ALSO, *instead}):
        name = str(path.relative_to(state_dir))
        if (match := OF_WORKERS.match(name)) and match[1] in carried:
            continue  # the same is among those that are carried: no node over there would see these
        if path.is_dir():
            info = _info(name, 0, path.stat().st_mode)
            info.type = tarfile.DIRTYPE
            yield info.tobuf(tarfile.PAX_FORMAT)
        elif name not in same:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                yield from _entry(_info(name, facts.st_size, facts.st_mode), file)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _files(folder: Path, without: Collection[str]) -> Iterator[Path]:
    """Files and folders; sockets and links belong to their place."""
    for path in sorted(folder.iterdir()):
        if path.name in without or path.name.startswith((".", "check-")) or path.is_symlink():
            continue
        if path.is_dir():
            yield path
            yield from _below(path)
        elif path.is_file():
            yield path


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield path
            yield from _below(path)
        elif path.is_file() and not path.is_symlink():
            yield path


def _info(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode & 0o777
    return info


def _entry(info: tarfile.TarInfo, file: IO[bytes]) -> Iterator[bytes]:
    yield info.tobuf(tarfile.PAX_FORMAT)
    left = info.size
    while left:
        data = file.read(min(left, PIECE_BYTES))
        if not data:
            raise BadInput(info.name, "became shorter while it was read", hint="see that it has no writer")
        left -= len(data)
        yield data
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def _in_pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of full length, but for the last: small files are many."""
    rest = bytearray()
    for part in parts:
        rest += part
        while len(rest) >= PIECE_BYTES:
            yield bytes(rest[:PIECE_BYTES])
            del rest[:PIECE_BYTES]
    if rest:
        yield bytes(rest)


def _packs(piece: bytes) -> bool:
    sample = piece[:SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) < WORTH * len(sample)


def _is_same(path: Path, digest: str) -> bool:
    with contextlib.suppress(OSError):
        return path.is_file() and _digest(path) == digest
    return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------- here


def _extract(arriving: Arriving, fresh: Path) -> set[str]:
    """The files that came, or were here already."""
    came = set[str]()
    with tarfile.open(fileobj=arriving, mode="r|") as archive:
        for entry in archive:
            if entry.name == LISTED and (listed := archive.extractfile(entry)) is not None:
                came |= set(json.loads(listed.read()))
                continue
            archive.extract(entry, fresh, filter="data")
            if entry.isfile():
                came.add(entry.name)
    return came


def _keep_only(fresh: Path, came: Collection[str]) -> None:
    """Files of an earlier stream that this one does not know go; those it counts on must be there."""
    found = {str(path.relative_to(fresh)): path for path in fresh.rglob("*") if path.is_file()}
    if missing := set(came) - found.keys():
        raise ValueError(f"{min(missing)} is not here")
    for name in found.keys() - set(came):
        found[name].unlink()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
