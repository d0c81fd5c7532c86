"""Which files of a folder travel: all that .gitignore and .subletignore do not leave out, as git reads such files.

Keys do not: where one would, all is refused (`keys`).

Files that never travel with a folder, wherever they lie in it: the keys of its owner, and those of a controller. A job
file that lies in a home directory would send all of that home to every node. A file or folder that is named in
`file_mounts` travels all the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from sublet.errors import BadInput, MissingExtra

__all__ = ["IGNORE_FILES", "may_be_key", "travelling_files"]

KEYS = frozenset({".ssh", ".aws", ".gnupg", ".netrc", ".azure", ".kube", ".git-credentials", ".pgpass", ".pypirc"})
KEYS_IN = frozenset({(".config", "gcloud"), (".config", "gh"), (".config", "rclone"), (".docker", "config.json")})
STATE = frozenset({"log.sqlite", "identity"})  # what a state directory has: the second is its authority's key
MAYBE = (".env", ".env.*", "*.env", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx")
MAYBE_ALSO = ("credentials", "credentials.json", "client_secret*.json", "*service*account*.json", ".npmrc", ".htpasswd")
FORMS = (".env.example", ".env.sample", ".env.template", ".env.dist")  # to be filled in
HINT = "leave it out by .subletignore; a job that needs a key has 'secrets', or 'file_mounts' that name it"
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
            raise BadInput(path, "is never sent: it has keys of yours", hint=HINT)
    if {path.name for path in found} >= STATE:
        raise BadInput(folder, "is never sent: it is a state directory, with the keys of its controller", hint=HINT)


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
