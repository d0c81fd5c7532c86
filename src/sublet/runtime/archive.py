"""Archives of a store, in compressed files beside it: `events-000000000001.jsonl.gz`, `history-...`.

A file is named after the first number in it and holds one line of JSON for each number that follows. It is on disk,
whole, before the store lets go of the same lines; a program that is ended in between writes it once more, with what has
come since. No start reads any of them. They may be removed for their room: `WholeLog` says from where on the log is
known.

The state that a controller reads at its start, and writes into every snapshot, is then bounded, however many jobs there
were.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sublet.errors import BadInput
from sublet.machine.files import FILES, Files
from sublet.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSums:
    """Over all jobs on it."""

    jobs: int = 0
    steps_lost: int = 0
    noticed: int = 0  # preemptions
    unnoticed: int = 0


class Shelf:
    """The packed jobs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, job_id: str, *, account: Mapping[str, int], name: str, sums: ShelfSums) -> None:
        """Away from the jobs that are read at a start; `account` is what was spent on it, to the grain."""
        with self._store.transaction():
            ((number, key, spec, facts),) = self._store.query(
                "SELECT number, key, spec, facts FROM jobs WHERE job_id = ?", (job_id,)
            )
            packed = zlib.compress(json.dumps([spec, facts, dict(account)]).encode())
            row = (job_id, number, key, name, sums.steps_lost, sums.noticed, sums.unnoticed, packed)
            self._store.write("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._store.write("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def take(self, job_id: str) -> dict[str, int] | None:
        """Back among the jobs; its account. None if there is none of this name."""
        with self._store.transaction():
            found = self._store.query("SELECT number, key, packed FROM shelf WHERE job_id = ?", (job_id,))
            if not found:
                return None
            ((number, key, packed),) = found
            spec, facts, account = json.loads(zlib.decompress(packed))
            self._store.write("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (job_id, number, key, spec, facts))
            self._store.write("DELETE FROM shelf WHERE job_id = ?", (job_id,))
        return {str(purpose): int(grains) for purpose, grains in account.items()}

    def by_key(self, key: str) -> tuple[str, str] | None:
        """(id, name) of the job that was submitted under this key."""
        found = self._store.query("SELECT job_id, name FROM shelf WHERE key = ?", (key,))
        return (str(found[0][0]), str(found[0][1])) if found else None

    def called(self, name: str) -> int:
        """How many have this name: no further one gets the id of one of them."""
        return int(self._store.query("SELECT COUNT(*) FROM shelf WHERE name = ?", (name,))[0][0])

    def sums(self) -> ShelfSums:
        """Sums over all of them."""
        sums = "COUNT(*), COALESCE(SUM(steps_lost), 0), COALESCE(SUM(noticed), 0), COALESCE(SUM(unnoticed), 0)"
        ((jobs, lost, noticed, unnoticed),) = self._store.query(f"SELECT {sums} FROM shelf", ())  # noqa: S608 - our own
        return ShelfSums(jobs=jobs, steps_lost=lost, noticed=noticed, unnoticed=unnoticed)


ENDING = ".jsonl.gz"
LEVEL = 6  # of the compression: a hundred milliseconds for ten thousand events, which become a twentieth


class Kept(StrEnum):
    """The kind of an archive: the name of its table, and of its files."""

    EVENTS = "events"
    HISTORY = "history"


def archive_lines(folder: Path, kind: Kept, first: int, lines: Sequence[str], *, files: Files = FILES) -> None:
    """On disk when it returns; the same file once more does no harm.

    If another stands in its place, as after an older backup was put back, that one is kept beside it.
    """
    text = "".join(f"{line}\n" for line in lines)
    path = _file(folder, kind, first)
    _keep_another(path, text, files)
    files.write(path, gzip.compress(text.encode(), LEVEL, mtime=0))


def _keep_another(path: Path, text: str, files: Files) -> None:
    """A file there that is no beginning of this text is history that the log does not have."""
    try:
        packed = files.read(path)
    except FileNotFoundError:
        return
    try:
        if text.startswith(gzip.decompress(packed).decode()):
            return
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        pass  # damaged: some of it may be readable
    names, number = set(files.names(path.parent)), 1
    while (other := f"{path.name.removesuffix(ENDING)}.other-{number}{ENDING}") in names:
        number += 1
    files.write(path.with_name(other), packed)


def refuse_lost_log(folder: Path, *, files: Files = FILES) -> None:
    """BadInput where there is an archive of a log, and no log: a new beginning forgets what is rented and owed."""
    names = files.names(folder)
    kept = [name for name in names if name.startswith(f"{Kept.EVENTS}-") and name.endswith(ENDING)]
    if kept and "log.sqlite" not in names:
        why = f"log.sqlite is missing, and {kept[0]} and others of its archive are there"
        hint = "put log.sqlite back from a backup; or begin anew with 'sublet up --fresh', which moves all of it aside"
        raise BadInput(folder, why, hint=hint)


def _file(folder: Path, kind: Kept, first: int) -> Path:
    return folder / f"{kind}-{first:012}{ENDING}"


class WholeLog:
    """The log of a store with what was cut from it, as far as that is still there."""

    def __init__(self, store: Store, *, files: Files = FILES) -> None:
        self._store, self._folder, self._files = store, store.path.parent, files
        self.cut = store.cut_until(Kept.EVENTS)
        self._chunks = self._find_chunks()
        self.is_whole = not self.cut or self._chunks is not None

    @property
    def first(self) -> int:
        """The number of the first event that is known."""
        return 1 if self.is_whole else self.cut + 1

    def lines(self, *, after: int = 0, until: int | None = None) -> Iterator[str]:
        """As those of the store, from `first` on."""
        for first, count in self._chunks or ():
            if first + count > after + 1:
                for number, line in enumerate(self._read(first), start=first):
                    if after < number <= self.cut and (until is None or number <= until):
                        yield line
        yield from self._store.lines(after=max(after, self.cut), until=until)

    def _find_chunks(self) -> list[tuple[int, int]] | None:
        """(first event, how many) of the files, one after the other; None where one of them is missing or damaged.

        Of a file that goes on beyond the cut, what is beyond is in the log, too.
        """
        found, first = [], 1
        while first <= self.cut:
            try:
                count = len(self._read(first))
            except (OSError, EOFError, zlib.error, UnicodeDecodeError):
                return None
            if not count:
                return None
            found.append((first, count))
            first += count
        return found

    def _read(self, first: int) -> list[str]:
        return gzip.decompress(self._files.read(_file(self._folder, Kept.EVENTS, first))).decode().splitlines()
