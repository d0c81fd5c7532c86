"""Files made of a clone, compared with what they were when the studies were written, and put where studies look."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sublet import data
from sublet.data.imports.artifact import Artifact
from sublet.data.imports.boa import BOA
from sublet.data.imports.pollux import PHILLY, POLLUX
from sublet.data.imports.sia import SIA
from sublet.data.imports.spot import PARCAE, SKYPILOT, SPOTHEDGE
from sublet.errors import BadInput, UnknownName

__all__ = ["ARTIFACTS", "Held", "State", "artifact_of", "digest", "expected", "held", "import_from"]

ARTIFACTS: Sequence[Artifact] = (SIA, POLLUX, SKYPILOT, SPOTHEDGE, BOA, PARCAE, PHILLY)
DIGESTS = Path(__file__).with_name("digests.csv")


class State(StrEnum):
    """Of a file that a study reads."""

    SHIPPED = "ships"
    HERE = "here"
    OTHER = "differs"  # it is there, and is not what the studies were written on
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An artifact, and what is here of it."""

    artifact: Artifact
    files: dict[str, State]

    def count(self, state: State) -> int:
        """So many files are in this state."""
        return sum(each is state for each in self.files.values())


def artifact_of(name: str) -> Artifact:
    """By its name; a typo gets a suggestion."""
    for artifact in ARTIFACTS:
        if artifact.name == name:
            return artifact
    raise UnknownName("artifact", name, [artifact.name for artifact in ARTIFACTS])


def expected(name: str) -> dict[str, str]:
    """The files of an artifact below the data folder, and the digest of the text of each."""
    rows = [line.split(",") for line in DIGESTS.read_text(encoding="utf-8").splitlines()[1:]]
    return {file: sha256 for of, file, sha256 in rows if of == name}


def digest(text: bytes) -> str:
    """Of what is in a file, whether it is compressed or not, and however its lines end."""
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()


def held(artifact: Artifact) -> Held:
    """What is here; every file that is here is read."""
    return Held(artifact=artifact, files={file: _state(file, of) for file, of in expected(artifact.name).items()})


def import_from(
    artifact: Artifact, clone: Path, into: Path, *, digests: Mapping[str, str]
) -> Iterator[tuple[str, State]]:
    """Convert a clone; each file as it is written. Nothing is written that is not what the studies were written on.

    What ships with Sublet is compared, and not written again.
    """
    if not clone.is_dir():
        raise BadInput(clone, "not a folder", hint="\n  then: ".join(artifact.clone_commands(str(clone))))
    for file, text in artifact.convert(clone):
        if digest(text.encode()) != digests.get(file):
            commit = f"git -C {clone} checkout {artifact.commit}"
            raise BadInput(clone, f"{file} made of it is not what it was at {artifact.commit[:9]}", hint=commit)
        if data.bundled(file).exists():
            yield file, State.SHIPPED
            continue
        path = into / file
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        packed = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
        part.write_bytes(packed)
        part.replace(path)  # a reader sees all of it or nothing
        yield file, State.HERE


def _state(file: str, of: str) -> State:
    if data.bundled(file).exists():
        return State.SHIPPED
    path = data.external() / file
    if not path.exists():
        return State.MISSING
    packed = path.read_bytes()
    try:
        text = gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (OSError, EOFError):
        return State.OTHER
    return State.HERE if digest(text) == of else State.OTHER
