"""A CSV file as rows of text, or a BadInput that says where it is broken. Nothing here knows what the columns mean."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import BadInput, MissingData

__all__ = ["MAX_BYTES", "Table", "table_from_bytes", "table_from_file"]

MAX_BYTES = 1 << 29  # 512 MiB of text is millions of jobs; more is a mistake or a decompression bomb
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The header, and the text of the rest."""

    source: str
    header: tuple[str, ...]
    text: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of every row that is not blank; each has as many fields as the header."""
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        width = len(self.header)
        try:
            next(reader)
            for row in reader:
                if len(row) != width:
                    if not row:
                        continue  # a blank line
                    why = f"{len(row)} fields, but the header names {width}"
                    raise BadInput(self.source, why, line=reader.line_num)
                yield reader.line_num, row
        except csv.Error as error:
            raise BadInput(self.source, f"not CSV: {error}", line=reader.line_num) from None


def table_from_file(path: Path) -> Table:
    """Read a plain or gzip-compressed CSV file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingData(path, hint="check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        raise BadInput(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix == ".gz" and not raw.startswith(GZIP_MAGIC):
        raise BadInput(path, "its name ends in .gz but it is not a gzip file", hint="rename it if it is plain CSV")
    return table_from_bytes(raw, str(path))


def table_from_bytes(raw: bytes, source: str) -> Table:
    """The same from memory; `source` is what error messages call it."""
    text = _decoded(_unpacked(raw, source), source)
    if not text.strip():
        raise BadInput(source, "the file is empty", hint="the first line must name the columns")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
    except csv.Error as error:
        raise BadInput(source, f"not CSV: {error}", line=1) from None
    return Table(source=source, header=tuple(name.strip() for name in header), text=text)


def _unpacked(raw: bytes, source: str) -> bytes:
    if raw.startswith(GZIP_MAGIC):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(source, f"broken gzip data: {error}", hint="fetch the file again") from None
    if len(raw) > MAX_BYTES:
        raise BadInput(source, f"larger than {MAX_BYTES >> 20} MiB", hint="split the file")
    return raw


def _decoded(raw: bytes, source: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(source, f"byte 0x{raw[error.start]:02x} is not UTF-8 text", line=line) from None
    nul = text.find("\0")
    if nul >= 0:
        raise BadInput(source, "a zero byte: this is not a text file", line=text.count("\n", 0, nul) + 1)
    return text
