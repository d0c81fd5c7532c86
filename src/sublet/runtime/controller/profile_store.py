"""What jobs measured of themselves, kept for the next run: files that a person can read, and share.

A file is a line of JSON behind a `#` (which job, which script, on what, when) and a table of rows below it. The next
job of the same name and the same script begins with the rows of each kind of GPU, as priors.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.errors import BadInput, SubletError
from sublet.machine.wall import Wall, iso_utc
from sublet.perf.live.rows import StepRow, earlier
from sublet.runtime.controller.profiling import Profiling
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private, private_file

__all__ = ["ProfileStore", "StoredProfile", "script_digest"]

COLUMNS = ("gpus", "nodes", "samples", "pieces", "step_s", "piece_s", "wait_s", "error")
LONGEST = 1 << 20  # bytes of a file that are read: far beyond 64 rows
DIGITS = 12  # of a digest, in the name of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """Of one job on one kind of GPU."""

    name: str
    script: str  # digest
    gpu: str
    torch: str  # version; "" = not told
    date: str
    batches: tuple[int, int, int]  # initial, least, most
    batch: int  # at its end
    noise: float | None  # gradient noise scale, at its end
    rows: tuple[StepRow, ...]

    def to_text(self) -> str:
        """As it stands in its file."""
        facts = {key: value for key, value in asdict(self).items() if key != "rows"}
        text = io.StringIO()
        text.write(f"# {json.dumps(facts)}\n")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([getattr(row, column) for column in COLUMNS] for row in self.rows)
        return text.getvalue()

    @classmethod
    def from_text(cls, text: str, source: str) -> StoredProfile:
        """What `to_text` wrote; BadInput where it is not that."""
        head, _, body = text.partition("\n")
        try:
            facts = json.loads(head.removeprefix("#"))
            rows = tuple(_row(facts["gpu"], each) for each in csv.DictReader(io.StringIO(body)))
            return cls(**{**facts, "batches": tuple(facts["batches"])}, rows=rows)
        except (ValueError, KeyError, TypeError, AttributeError, SubletError) as error:
            raise BadInput(source, f"no profile: {type(error).__name__}: {error}") from None


class ProfileStore:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, spec: JobSpec, profiling: Profiling, wall: Wall) -> None:
        """What a job has measured, a file for each kind of GPU; the last run of a job counts."""
        digest = script_digest(spec)
        if not digest or not profiling.initial or not profiling.rows:
            return
        make_private(self._folder)
        for gpu in sorted({row.gpu for row in profiling.rows}):
            profile = StoredProfile(
                name=spec.name,
                script=digest,
                gpu=gpu,
                torch=profiling.torch,
                date=iso_utc(wall),
                batches=(profiling.initial, profiling.low, profiling.high),
                batch=profiling.batch,
                noise=profiling.noise,
                rows=tuple(row for row in profiling.rows if row.gpu == gpu),
            )
            path = self._folder / f"{_plain(spec.name)}-{digest[:DIGITS]}-{_plain(gpu)}.csv"
            beside = path.with_suffix(".new")
            private_file(beside)
            beside.write_text(profile.to_text(), encoding="utf-8")
            beside.replace(path)

    def begin(self, spec: JobSpec) -> Profiling:
        """What a job begins with: all that runs of the same name and script have measured."""
        digest = script_digest(spec) if self._folder.is_dir() else ""
        found = [p for p in self.all() if (p.name, p.script) == (spec.name, digest)] if digest else []
        if not found:
            return Profiling()
        newest = max(found, key=lambda profile: profile.date)
        initial, low, high = newest.batches
        rows = tuple(earlier(row) for profile in found for row in profile.rows)
        return Profiling(earlier=rows, initial=initial, low=low, high=high, batch=initial)

    def all(self) -> Iterator[StoredProfile]:
        """Every file that can be read, by name; others are passed over."""
        for path in sorted(self._folder.glob("*.csv")):
            try:
                text = path.read_bytes()[:LONGEST].decode("utf-8", "replace")
                yield StoredProfile.from_text(text, str(path))
            except (BadInput, OSError):
                continue


def _row(gpu: str, cells: Mapping[str, str]) -> StepRow:
    gpus, nodes, samples, pieces = (int(cells[column]) for column in COLUMNS[:4])
    step_s, piece_s, wait_s, error = (float(cells[column]) for column in COLUMNS[4:])
    return StepRow(
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        samples=samples,
        pieces=pieces,
        step_s=step_s,
        piece_s=piece_s,
        wait_s=wait_s,
        error=error,
    )


def script_digest(spec: JobSpec) -> str:
    """Of the first file that its command names; "" where there is none that can be read."""
    for word in spec.argv[1:]:
        if not word.endswith(".py"):
            continue
        try:
            return hashlib.sha256((Path(spec.cwd) / word).read_bytes()).hexdigest()
        except OSError:
            return ""
    return ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
