"""Measured profiles of jobs, kept for the next run: a folder of files that a person can read, and share.

The next job of the same name and the same script begins with the rows of each kind of GPU, as priors.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from sublet.errors import BadInput, UnknownName
from sublet.machine.wall import Wall, iso_utc
from sublet.perf.live.fit import surest
from sublet.perf.live.rows import StepRow, earlier
from sublet.perf.live.stored import CPU, StoredProfile
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private, private_file
from sublet.runtime.profiles.learned import Profiling

LONGEST = 1 << 20  # bytes of a file that are read: far beyond 64 rows
MOST_ROWS = 64  # of a file: a job that grows its batch by itself would have ever more
DIGITS = 12  # of a digest, in the name of a file


class ProfileStore:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, tuple[tuple[int, int], StoredProfile]] = {}  # as of its time and size

    def keep(self, spec: JobSpec, profiling: Profiling, wall: Wall) -> None:
        """For the next run of the same job."""
        self.write(spec, profiling, wall)

    def write(self, spec: JobSpec, profiling: Profiling, wall: Wall) -> list[Path]:
        """Write the profile of a job, a file for each kind of GPU; forms that it did not have stay as they were known.

        Nothing of a job whose batch is fixed, unless that was measured on purpose; nor of one without a script.
        """
        digest = script_digest(spec)
        if not digest or not profiling.initial or not profiling.rows:
            return []
        make_private(self.folder)
        kept = []
        for gpu in sorted({row.gpu for row in profiling.rows}):
            path = self.folder / f"{_plain(spec.name)}-{digest[:DIGITS]}-{_plain(gpu)}.csv"
            profile = StoredProfile(
                name=spec.name,
                script=digest,
                gpu=gpu,
                torch=profiling.torch,
                device=profiling.device,
                date=iso_utc(wall),
                batches=(profiling.initial, profiling.low, profiling.high),
                batch=profiling.batch,
                noise=profiling.noise,
                growth=profiling.growth,
                most_samples=profiling.most.get(gpu, 0),
                memory={samples: most for (kind, samples), most in profiling.memory.items() if kind == gpu},
                rows=_rows_to_keep(profiling, gpu, _written_since(path, profiling)),
            )
            beside = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")  # jobs of a name may end together
            private_file(beside)
            beside.write_text(profile.to_text(), encoding="utf-8")
            beside.replace(path)
            kept.append(path)
        return kept

    def begin(self, spec: JobSpec) -> Profiling:
        """The profile that a job begins with: all that runs of the same name and script have measured."""
        digest = script_digest(spec) if self.folder.is_dir() else ""
        found = [p for p in self.all() if (p.name, p.script) == (spec.name, digest)] if digest else []
        if not found:
            return Profiling()
        newest = max(found, key=lambda profile: profile.date)
        initial, low, high = newest.batches
        rows = tuple(earlier(row) for profile in found for row in profile.rows)
        return Profiling(
            earlier=rows,
            initial=initial,
            low=low,
            high=high,
            batch=initial,
            growth=max(0.0, newest.growth),
            most_samples=newest.most_samples,
            memory={(each.gpu, samples): most for each in found for samples, most in each.memory.items()},
            most={each.gpu: each.most_samples for each in found},
            before_on={each.gpu: each.device for each in found},
        )

    def find(self, name: str) -> list[StoredProfile]:
        """The newest script of the job of this name, on each kind of GPU; or the one file that is called so."""
        path = Path(name)
        if path.suffix == ".csv" or path.is_file():
            return [read_stored(path)]
        own = list(self.all())
        of_job = [profile for profile in own if profile.name == name]
        if not of_job:
            hint = "sublet profile SCRIPT measures one; sublet profiles lists them; or give the path of such a file"
            raise UnknownName("measured profile", name, {profile.name for profile in own}, hint=hint)
        newest = max(of_job, key=lambda profile: profile.date)
        return [profile for profile in of_job if profile.script == newest.script]

    def all(self) -> Iterator[StoredProfile]:
        """Every file that can be read, by name; others are passed over. One that has not changed is not read again."""
        known, read = self._read, {}
        for path in sorted(self.folder.glob("*.csv")):
            try:
                seen = path.stat()
                stamp = (seen.st_mtime_ns, seen.st_size)
                before = known.get(path)
                profile = before[1] if before is not None and before[0] == stamp else read_stored(path)
            except (BadInput, OSError):
                continue
            read[path] = (stamp, profile)
        self._read = read
        yield from [profile for _, profile in read.values()]


def _written_since(path: Path, profiling: Profiling) -> tuple[StepRow, ...]:
    """Rows that another run of the job, beside this one, has left there; not of GPUs where this one had none."""
    try:
        there = read_stored(path)
    except BadInput:
        return ()
    return there.rows if there.is_of_cpus == (profiling.device == CPU) else ()


def _rows_to_keep(profiling: Profiling, gpu: str, since: Sequence[StepRow]) -> tuple[StepRow, ...]:
    own = [row for row in profiling.rows if row.gpu == gpu]
    known = {each.form for each in own}
    before = surest([*map(earlier, since), *profiling.earlier])
    own += [row for row in before if row.gpu == gpu and row.form not in known]
    return tuple(sorted(own[:MOST_ROWS], key=lambda row: row.form))


def read_stored(path: Path) -> StoredProfile:
    """A profile from its file; BadInput says what is wrong with it."""
    try:
        text = text_of(path)
    except OSError as error:
        hint = "give a name from 'sublet profiles', or the path of a file that it lists"
        raise BadInput(path, f"cannot be read ({error.strerror or error})", hint=hint) from None
    return StoredProfile.from_text(text, str(path))


def text_of(path: Path) -> str:
    """Text of a file, as far as a person would write by hand; OSError for a pipe, which would make us wait."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    with path.open("rb") as file:
        return file.read(LONGEST).decode("utf-8", "replace")


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
