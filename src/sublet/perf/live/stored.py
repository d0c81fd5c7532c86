"""Measurements of a job on one kind of GPU, as a file: a person can read it, and share it.

A line of JSON behind a `#` says which job and script, on what and when; the table below it has a line for each form.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sublet.errors import BadInput, InvalidValue
from sublet.perf.live.rows import StepRow
from sublet.perf.live.speed import LiveSpeed, batch_steps

COLUMNS = ("gpus", "nodes", "samples", "pieces", "step_s", "piece_s", "wait_s", "error")
WHOLE = COLUMNS[:4]
HINT = "measure it anew with 'sublet profile SCRIPT', or remove the file"
MEMORY = "memory_bytes"  # most on a GPU at once with so many samples at a time; 0 = it cannot be told
OLDER = {"device": "", "growth": 0.0, "most_samples": 0}  # what was not written before
BATCHES = 3  # initial, least, most
LONGEST = 40  # letters of a wrong cell that are repeated
MOST_ROWS = 512  # every one makes a fit dearer; what Sublet writes has 64
MOST = 10**12  # samples, seconds, anything: beyond it a number is a slip
CPU = "cpu"  # the device of workers without a GPU, as PyTorch calls it


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """The stored profile of one job on one kind of GPU."""

    name: str
    script: str  # digest
    gpu: str
    torch: str  # version; "" = not told
    date: str
    batches: tuple[int, int, int]  # initial, least, most; three times the same where it is fixed
    batch: int  # at its end
    noise: float | None  # gradient noise scale, at its end
    growth: float = 0.0  # of the logarithm of the noise per sample, towards its end; 0 = it cannot be told
    rows: tuple[StepRow, ...]
    device: str = ""  # what it computed on, as its maker calls it; "" = not told
    most_samples: int = 0  # at a time on one GPU, as the script or its memory has it; 0 = all of its share
    memory: Mapping[int, int] = field(default_factory=dict)  # samples at a time -> most bytes, where it can be told

    @property
    def is_of_cpus(self) -> bool:
        """Its kind of GPU is but a name: no worker had one."""
        return self.device == CPU

    def to_text(self) -> str:
        """As it stands in its file."""
        facts = {key: value for key, value in asdict(self).items() if key in FIELDS}
        text = io.StringIO()
        text.write(f"# {json.dumps(facts)}\n")
        table = csv.writer(text, lineterminator="\n")
        table.writerow([*COLUMNS, MEMORY])
        for row in self.rows:
            table.writerow([*(getattr(row, column) for column in COLUMNS), self.memory.get(row.samples, 0)])
        return text.getvalue()

    @classmethod
    def from_text(cls, text: str, source: str) -> StoredProfile:
        """The inverse of `to_text`; BadInput says where it is not that."""
        try:
            return cls._from_text(text, source)
        except (csv.Error, OverflowError) as error:
            raise BadInput(source, f"is no such table ({error})", hint=HINT) from None

    @classmethod
    def _from_text(cls, text: str, source: str) -> StoredProfile:
        head, _, body = text.partition("\n")
        try:
            facts = json.loads(head.removeprefix("#"))
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            why = f"begins with {head[:40]!r}, not with a # and what is known of the profile, as JSON"
            raise BadInput(source, why, line=1, hint=HINT)
        known = {field: _fact(source, {**OLDER, **facts}, field) for field in FIELDS}
        known["batches"] = tuple(known["batches"])
        table = csv.DictReader(io.StringIO(body))
        if missing := [column for column in COLUMNS if column not in (table.fieldnames or ())]:
            raise BadInput(source, f"has no column {missing[0]}; it has {table.fieldnames}", line=2, hint=HINT)
        rows: list[StepRow] = []
        memory: dict[int, int] = {}
        for cells in table:
            line = table.line_num + 1
            row = _row(source, line, known["gpu"], cells)
            rows.append(row)
            if len(rows) > MOST_ROWS:
                raise BadInput(
                    source, f"has more than {MOST_ROWS} rows: no job has so many forms", line=line, hint=HINT
                )
            if most := _memory(source, line, cells):
                memory[row.samples] = max(most, memory.get(row.samples, 0))
        if not rows:
            raise BadInput(source, "has no row: nothing was measured", hint=HINT)
        return cls(**known, rows=tuple(rows), memory=memory)


def speed_from(profiles: Sequence[StoredProfile]) -> LiveSpeed:
    """In samples at the initial batch, of one job that was measured on some kinds of GPU; on others it does not run.

    At the noise that was measured last: where there was none, the batch stays as its script has it.
    """
    if not profiles:
        raise InvalidValue("profiles", [], "at least one")
    newest = max(profiles, key=lambda each: each.date)
    initial, low, high = newest.batches
    rows = tuple(row for each in profiles for row in each.rows)
    return LiveSpeed(
        rows=rows,
        batches=batch_steps(initial, low, high),
        initial=initial,
        batch_now=initial,
        noise=newest.noise,
        most_samples=newest.most_samples or max((row.samples for row in rows if row.pieces > 1), default=0),
        kinds=tuple(sorted({row.gpu for row in rows})),
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST


def _is_most(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _are_batches(value: object) -> bool:
    if not isinstance(value, list) or len(value) != BATCHES or not all(map(_is_count, value)):
        return False
    initial, low, high = value
    return bool(low <= initial <= high)


def _is_noise(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0.0 <= float(str(value)) < float("inf"))


def _is_growth(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(float(str(value)))


FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "name": (_is_name, "the name of a job"),
    "script": (_is_name, "a digest"),
    "gpu": (_is_name, "a kind of GPU"),
    "torch": (_is_text, "a version"),
    "device": (_is_text, "the name of a device"),
    "date": (_is_name, "a date"),
    "batches": (_are_batches, "[initial, least, most], the first between the others"),
    "batch": (_is_count, "a whole number from 1 to 10**12"),
    "noise": (_is_noise, "a number of samples, or null"),
    "growth": (_is_growth, "a number, per sample"),
    "most_samples": (_is_most, "a whole number from 0 to 10**12"),
}


def _fact(source: str, facts: Mapping[str, Any], field: str) -> Any:
    fits, allowed = FIELDS[field]
    if field not in facts:
        raise BadInput(source, f"has no {field}; it must be {allowed}", line=1, hint=HINT)
    if not fits(facts[field]):
        raise BadInput(source, str(InvalidValue(field, facts[field], allowed)), line=1, hint=HINT)
    return facts[field]


def _row(source: str, line: int, gpu: str, cells: Mapping[str, str | None]) -> StepRow:
    values: dict[str, Any] = {}
    for column in COLUMNS:
        kind, allowed = (int, "a whole number") if column in WHOLE else (float, "a number")
        cell = cells[column]
        told = None if cell is None else cell[:LONGEST]
        try:
            values[column] = kind(cell or "")
        except ValueError:
            raise BadInput(source, str(InvalidValue(column, told, allowed)), line=line, hint=HINT) from None
        if not abs(values[column]) <= MOST:
            raise BadInput(source, str(InvalidValue(column, told, f"at most {MOST}")), line=line, hint=HINT)
    try:
        return StepRow(gpu=gpu, **values)
    except InvalidValue as error:
        raise BadInput(source, str(error), line=line, hint=HINT) from None


def _memory(source: str, line: int, cells: Mapping[str, str | None]) -> int:
    """Bytes; 0 where the file is older than the column."""
    told = cells.get(MEMORY) or "0"
    if not told.isdecimal() or len(told) > LONGEST:
        raise BadInput(
            source, str(InvalidValue(MEMORY, told[:LONGEST], "a whole number of bytes")), line=line, hint=HINT
        )
    return int(told)
