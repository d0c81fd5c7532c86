"""Comma-separated files, read whole into columns; what does not fit is refused with file and line.

The readers of this layer parse text here and nowhere else. Each check runs over a column at once, because the price
history has 200,000 rows; only when something is wrong is the column walked again to name the line.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sublet.errors import BadInput, MissingData

__all__ = ["FloatArray", "IntArray", "Table", "read_table"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

GZIP_MAGIC = b"\x1f\x8b"  # the first bytes decide, not the name: files get renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of text, and the line in the file that each row came from."""

    source: str
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)

    def refusal(self, row: int, why: str, hint: str = "") -> BadInput:
        """The error to raise about one row."""
        return BadInput(self.source, why, line=self.lines[row], hint=hint)

    def check_names(self, name: str, *, may_be_empty: bool = False) -> None:
        """Refuse a column with something that is no name; each distinct text is looked at once."""
        column = self.columns[name]
        for text in set(column):
            if text != text.strip() or not text.isprintable() or not (text or may_be_empty):
                raise self.refusal(column.index(text), f"{name} is {text!r}, not a name")

    def number(self, name: str, row: int) -> float:
        """One finite number, or a refusal."""
        text = self.columns[name][row]
        value = _float(text)
        if not math.isfinite(value):
            raise self.refusal(row, f"{name} is {text!r}, not a finite number")
        return value

    def numbers(self, name: str, *, empty: float | None = None) -> FloatArray:
        """A column of finite numbers; an empty field becomes `empty`, or is refused where that is None."""
        column = self.columns[name]
        blanks = empty is not None and "" in column
        if blanks:
            column = [text or "0" for text in column]
        values = np.array(_convert(column, float, math.nan), dtype=np.float64)
        if not (np.isfinite(values).all() and _plain(column)):
            for row in range(len(self)):
                if self.columns[name][row] or not blanks:
                    self.number(name, row)
        if blanks:
            values[[row for row, text in enumerate(self.columns[name]) if not text]] = empty
        return values

    def wholes(self, name: str, *, low: int, high: int) -> IntArray:
        """A column of whole numbers, written without a decimal point, from `low` to `high`."""
        column = self.columns[name]
        values = _convert(column, int, low - 1)
        if not (low <= min(values, default=low) and max(values, default=high) <= high and _plain(column)):
            for row, (value, text) in enumerate(zip(values, column, strict=True)):
                if not (low <= value <= high and _plain(text)):
                    raise self.refusal(row, f"{name} is {text!r}, not a whole number from {low} to {high:,}")
        return np.array(values, dtype=np.int64)


def read_table(path: str | Path, required: Sequence[str], *, containing: Sequence[str] = ()) -> Table:
    """The columns `required` of a .csv or .csv.gz file; others are ignored.

    Lines without every word of `containing` are dropped before they are parsed: a filter that costs a tenth of parsing.
    """
    lines = _text(path).replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise BadInput(path, "the file is empty", hint="the first line must be " + ",".join(required))
    header = _parsed(path, lines[:1], [1])[0]
    for name in required:
        if header.count(name) != 1:
            found = "stands twice" if name in header else "is missing"
            raise BadInput(path, f"column {name} {found}", line=1, hint="the first line must be " + ",".join(required))
    if len(lines) == 1:
        raise BadInput(path, "the file has a header and no rows", hint="give a file with at least one row")
    numbers: Sequence[int] = range(2, len(lines) + 1)
    body = lines[1:]
    if containing:
        for word in containing:
            numbers = [number for number in numbers if word in lines[number - 1]]
        body = [lines[number - 1] for number in numbers]
    columns = _columns(path, body, numbers, width=len(header))
    return Table(source=str(path), columns={name: columns[header.index(name)] for name in required}, lines=numbers)


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")  # spreadsheets put a byte-order mark first
    except FileNotFoundError:
        raise MissingData(path, hint="give the path of a .csv or .csv.gz file that exists") from None
    except UnicodeDecodeError as error:
        raise BadInput(path, f"not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(path, f"damaged gzip data ({error})", hint="fetch the file again") from None
    except (OSError, ValueError) as error:  # a folder, no permission; a path with a zero byte
        raise BadInput(path, f"cannot be read ({error})") from None


def _columns(path: str | Path, lines: Sequence[str], numbers: Sequence[int], width: int) -> list[Sequence[str]]:
    """The fields of each column. Without quotes a split does it, at a third of the time of the csv module."""
    quoted = any('"' in line or "\r" in line for line in lines)
    rows = _parsed(path, lines, numbers) if quoted else []
    counts = [len(fields) for fields in rows] if quoted else [line.count(",") + 1 for line in lines]
    for row, count in enumerate(counts if set(counts) - {width} else ()):
        if count != width:
            raise BadInput(path, f"{count} fields where the header has {width}", line=numbers[row])
    if quoted:
        return list(zip(*rows, strict=True))
    fields = ",".join(lines).split(",") if lines else []
    return [fields[column::width] for column in range(width)]


def _parsed(path: str | Path, lines: Sequence[str], numbers: Sequence[int]) -> list[list[str]]:
    reader = csv.reader(lines, strict=True)
    rows: list[list[str]] = []
    try:
        rows.extend(reader)
    except csv.Error as error:
        raise BadInput(path, f"not comma-separated values ({error})", line=numbers[len(rows)]) from None
    if len(rows) != len(lines):  # a quoted field ran over several lines
        raise BadInput(path, "a line break inside quotes", hint="keep every row on one line")
    return rows


def _convert(column: Sequence[str], convert: Callable[[str], float], otherwise: float) -> list[float]:
    try:
        return list(map(convert, column))
    except (ValueError, OverflowError):
        return [_tried(text, convert, otherwise) for text in column]


def _tried(text: str, convert: Callable[[str], float], otherwise: float) -> float:
    try:
        return convert(text)
    except (ValueError, OverflowError):
        return otherwise


def _plain(texts: Sequence[str]) -> bool:
    """Python reads `1_0` and digits of other scripts as numbers; in a file they are typos."""
    joined = "".join(texts)
    return joined.isascii() and "_" not in joined


def _float(text: str) -> float:
    return _tried(text, float, math.nan) if _plain(text) else math.nan
