"""The measured tables as arrays, checked against their schema: a row that cannot be is refused by file and line.

>>> table = read_profile("gavel-simulation")
>>> float(table.rows(model="ResNet-18", gpu="V100", gpus=1).columns["steps_per_s"].max())
32.3534
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sublet.data import locate
from sublet.data.csvfile import Bounds, TextTable, read_columns
from sublet.errors import UnknownName
from sublet.perf.profiles import Column, Profile, profile
from sublet.solve.arrays import Floats

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProfileTable:
    """A table by columns. The arrays are read-only, of equal length, and hold only what the schema allows."""

    name: str
    columns: Mapping[str, Array]
    source: str
    licence: str

    def __repr__(self) -> str:
        return f"ProfileTable(name={self.name!r}, rows={len(self)})"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, **equal: object) -> ProfileTable:
        """The rows whose columns equal these values, in file order: `rows(model="bert", gpus=4)`."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            keep &= np.asarray(self._column(name) == value)
        columns = {name: _make_readonly(column[keep]) for name, column in self.columns.items()}
        return ProfileTable(name=self.name, columns=MappingProxyType(columns), source=self.source, licence=self.licence)

    def floats(self, name: str) -> Floats:
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
    """A file with the columns of `entry`; more are ignored."""
    table = read_columns(path, [column.name for column in entry.columns])
    columns = {column.name: _make_readonly(_array(table, column)) for column in entry.columns}
    return ProfileTable(name=entry.name, columns=MappingProxyType(columns), source=entry.source, licence=entry.licence)


@cache
def _read_once(entry: Profile, path: Path) -> ProfileTable:
    return read_table(entry, path)


def _array(table: TextTable, column: Column) -> Array:
    if column.kind == "text":
        texts = table.columns[column.name]
        if not column.optional and "" in texts:
            raise table.wrong(column.name, texts.index(""), "a text")
        return np.array(texts, dtype=np.str_)
    if column.kind in {"count", "index"}:
        return table.ints(column.name, _BOUNDS[column.kind])
    return table.floats(column.name, _BOUNDS[column.kind], empty=math.nan if column.optional else None)


def _make_readonly(array: Array) -> Array:
    array.flags.writeable = False
    return array


_BOUNDS = {
    "count": Bounds(least=1),
    "index": Bounds(least=0),
    "positive": Bounds(above=0),
    "nonneg": Bounds(least=0),
    "number": Bounds(),
}
