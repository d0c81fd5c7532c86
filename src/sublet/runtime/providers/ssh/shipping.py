"""Sublet itself, sent along: the controller's own code as one archive, named by what is in it.

So every machine runs the version of its controller, and needs no package index. What other packages an agent needs
(torch, numpy, cryptography) are the machine's own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sublet

__all__ = ["CACHE", "LOOK", "UNPACK", "Parcel", "own_code"]

CACHE = ".cache/sublet/code"  # below the home directory over there
DATA = "data"  # traces and prices: no agent reads them

# What runs over there before there is any Sublet: whether the code is there, and how it comes.
LOOK = "import os, sys; print(int(os.path.isdir(os.path.join(os.path.expanduser('~'), sys.argv[1]))))"
UNPACK = """
import hashlib, io, os, shutil, sys, tarfile, tempfile
place, digest = os.path.join(os.path.expanduser("~"), sys.argv[1]), sys.argv[2]
data = sys.stdin.buffer.read()
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("what arrived is not what was sent")
os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
new = tempfile.mkdtemp(dir=os.path.dirname(place))
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    archive.extractall(new)
try:
    os.rename(new, place)
except OSError:
    shutil.rmtree(new)
    if not os.path.isdir(place):
        raise
"""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An archive and the digest of it."""

    data: bytes
    digest: str

    @property
    def place(self) -> str:
        """Where it is unpacked, below the home directory."""
        return f"{CACHE}/{self.digest[:32]}"


@cache
def own_code() -> Parcel:
    """The same bytes for the same code, whenever and wherever it is packed."""
    root = Path(sublet.__file__).parent
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=6) as pressed,
        tarfile.open(fileobj=pressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in sorted(root.rglob("*.py")):
            within = path.relative_to(root)
            if within.parts[0] == DATA and len(within.parts) > 2:  # noqa: PLR2004 - data/KIND/...: no code of ours
                continue
            entry = tarfile.TarInfo(f"sublet/{within.as_posix()}")
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    data = packed.getvalue()
    return Parcel(data, hashlib.sha256(data).hexdigest())
