"""A copy of the script's folder for each run, so that the user's own files stay as they are."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LINKED", "SCRATCH", "Copy", "copied", "written"]

LINKED = ("venv", ".venv", "env", ".git", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
LEFT_OUT = ("__pycache__",)
SCRATCH = "sublet-rehearsal-"  # folders of rehearsals; a copy of the temporary folder would have its own in it
BESIDE = re.compile(rb"""["']\.\./([\w-][\w.-]*)""")
BIG_BYTES = 32 << 20  # a file: larger ones are linked
MOST_BYTES = 1 << 30  # all together: beyond that the rest is linked


@dataclass(frozen=True, slots=True)
class Copy:
    """`linked`: what is not a copy, but the user's own."""

    folder: Path
    digests: dict[str, str]
    linked: tuple[str, ...]


def copied(source: Path, folder: Path) -> Copy:
    """All that is small as files of its own; environments and what is big as links to the user's.

    Beside the folder lies in the same way what a Python file in it names as `../data`.
    """
    copy = _copied(source, folder)
    linked = list(copy.linked)
    for name in _named_beside(source):
        linked += [f"../{name}/{each}" for each in _copied(source.parent / name, folder.parent / name).linked]
    return Copy(folder, copy.digests, tuple(linked))


def _named_beside(source: Path) -> list[str]:
    """Folders next to this one, by the names that follow `../` in it."""
    texts = [path.read_bytes() for path in sorted(source.glob("*.py")) if path.is_file()]
    names = {found.decode() for text in texts for found in BESIDE.findall(text)} - {source.name}
    return sorted(name for name in names if (source.parent / name).is_dir())


def _copied(source: Path, folder: Path) -> Copy:
    digests, linked, copied_bytes = {}, [], 0
    folder.mkdir(parents=True)
    for place, folders, names in os.walk(source):
        here = folder / Path(place).relative_to(source)
        for name in list(folders):
            own = Path(place, name)
            left_out = name in LEFT_OUT or name.startswith(SCRATCH)
            if left_out or own.is_symlink() or name in LINKED:
                folders.remove(name)
                if not left_out:
                    (here / name).symlink_to(own.resolve())
                    linked.append(str(own.relative_to(source)))
            else:
                (here / name).mkdir()
        for name in names:
            own, there = Path(place, name), here / name
            if not own.is_file():
                continue
            size = own.stat().st_size
            if own.is_symlink() or size > BIG_BYTES or copied_bytes + size > MOST_BYTES:
                there.symlink_to(own.resolve())
                linked.append(str(own.relative_to(source)))
                continue
            shutil.copy2(own, there)
            copied_bytes += size
            digests[str(own.relative_to(source))] = _digest(there)
    return Copy(folder, digests, tuple(linked))


def written(copy: Copy) -> dict[str, bytes]:
    """The files that a run has made, or changed, there: names and contents."""
    found = {}
    for place, folders, names in os.walk(copy.folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            key = str(path.relative_to(copy.folder))
            if path.is_file() and not path.is_symlink() and copy.digests.get(key) != _digest(path):
                found[key] = path.read_bytes()
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
