"""One published artifact: where it is, under which terms, and what becomes of a clone of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.data.csvfile import read_columns
from sublet.errors import BadInput

Made = tuple[str, str]  # a file below the data folder, and its text as CSV


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A repository at one commit; `convert` reads a clone of it and makes the files of the table of digests."""

    name: str
    repository: str
    commit: str
    licence: str
    gives: str  # what one cannot run without it
    convert: Callable[[Path], Iterator[Made]]
    branch: str = ""

    def clone_commands(self, folder: str) -> tuple[str, str]:
        """The commands that bring it to a machine, as it was when the digests were taken."""
        branch = f"--branch {self.branch} " if self.branch else ""
        clone = f"git clone {branch}https://github.com/{self.repository} {folder}"
        return clone, self.checkout_command(folder)

    def checkout_command(self, folder: str) -> str:
        """The command that makes a clone as it was then."""
        return f"git -C {folder} checkout {self.commit}"


def text_of(path: Path) -> str:
    """A file of the clone."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            path, f"not a file of the artifact: {error}", hint="give the folder of the whole clone"
        ) from None


def json_of(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """A document of the clone that has these keys."""
    try:
        document = json.loads(text_of(path))
    except ValueError as error:
        raise BadInput(path, f"not JSON: {error}") from None
    if not isinstance(document, dict) or not set(keys) <= set(document):
        raise BadInput(path, f"not a document with {', '.join(keys)}")
    return document


def lines_of(
    path: Path, words: Sequence[str], *, numbers: Sequence[str] = (), counts: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The rows of a CSV file of the clone: these columns as text, of which numbers and whole numbers can be read."""
    table = read_columns(text_of(path).encode(), (*words, *numbers, *counts), source=str(path), forgiving=True)
    for name in numbers:
        table.floats(name)
    for name in counts:
        table.ints(name)
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*table.columns.values(), strict=True)]
