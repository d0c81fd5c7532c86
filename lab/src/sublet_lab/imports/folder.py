"""Files made of a clone, compared with what they were when the studies were written, and put where studies look."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sublet import data
from sublet.errors import BadInput, UnknownName
from sublet_lab.imports.artifact import Artifact
from sublet_lab.imports.boa import BOA
from sublet_lab.imports.pollux import PHILLY, POLLUX
from sublet_lab.imports.sia import SIA
from sublet_lab.imports.spot import PARCAE, SKYPILOT, SPOTHEDGE

ARTIFACTS: Sequence[Artifact] = (SIA, POLLUX, SKYPILOT, SPOTHEDGE, BOA, PARCAE, PHILLY)
DIGESTS = Path(__file__).with_name("digests.csv")


class State(StrEnum):
    """The state of a file that a study reads."""

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
    """The digest of the content of a file, whether it is compressed or not, and however its lines end."""
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()


def held(artifact: Artifact) -> Held:
    """The files here; each of them is read."""
    return Held(artifact=artifact, files={file: _state(file, of) for file, of in expected(artifact.name).items()})


def import_from(artifact: Artifact, clone: Path, into: Path, *, digests: Mapping[str, str]) -> dict[str, State]:
    """Convert a clone: all of it, or nothing is written.

    Files that ship with Sublet are compared, and not written again.
    """
    if not clone.is_dir():
        raise BadInput(clone, "not a folder", hint="\n  then: ".join(artifact.clone_commands(str(clone))))
    made = _converted(artifact, clone, digests)
    states = {file: State.SHIPPED if data.bundled(file).exists() else State.HERE for file in made}
    _write_all(into, {file: made[file].encode() for file, state in states.items() if state is State.HERE})
    return states


def _converted(artifact: Artifact, clone: Path, digests: Mapping[str, str]) -> dict[str, str]:
    """The text of every file; refused where it is not what the studies were written on."""
    then, hint = f"at {artifact.commit[:9]}", artifact.checkout_command(str(clone))
    try:
        made = dict(artifact.convert(clone))
    except BadInput as error:
        steps = dict.fromkeys(step for step in (error.hint, hint) if step)
        raise BadInput(error.source, error.why, line=error.line, hint="; ".join(steps)) from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        why = f"not laid out as it was {then} ({type(error).__name__}: {error})"
        raise BadInput(clone, why, hint=hint) from None
    for file, text in made.items():
        if digest(text.encode()) != digests.get(file):
            raise BadInput(clone, f"{file} made of it is not what it was {then}", hint=hint)
    return made


def _write_all(into: Path, files: Mapping[str, bytes]) -> None:
    """All under temporary names first, then renamed; what fails before the first name leaves nothing behind."""
    parts = {into / file: (into / file).with_name(f".{Path(file).name}.part") for file in files}
    folders = {folder for path in parts for folder in (path.parent, *path.parent.parents)}
    new: list[Path] = []
    try:
        new += sorted((folder for folder in folders if not folder.exists()), reverse=True)  # inner ones first
        for file, text in files.items():
            path = into / file
            if path.is_dir():
                raise BadInput(path, "a folder where a file has to be", hint="move it away")
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        for path, part in parts.items():
            part.replace(path)  # a reader sees all of it or nothing
    except OSError as error:
        why = f"cannot be written ({error.strerror or error}): {error.filename or into}"
        raise BadInput(into, why, hint="set SUBLET_DATA to a folder that you may write to") from None
    finally:
        _tidy(parts.values(), new)


def _tidy(parts: Iterable[Path], new: Iterable[Path]) -> None:
    """Away with what has a temporary name, and with new folders that are empty."""
    for part in parts:
        with suppress(OSError):
            part.unlink()
    for folder in new:
        with suppress(OSError):
            folder.rmdir()


def _state(file: str, of: str) -> State:
    if data.bundled(file).exists():
        return State.SHIPPED
    path = data.external() / file
    try:
        if not path.exists():
            return State.MISSING
        packed = path.read_bytes()
        text = gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (OSError, EOFError, zlib.error):  # a folder, not ours to read, torn
        return State.OTHER
    return State.HERE if digest(text) == of else State.OTHER
