"""Printing answers: tables that never cut a number, and documents (JSON, YAML) that are nothing but that."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

import typer

from sublet.errors import MissingExtra

GAP = "  "
LEAST_TEXT = 16  # a column of words is not folded below this many letters, nor within a word


class Output(StrEnum):
    """How a verb answers."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


# Said once per command line (-o), heard wherever a document is printed: one for all, like NO_COLOR.
form: ContextVar[Output] = ContextVar("form", default=Output.JSON)


def print_document(answer: Mapping[str, Any]) -> None:
    """One document on standard output, in the form that the command line asked for."""
    text = json.dumps(answer, indent=2, allow_nan=False, ensure_ascii=False)
    if form.get() is Output.YAML:
        text = _yaml_from(text)
    typer.echo(text)


def print_line(answer: Mapping[str, Any]) -> None:
    """One of many documents, for what goes on and on: a line of JSON, or a YAML document with its `---`."""
    text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
    if form.get() is Output.YAML:
        text = "---\n" + _yaml_from(text)
    typer.echo(text)
    sys.stdout.flush()


def _yaml_from(text: str) -> str:
    """The same values, read back from JSON so that tuples and enumerations are plain."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML", "server") from None
    return str(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=120)).rstrip("\n")


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int]) -> None:
    """Columns side by side: text at the places `words`, numbers elsewhere.

    If the screen is too narrow text is folded, but for the first column: it holds names, to be copied.
    """
    widths = _widths(titles, rows, words)
    typer.echo(_bold(_lines(titles, widths, words)[0]))
    typer.echo(GAP.join(_rule() * width for width in widths))
    for row in rows:
        for line in _lines(row, widths, words):
            typer.echo(line)


def print_notes(notes: Sequence[str]) -> None:
    """Notes on a table, folded to the screen."""
    width = min(screen_width() or 120, 120)
    for note in notes:
        typer.echo(textwrap.fill(note, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))


def screen_width() -> int | None:
    """Letters across, from COLUMNS or the terminal; None when the output goes to a file or a pipe."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide the table would be without folding."""
    return sum(map(len, [GAP] * (len(titles) - 1))) + sum(_natural(titles, rows))


def command_line(context: typer.Context) -> str:
    """The command of the user, ready to be typed again."""
    return str(context.obj or context.command_path)


def _natural(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(titles, *rows, strict=True)]


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> list[int]:
    """Natural worker counts; what does not fit is taken from the widest column of words, letter by letter."""
    widths = _natural(titles, rows)
    screen = screen_width()
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - screen if screen else 0
    least = {
        place: max(
            LEAST_TEXT, *(len(word) for text in (titles[place], *(row[place] for row in rows)) for word in text.split())
        )
        for place in words
        if place and excess > 0
    }
    while excess > 0 and (loose := [place for place in least if widths[place] > least[place]]):
        widths[max(loose, key=lambda place: widths[place])] -= 1
        excess -= 1
    return widths  # rather too wide than cut


def _lines(row: Sequence[str], widths: Sequence[int], words: Sequence[int]) -> list[str]:
    cells = [
        textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""] if place in words else [text]
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    lines = []
    for level in range(max(map(len, cells))):
        parts = [
            (cell[level] if level < len(cell) else "").ljust(width)
            if place in words
            else (cell[level] if level < len(cell) else "").rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append(GAP.join(parts).rstrip())
    return lines


def _rule() -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return "─" if encoding.lower().startswith("utf") else "-"


def _bold(text: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else typer.style(text, bold=True)


def is_present(file: str) -> bool:
    """Whether `file`, named from the data folder, can be read here."""
    from sublet import data

    return data.bundled(file).exists() or (data.external() / file).exists()


def describe_place(file: str, *, bundled: bool) -> str:
    """Origin of its file, for a table."""
    if bundled:
        return "bundled"
    return "read from SUBLET_DATA" if is_present(file) else "read from SUBLET_DATA (absent)"
