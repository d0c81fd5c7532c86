"""From a folder to the name by which nodes ask for it: every file into parts, within limits, and a manifest of them.

Keys do not: where one would, all is refused (`keys`).

Files that never travel with a folder, wherever they lie in it: the keys of its owner, and those of a controller. A job
file that lies in a home directory would send all of that home to every node. A file or folder that is named in
`file_mounts` travels all the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from sublet.errors import BadInput, MissingExtra
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
from sublet.runtime.jobs.spec import JobSpec

KEYS = frozenset({".ssh", ".aws", ".gnupg", ".netrc", ".azure", ".kube", ".git-credentials", ".pgpass", ".pypirc"})
KEYS_IN = frozenset({(".config", "gcloud"), (".config", "gh"), (".config", "rclone"), (".docker", "config.json")})
STATE = frozenset({"log.sqlite", "identity"})  # what a state directory has: the second is its authority's key
MAYBE = (".env", ".env.*", "*.env", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx")
MAYBE_ALSO = ("credentials", "credentials.json", "client_secret*.json", "*service*account*.json", ".npmrc", ".htpasswd")
FORMS = (".env.example", ".env.sample", ".env.template", ".env.dist")  # to be filled in
KEYS_HINT = "leave it out by .subletignore; a job that needs a key has 'secrets', or 'file_mounts' that name it"
IGNORE_FILES = (".gitignore", ".subletignore")  # the second has the last word
NEVER = frozenset({".git", "__pycache__"})
Rules = tuple[tuple[Path, Any], ...]
OWN_WORDS = "name it in .subletignore if no node needs it"


def _refuse_home(folder: Path, *, decided: bool) -> None:
    """BadInput for the home of the present user, and for the folders around it, unless it is `decided` what goes."""
    if not decided and Path.home().resolve().is_relative_to(folder):
        hint = (
            f"put the job's files into a folder of their own and name it in 'workdir', or write {folder}/.subletignore"
        )
        raise BadInput(folder, "has your home in it, and all of that would be sent to nodes", hint=hint)


def _refuse_keys(folder: Path, found: Collection[Path]) -> None:
    """BadInput if one of those that would travel from this folder has keys."""
    for path in found:
        if path.name in KEYS or (folder.name, path.name) in KEYS_IN:
            raise BadInput(path, "is never sent: it has keys of yours", hint=KEYS_HINT)
    if {path.name for path in found} >= STATE:
        raise BadInput(
            folder, "is never sent: it is a state directory, with the keys of its controller", hint=KEYS_HINT
        )


def may_be_key(path: str) -> bool:
    """By its name alone: such a file may as well be what a job needs, so that it is told, and sent."""
    name = PurePosixPath(path).name.lower()
    return name not in FORMS and any(fnmatchcase(name, pattern) for pattern in (*MAYBE, *MAYBE_ALSO))


def travelling_files(
    folder: Path, *, besides: Collection[Path] = (), whole: bool = False
) -> Iterator[tuple[str, Path]]:
    """(path below `folder`, where it is) of each; nothing below `besides`. A link is what it leads to, if that is here.

    With `whole`, nothing is left out: this very folder was named.

    BadInput for a link that leads out of the folder, or nowhere, for what cannot be read, and for keys.
    """
    root = _resolved(folder)
    _refuse_home(root, decided=not whole and (root / IGNORE_FILES[-1]).is_file())
    yield from _below(root, root, None if whole else (), (root,), {_resolved(path) for path in besides})


def _below(
    root: Path, folder: Path, rules: Rules | None, above: tuple[Path, ...], besides: set[Path]
) -> Iterator[tuple[str, Path]]:
    """`rules` are those of the folders above, the nearest last; `above` is where we came through, links followed."""
    rules = None if rules is None else (*rules, *_rules_of(folder))
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise BadInput(folder, f"cannot be read ({error.strerror}); {OWN_WORDS}") from None
    kinds = {path: path.is_dir() for path in found if _resolved(path) not in besides}
    kinds = {path: is_folder for path, is_folder in kinds.items() if not _is_ignored(path, rules, is_folder=is_folder)}
    _refuse_keys(folder, kinds)
    for path, is_folder in kinds.items():
        target = _inside(root, path) if path.is_symlink() else path
        if is_folder:
            if _resolved(target) in above:
                raise BadInput(path, f"is a link to a folder that it is in; {OWN_WORDS}")
            yield from _below(root, path, rules, (*above, _resolved(target)), besides)
        elif path.is_file():  # neither a socket nor a device
            yield _name(root, path), path


def _inside(root: Path, link: Path) -> Path:
    target = _resolved(link)
    if not target.exists():
        raise BadInput(link, f"is a link that leads nowhere; {OWN_WORDS}")
    if not target.is_relative_to(root):
        raise BadInput(link, f"is a link that leads out of {root}, to {target}; {OWN_WORDS}")
    return target


def _resolved(path: Path) -> Path:
    """Also of a link that leads to itself, for which `Path.resolve` has an error: that one is not there."""
    return Path(os.path.realpath(path))


def _name(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(path, f"has a name that is not text; {OWN_WORDS}") from None
    return name


def _rules_of(folder: Path) -> Iterator[tuple[Path, Any]]:
    for name in IGNORE_FILES:
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        yield folder, _spec(lines)


def _is_ignored(path: Path, rules: Rules | None, *, is_folder: bool) -> bool:
    """By the last rule that says something of it, that of the nearest folder first."""
    if rules is None or path.name in NEVER:
        return rules is not None
    for folder, spec in reversed(rules):
        said = spec.check_file(path.relative_to(folder).as_posix() + ("/" if is_folder else "")).include
        if said is not None:
            return bool(said)
    return False


def _spec(lines: list[str]) -> Any:
    try:
        from pathspec import GitIgnoreSpec
    except ModuleNotFoundError:
        raise MissingExtra("pathspec, which reads .gitignore and .subletignore,", "travel") from None
    return GitIgnoreSpec.from_lines(lines)


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
