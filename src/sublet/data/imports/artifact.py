"""One published artifact: where it is, under which terms, and what becomes of a clone of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import BadInput

__all__ = ["Artifact", "Made", "lines_of", "text_of"]

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
        """What brings it to a machine, as it was when the digests were taken."""
        branch = f"--branch {self.branch} " if self.branch else ""
        clone = f"git clone {branch}https://github.com/{self.repository} {folder}"
        return clone, f"git -C {folder} checkout {self.commit}"


def text_of(path: Path) -> str:
    """A file of the clone."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            path, f"not a file of the artifact: {error}", hint="give the folder of the whole clone"
        ) from None


def lines_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file of the clone, by column; empty lines are left out."""
    header, *rows = [line.split(",") for line in text_of(path).splitlines() if line]
    if bad := next((row for row in rows if len(row) != len(header)), None):
        raise BadInput(path, f"a row of {len(bad)} fields under {len(header)} columns: {','.join(bad)[:60]}")
    return [dict(zip(header, row, strict=True)) for row in rows]
