r"""Comma-separated files, read whole into columns of text; what does not fit is refused with file and line.

All layers read such files here. A column becomes numbers at once, because a price history has 200,000 rows; only when
something is wrong is it walked again to name the line.

>>> table = read_columns(b"zone,gpus\neast,4\nwest,2\n", ("gpus",), source="example")
>>> table.ints("gpus", Bounds(least=1)).tolist()
[4, 2]
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import operator
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sublet.errors import BadInput, MissingData

MAX_BYTES = 1 << 29  # 512 MiB of text is millions of rows; more is a mistake or a decompression bomb
GZIP_MAGIC = b"\x1f\x8b"  # the first bytes decide, not the name: files get renamed
COMMA, NUL = ",", "\0"  # between the fields of a line; NUL where a field may hold a comma, for no text has a NUL in it
MOST_SHOWN = 60  # characters of a bad field that are worth reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The numbers that a column may hold; its text is what an error says is allowed. NaN and infinity never are."""

    least: float = -math.inf  # give this or `above`
    above: float = -math.inf
    most: float = math.inf
    whole: bool = False  # no fraction, however it is written: 8, 8.0 or 8e0

    def __str__(self) -> str:
        what = "a whole number" if self.whole else "a finite number"
        least, above, most = (_figure(limit) for limit in (self.least, self.above, self.most))
        if least and most:
            return f"{what} from {least} to {most}"
        low = f" of at least {least}" if least else f" above {above}" if above else ""
        return what + low + (" and" if low and most else "") + (f" at most {most}" if most else "")

    def hold(self, values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the values are inside."""
        inside = np.isfinite(values) & (values >= self.least) & (values > self.above) & (values <= self.most)
        return inside & (values == np.floor(values)) if self.whole else inside


ANY = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTable:
    """Columns of text, and the line in the file that each row starts on."""

    source: str
    columns: Mapping[str, Sequence[str]] = field(repr=False)
    lines: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.lines)

    def refusal(self, row: int, why: str, hint: str = "") -> BadInput:
        """The error to raise about one row."""
        return BadInput(self.source, why, line=self.lines[row], hint=hint)

    def wrong(self, name: str, row: int, allowed: str) -> BadInput:
        """The error to raise about one field."""
        text = self.columns[name][row]
        shown = text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
        return self.refusal(row, f"{name} is {shown!r}, not {allowed}")

    def check_names(self, name: str, *, may_be_empty: bool = False) -> None:
        """Refuse a column with something that is no name; each distinct text is looked at once."""
        column = self.columns[name]
        for text in set(column):
            if text != text.strip() or not text.isprintable() or not (text or may_be_empty):
                raise self.wrong(name, column.index(text), "a name: printable text without white space around it")

    def floats(self, name: str, bounds: Bounds = ANY, *, empty: float | None = None) -> npt.NDArray[np.float64]:
        """A column of numbers; an empty field becomes `empty`, or is refused where that is None."""
        column = self.columns[name]
        blank = empty is not None and "" in column
        texts = [text or "nan" for text in column] if blank else column
        try:
            values = np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            raise self._first_wrong(name, float, bounds, may_be_empty=blank) from None
        good = bounds.hold(values)
        if blank:
            blank_R = np.fromiter(map(operator.not_, column), np.bool_, len(column))  # R rows
            good |= blank_R
            values[blank_R] = empty
        if not (good.all() and _is_plain("".join(column))):
            raise self._first_wrong(name, float, bounds, may_be_empty=blank)
        return values

    def ints(self, name: str, bounds: Bounds = ANY) -> npt.NDArray[np.int64]:
        """A column of whole numbers below 2**63, written without a decimal point or an exponent."""
        column = self.columns[name]
        try:
            values = np.fromiter(map(int, column), np.int64, len(column))
            if bounds.hold(values).all() and _is_plain("".join(column)):
                return values
        except (ValueError, OverflowError):
            pass
        raise self._first_wrong(name, int, replace(bounds, whole=True))

    def _first_wrong(
        self, name: str, read: type[int | float], bounds: Bounds, *, may_be_empty: bool = False
    ) -> BadInput:
        for row, text in enumerate(self.columns[name]):
            if (text or not may_be_empty) and not (_is_plain(text) and _holds(bounds, read, text)):
                return self.wrong(name, row, str(bounds) + ("" if _is_plain(text) else ", in plain digits"))
        return BadInput(self.source, f"{name} cannot be read as numbers")  # not reached: one of them was refused above


def read_columns(
    file: str | Path | bytes,
    required: Sequence[str],
    *,
    source: str = "",
    known: Sequence[str] = (),
    containing: Sequence[str] = (),
    forgiving: bool = False,
    row_is: str = "row",
) -> TextTable:
    """The columns `required` of a file, or of what a file would hold; plain or gzip-compressed.

    Other columns are ignored, unless `known` names all that there may be: those are then read as far as they are there,
    and any other is refused. Lines without every word of `containing` are dropped before they are parsed: a filter that
    costs a tenth of parsing. `forgiving` is for files that people write: blank lines are skipped, a lone carriage
    return ends a line, and names in the header may have white space around them.

    In errors the file is called `source` (its path, unless stated) and a row `row_is`.
    """
    source = source or ("bytes" if isinstance(file, bytes) else str(file))
    text = _text(file if isinstance(file, bytes) else _raw(file), source)
    text = text.replace("\r\n", "\n")
    if forgiving:
        text = text.replace("\r", "\n")
    numbers, lines, separator = _lines(text, source, forgiving=forgiving)
    header = [name.strip() if forgiving else name for name in lines[0].split(separator)]
    _check_header(header, required, known, source)
    if len(lines) == 1:
        raise BadInput(source, f"there is a header but no {row_is}", hint=f"give a file with at least one {row_is}")
    numbers, lines = numbers[1:], lines[1:]
    for word in containing:
        kept = [row for row, line in enumerate(lines) if word in line]
        numbers, lines = [numbers[row] for row in kept], [lines[row] for row in kept]
    width = len(header)
    _check_widths(lines, numbers, separator, width, source)
    fields = separator.join(lines).split(separator) if lines else []
    wanted = [name for name in header if name in known] if known else required
    columns = {name: fields[header.index(name) :: width] for name in wanted}
    return TextTable(source=source, columns=columns, lines=numbers)


def _raw(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingData(path, hint="give the path of a .csv or .csv.gz file that exists") from None
    except (OSError, ValueError) as error:  # a folder, no permission; a path with a zero byte
        raise BadInput(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if str(path).endswith(".gz") and not raw.startswith(GZIP_MAGIC):
        raise BadInput(path, "its name ends in .gz but it is not a gzip file", hint="rename it if it is plain CSV")
    return raw


def _text(raw: bytes, source: str) -> str:
    if raw.startswith(GZIP_MAGIC):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(source, f"broken gzip data: {error}", hint="fetch the file again") from None
    if len(raw) > MAX_BYTES:
        raise BadInput(source, f"larger than {MAX_BYTES >> 20} MiB", hint="split the file")
    try:
        text = raw.decode("utf-8-sig")  # spreadsheets put a byte-order mark first
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        why = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        raise BadInput(source, why, line=line, hint="save the file as UTF-8") from None
    nul = text.find(NUL)
    if nul >= 0:
        raise BadInput(source, "a zero byte: this is not a text file", line=text.count("\n", 0, nul) + 1)
    if not text or text.isspace():
        raise BadInput(source, "the file is empty", hint="the first line must name the columns")
    return text


def _lines(text: str, source: str, *, forgiving: bool) -> tuple[Sequence[int], list[str], str]:
    """Line numbers, the lines that are not blank, and what separates their fields.

    Without quotes the lines are taken as they are, at a third of the time of the csv module.
    """
    if '"' in text or "\r" in text:
        return (*_quoted_lines(text, source, forgiving=forgiving), NUL)
    lines = text.removesuffix("\n").split("\n")
    if "" not in lines:
        return range(1, len(lines) + 1), lines, COMMA
    blank = lines.index("") + 1
    if blank == 1 or not forgiving:
        raise BadInput(source, "the line is blank", line=blank)
    return [number for number, line in enumerate(lines, 1) if line], [line for line in lines if line], COMMA


def _quoted_lines(text: str, source: str, *, forgiving: bool) -> tuple[list[int], list[str]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    numbers, lines, number = [], [], 1
    try:
        for fields in reader:
            if fields:
                numbers.append(number)
                lines.append(NUL.join(fields))
            elif number == 1 or not forgiving:
                raise BadInput(source, "the line is blank", line=number)
            number = reader.line_num + 1  # a quoted field may run over several lines
    except csv.Error as error:
        raise BadInput(source, f"not CSV: {error}", line=reader.line_num) from None
    return numbers, lines


def _check_header(header: Sequence[str], required: Sequence[str], known: Sequence[str], source: str) -> None:
    for position, name in enumerate(header):
        if known and name not in known:
            hint = "rename or remove the column; their order is free"
            raise BadInput(source, f"column {name!r} is not one of {', '.join(known)}", line=1, hint=hint)
        if name in header[:position]:
            raise BadInput(source, f"column {name!r} is there twice", line=1)
    missing = [name for name in required if name not in header]
    if missing:
        hint = f"the first line is {','.join(header)}"
        raise BadInput(source, f"missing columns: {', '.join(missing)}", line=1, hint=hint)


def _check_widths(lines: Sequence[str], numbers: Sequence[int], separator: str, width: int, source: str) -> None:
    if {line.count(separator) for line in lines} <= {width - 1}:
        return
    for number, line in zip(numbers, lines, strict=True):
        count = line.count(separator) + 1
        if count != width:
            raise BadInput(source, f"{count} fields where the header has {width}", line=number)


def _holds(bounds: Bounds, read: type[int | float], text: str) -> bool:
    try:
        value = np.array([read(text)], np.int64) if read is int else np.array([read(text)], np.float64)
        return bool(bounds.hold(value)[0])
    except (ValueError, OverflowError):
        return False


def _is_plain(text: str) -> bool:
    """Python reads `1_0` and digits of other scripts as numbers; in a file they are typos."""
    return text.isascii() and "_" not in text


def _figure(limit: float) -> str:
    """A limit in digits; empty where there is none."""
    if math.isinf(limit):
        return ""
    return f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}"
