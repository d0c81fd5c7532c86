"""Which files of a folder travel: all that .gitignore and .subletignore do not leave out, as git reads such files.

Keys do not: where one would, all is refused (`keys`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, MissingExtra
from sublet.runtime.file_sync.keys import refuse_home, refuse_keys

__all__ = ["IGNORE_FILES", "travelling_files"]

IGNORE_FILES = (".gitignore", ".subletignore")  # the second has the last word
NEVER = frozenset({".git", "__pycache__"})
Rules = tuple[tuple[Path, Any], ...]
OWN_WORDS = "name it in .subletignore if no node needs it"


def travelling_files(
    folder: Path, *, besides: Collection[Path] = (), whole: bool = False
) -> Iterator[tuple[str, Path]]:
    """(path below `folder`, where it is) of each; nothing below `besides`. A link is what it leads to, if that is here.

    With `whole`, nothing is left out: this very folder was named.

    BadInput for a link that leads out of the folder, or nowhere, for what cannot be read, and for keys.
    """
    root = _resolved(folder)
    refuse_home(root, decided=not whole and (root / IGNORE_FILES[-1]).is_file())
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
    refuse_keys(folder, kinds)
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
