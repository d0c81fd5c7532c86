"""From a folder to the name by which nodes ask for it: every file into parts, within limits, and a manifest of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from sublet.errors import BadInput
from sublet.machine.files import Files
from sublet.machine.remote import is_remote
from sublet.runtime.file_sync.content import (
    PART_BYTES,
    RUNS,
    Content,
    Entry,
    entries_from,
    in_parts,
    names_in,
    write_manifest,
)
from sublet.runtime.file_sync.ignoring import may_be_key, travelling_files
from sublet.runtime.jobs.spec import JobSpec

__all__ = [
    "LARGEST_FILE",
    "MOST_BYTES",
    "MOST_FILES",
    "file_notes",
    "local_among",
    "pack",
    "pack_texts",
    "packed_names",
    "tracker_notes",
    "travelling",
]

NAMES = {"tensorboard": "TensorBoard", "wandb": "Wandb"}  # those that keep files; MLflow's may be a server
IMPORTED = re.compile(r"^\s*(?:from|import)\s+sublet\.integrations(?:\.(\w+)|\s+import\s+([\w ,]+))", re.MULTILINE)
KEYS_NAMED = 5  # of those that may be keys
MOST_FILES = 20_000
MOST_BYTES = 1 << 30
LARGEST_FILE = 256 << 20  # a node puts one together at a time, and hears nothing meanwhile
NAMED = 3  # of the largest, in a refusal
OWNERS = 0o600  # scripts write into their directory, so its owner may; others may what they may here, and never write
HINT = "leave out what no node needs by .subletignore, and let the job load large data itself, from where they lie"


def tracker_notes(spec: JobSpec, files: Files) -> list[str]:
    """Notes on its trackers; nothing where a folder of the job's goes back to a bucket by itself."""
    script = next((word for word in spec.argv if word.endswith(".py")), None)
    if script is None or spec.kept_mounts:
        return []
    try:
        text = files.read(Path(spec.cwd) / script).decode(errors="replace")
    except OSError:
        return []  # it is the nodes' own
    words = {
        word for found in IMPORTED.finditer(text) for group in found.groups("") for word in re.split(r"\W+", group)
    }
    return [
        f"{NAMES[name]} of {script} writes into a folder, and these nodes share no disk: a run would end with its node."
        f" Give it a folder of a bucket (file_mounts with mode: MOUNT), or of a network disk"
        for name in sorted(NAMES.keys() & words)
    ]


def file_notes(spec: JobSpec, names: Iterable[str]) -> list[str]:
    """`names` are those that its files have on a node."""
    stay = [
        f"{Path(path).name} stays on this machine: secrets are written in it. Without values (secrets: {{NAME: }}) they"
        f" come from your environment, and it travels as other files do"
        for path in spec.unsent
        if Path(path).is_relative_to(spec.cwd)
    ]
    return [*stay, *_of_keys(spec, names)]


def _of_keys(spec: JobSpec, names: Iterable[str]) -> list[str]:
    meant = {str(PurePosixPath(there)) for there in spec.mounts}  # a file that was named by itself
    found = sorted(name for name in names if name not in meant and may_be_key(name))
    if not found:
        return []
    more = f" and {len(found) - KEYS_NAMED} more" if len(found) > KEYS_NAMED else ""
    shown = ", ".join(found[:KEYS_NAMED])
    return [f"warning: {shown}{more} may hold keys, and go to every node; name in .subletignore what is to stay"]


def pack(content: Content, folder: Path, mounts: Mapping[str, Path], *, besides: Collection[Path] = ()) -> str:
    """The name of all that travels of a folder, with `mounts`: files and folders by where a node is to find them.

    A folder that is not here is the nodes' own, of their image: "" if nothing else travels.
    Waits for the disk: call it in a thread.
    """
    if not folder.is_dir() and not mounts:
        return ""
    found = travelling(folder, mounts, besides=besides)
    return write_manifest(content, [_entry(content, name, path) for name, path in found.items()])


def local_among(mounts: Mapping[str, str]) -> dict[str, Path]:
    """Those that travel with a job's files; the others are brought from buckets, by nodes."""
    return {there: Path(source) for there, source in mounts.items() if not is_remote(source)}


def travelling(folder: Path, mounts: Mapping[str, Path], *, besides: Collection[Path] = ()) -> dict[str, Path]:
    """The files that would be packed, by their names over there; BadInput where keys or too much is among them."""
    found = dict(travelling_files(folder, besides=besides)) if folder.is_dir() else {}
    for there, source in mounts.items():
        found |= _mounted(there, source, besides)
    sizes = {name: path.stat().st_size for name, path in found.items()}
    _refuse_too_much(folder, [(size, name) for name, size in sizes.items()])
    return found


def _mounted(there: str, source: Path, besides: Collection[Path]) -> dict[str, Path]:
    place = PurePosixPath(there)
    if source.is_file():
        return {str(place): source}
    return {str(place / name): path for name, path in travelling_files(source, besides=besides, whole=True)}


def pack_texts(content: Content, texts: Mapping[str, bytes]) -> str:
    """The same, of files that lie nowhere: their contents by path."""
    return write_manifest(
        content,
        [
            Entry(path=path, parts=tuple(map(content.add, in_parts(data))), size_bytes=len(data))
            for path, data in texts.items()
        ],
    )


def packed_names(content: Content, root: str) -> list[str]:
    """Names of the files of a manifest; none where there is no manifest, or none that can be read."""
    try:
        parts = [content.data(name) or b"" for name in names_in(content.data(root) or b"")]
        return [entry.path for entry in entries_from(b"".join(parts))]
    except BadInput:
        return []


def _entry(content: Content, name: str, path: Path) -> Entry:
    parts, size_bytes = [], 0
    try:
        mode = path.stat().st_mode & RUNS | OWNERS
        for data in _parts_of(path):
            parts.append(content.add(data))
            size_bytes += len(data)
    except OSError as error:
        raise BadInput(path, f"cannot be read, or kept for nodes ({error.strerror})") from None
    return Entry(path=name, parts=tuple(parts), size_bytes=size_bytes, mode=mode)


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PART_BYTES):
            yield data


def _refuse_too_much(folder: Path, found: Iterable[tuple[int, str]]) -> None:
    largest = sorted(found, reverse=True)
    total = sum(size for size, _ in largest)
    what = ""
    if len(largest) > MOST_FILES:
        what = f"{len(largest):,} files, and at most {MOST_FILES:,} travel to a node"
    elif total > MOST_BYTES:
        what = f"{_mb(total)}, and at most {_mb(MOST_BYTES)} travel to a node"
    elif largest and largest[0][0] > LARGEST_FILE:
        what = f"a file of {_mb(largest[0][0])}, and at most {_mb(LARGEST_FILE)} travel in one"
    if what:
        named = ", ".join(f"{name} ({_mb(size)})" for size, name in largest[:NAMED])
        raise BadInput(folder, f"holds {what}; the largest are {named}", hint=HINT)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
