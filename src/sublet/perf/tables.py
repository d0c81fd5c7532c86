"""Reads the measured tables, refusing any row that cannot be: file and line are in the error.

>>> table = read_profile("gavel-simulation")
>>> float(table.rows(model="ResNet-18", gpu="V100", gpus=1).columns["steps_per_s"].max())
32.3534
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sublet.data import locate
from sublet.errors import BadInput, UnknownName
from sublet.perf.profiles import PROFILES, Column, Profile, profile

__all__ = ["PROFILES", "Profile", "ProfileTable", "profile", "read_profile", "read_table"]

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileTable:
    """A table by columns. The arrays are read-only, of equal length, and hold only what the schema allows."""

    name: str
    columns: Mapping[str, Array]
    source: str
    licence: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, **equal: object) -> ProfileTable:
        """The rows whose columns equal these values, in file order: `rows(model="bert", gpus=4)`."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            keep &= np.asarray(self._column(name) == value)
        columns = {name: _sealed(column[keep]) for name, column in self.columns.items()}
        return ProfileTable(name=self.name, columns=MappingProxyType(columns), source=self.source, licence=self.licence)

    def floats(self, name: str) -> npt.NDArray[np.float64]:
        """A numeric column as floating point."""
        return self._column(name).astype(np.float64)

    def texts(self, name: str) -> list[str]:
        """A column as text."""
        return [str(value) for value in self._column(name).tolist()]

    def _column(self, name: str) -> Array:
        if name not in self.columns:
            raise UnknownName(f"column of {self.name}", name, self.columns)
        return self.columns[name]


def read_profile(name: str) -> ProfileTable:
    """The table registered as `name`, read once. MissingData says where an unbundled one is looked for."""
    entry = profile(name)
    return _read_once(entry, locate(f"profiles/{entry.file}"))


def read_table(entry: Profile, path: Path) -> ProfileTable:
    """A file with the columns of `entry` (more are ignored), gzipped if its name ends in `.gz`."""
    lines, header, rows = _read_rows(path)
    for name in header:
        if header.count(name) > 1:
            raise BadInput(path, f"column {name!r} appears twice", line=1)
    columns: dict[str, Array] = {}
    by_name = dict(zip(header, zip(*rows, strict=True), strict=True))
    for column in entry.columns:
        if column.name not in by_name:
            raise BadInput(path, f"column {column.name!r} is missing", line=1, hint=f"it has {', '.join(header)}")
        columns[column.name] = _sealed(_converted(path, lines, column, by_name[column.name]))
    return ProfileTable(name=entry.name, columns=MappingProxyType(columns), source=entry.source, licence=entry.licence)


@cache
def _read_once(entry: Profile, path: Path) -> ProfileTable:
    return read_table(entry, path)


def _read_rows(path: Path) -> tuple[list[int], list[str], list[list[str]]]:
    """Line numbers, header and rows, each row as long as the header."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        reader = csv.reader(io.StringIO(text), strict=True)
        numbered = [(reader.line_num, row) for row in reader if row]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(path, f"it cannot be read as CSV ({error})") from error
    if not numbered:
        raise BadInput(path, "the file is empty")
    header = numbered[0][1]
    for line, row in numbered:
        if len(row) != len(header):
            raise BadInput(path, f"{len(row)} fields where the header has {len(header)}", line=line)
    if len(numbered) == 1:
        raise BadInput(path, "there is a header but no row")
    return [line for line, _ in numbered[1:]], header, [row for _, row in numbered[1:]]


def _converted(path: Path, lines: Sequence[int], column: Column, fields: Sequence[str]) -> Array:
    """One column as an array; the first field that breaks its kind is named with its line."""
    empty = [index for index, field in enumerate(fields) if not field]
    if empty and not column.optional:
        raise BadInput(path, f"{column.name} is empty", line=lines[empty[0]])
    if column.kind == "text":
        return np.array(fields, dtype=np.str_)
    whole = column.kind in {"count", "index"}
    read = int if whole else float
    try:
        array = np.array([read(field) if field else np.nan for field in fields], np.int64 if whole else np.float64)
    except (ValueError, OverflowError):
        array = np.array([])
    good = _allowed(column.kind, array) if len(array) else np.zeros(len(fields), dtype=bool)
    good[empty] = True
    if good.all():
        return array
    at = next(index for index, field in enumerate(fields) if field and not _field_allowed(column.kind, read, field))
    raise BadInput(path, f"{column.name} is {fields[at]!r}, which is not {_PLAIN[column.kind]}", line=lines[at])


def _field_allowed(kind: str, read: type[int | float], field: str) -> bool:
    try:
        return bool(_allowed(kind, np.array([read(field)], np.int64 if read is int else np.float64))[0])
    except (ValueError, OverflowError):
        return False


def _allowed(kind: str, array: Array) -> npt.NDArray[np.bool_]:
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    if kind in {"count", "positive"}:
        return finite & (values > 0)
    if kind in {"index", "nonneg"}:
        return finite & (values >= 0)
    return finite


def _sealed(array: Array) -> Array:
    array.flags.writeable = False
    return array


_PLAIN = {
    "count": "a whole number of at least 1",
    "index": "a whole number of at least 0",
    "positive": "a finite number above 0",
    "nonneg": "a finite number of at least 0",
    "number": "a finite number",
}
