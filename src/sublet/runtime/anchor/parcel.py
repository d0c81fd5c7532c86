"""A state directory as one archive: what a controller needs to go on elsewhere, and nothing of its old place."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

from sublet.errors import BadInput

__all__ = ["pack_state", "unpack_state"]

# Of the place, not of the run: who listens where, who holds the lock, what a laptop knows of its anchor.
STAYS = ("anchor", "anchor.new", "controller.json", "controller.lock", "fenced", "keeper.log", "keeper.lock", "nodes")
STAYS_TOO = ("token", "token.read", "start-failure.txt", "witness", "credentials.env")


def pack_state(state_dir: Path, instead: Mapping[str, str] | None = None) -> bytes:
    """Of a controller that does not run; `instead` are files as they are to be over there."""
    packed, other = io.BytesIO(), instead or {}
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(state_dir.iterdir()):
            if path.name not in (*STAYS, *STAYS_TOO, *other) and not path.name.startswith((".", "check-")):
                archive.add(path, path.name, filter=_plain)
        for name, text in other.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders; sockets and links belong to their place."""
    return entry if entry.isfile() or entry.isdir() else None


def unpack_state(data: bytes, state_dir: Path, spare: Collection[str] = ()) -> None:
    """What is in it takes the place of what is there; what the archive does not have stays, and so does `spare`."""
    fresh = state_dir / "anchor.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(fresh, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput("the state", f"did not arrive whole ({error})", hint="try again: nothing was changed") from None
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
