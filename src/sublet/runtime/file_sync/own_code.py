"""Sublet itself, sent along: the controller's own code as one archive, named by what is in it.

So every machine runs the version of its controller, and needs no package index. An agent needs nothing besides; what
scripts need (torch, numpy) is the machine's own. It is sent over ssh, or fetched by a node that a cloud has started:

    {"node": "n3", "secret": "...", "code": DIGEST}     over TLS, to the port that agents come to
    the archive, and the end of the line; nothing where the controller does not have it, or does not know the node
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import sublet

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

REFUSED = 3  # what FETCH ends with where it need not be tried again
# On a node that has nothing but Python, in a folder with `token` and `authority`: HOST PORT NAME NODE DIGEST PLACE.
FETCH = f"""
import hashlib, io, json, os, socket, ssl, sys, tarfile
host, port, name, node, digest, place = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.minimum_version = ssl.TLSVersion.TLSv1_3
context.load_verify_locations("authority")
asked = json.dumps({{"node": node, "secret": open("token").read(), "code": digest}}).encode() + b"\\n"
with socket.create_connection((host, int(port)), 20) as plain:
    with context.wrap_socket(plain, server_hostname=name) as line:
        line.sendall(asked)
        data = b"".join(iter(lambda: line.recv(65536), b""))
if not data:
    print("the controller does not send its code to this node")
    sys.exit({REFUSED})
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("what arrived is not what was asked for")
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    archive.extractall(place + ".new")
os.rename(place + ".new", place)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A node's request for the code."""

    node: str
    secret: str
    code: str


def wanted_in(line: bytes) -> Wanted | None:
    """The request in a line; None where that is nothing of the kind."""
    with contextlib.suppress(ValueError, RecursionError):
        facts: Any = json.loads(line)
        names = ("node", "secret", "code")
        if isinstance(facts, dict) and all(isinstance(facts.get(name), str) for name in names):
            return Wanted(**{name: facts[name] for name in names})
    return None


@dataclass(frozen=True, slots=True)
class Parcel:
    """An archive and the digest of it."""

    data: bytes
    digest: str

    @property
    def place(self) -> str:
        """Its folder, below the home directory."""
        return f"{CACHE}/{self.digest[:32]}"


@cache
def own_code() -> Parcel:
    """The code of agents: the same bytes for the same code, whenever and wherever it is packed."""
    root = Path(sublet.__file__).parent
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    code = [name for name in names if name.parts[0] != DATA or len(name.parts) == 2]  # noqa: PLR2004 - data/KIND/...: none of ours
    return _packed({f"sublet/{name.as_posix()}": (root / name).read_bytes() for name in code})


@cache
def whole_code() -> Parcel:
    """The code of a controller: all that is installed here, and the names by which its parts are found."""
    root, here = Path(sublet.__file__).parent, metadata.distribution("sublet")
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    found = {f"sublet/{path.relative_to(root).as_posix()}": path.read_bytes() for path in files}
    facts = {name: here.read_text(name) or "" for name in ("METADATA", "entry_points.txt")}
    return _packed(found | {f"sublet-{here.version}.dist-info/{name}": text.encode() for name, text in facts.items()})


def _packed(files: Mapping[str, bytes]) -> Parcel:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=6) as pressed,
        tarfile.open(fileobj=pressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    data = packed.getvalue()
    return Parcel(data, hashlib.sha256(data).hexdigest())
