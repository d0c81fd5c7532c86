"""Files of jobs at paths of the machine, outside of the agent's own: their owners, so that no file is replaced.

A file is put where nothing is, or where one lies that came for a job that no longer runs here and was not written
since. It is deleted with the node. The register is written before the files: of one that dies, the next deletes them.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sublet.machine.files import Files
from sublet.runtime.agent.disk import Disk, FileFacts
from sublet.runtime.agent.users import Acting
from sublet.runtime.file_sync.content import Entry

REGISTER = "outside.json"
NOT_THERE = "the user that the job is here cannot write there; below its working directory and ~ it can"
NEXT = "next: another path in file_mounts, below ~/ or the working directory, which are the job's own"


@dataclass(slots=True)
class _OutsideClaim:
    jobs: list[str]
    what: str  # contents and mode
    shape: list[int] = field(default_factory=list)  # length and time, when it was put there; none before

    def is_as_it_was(self, facts: FileFacts) -> bool:
        return not self.shape or self.shape == _shape(facts)


def is_outside(entry: Entry) -> bool:
    """Its path is one of the machine."""
    return entry.path.startswith("/")


class Outside:
    """The outside files of one node, in whose `folder` the register is; `runs` says whether a job has workers here."""

    def __init__(self, folder: Path, files: Files, disk: Disk, runs: Callable[[str], bool]) -> None:
        self._register, self._files, self._disk, self._runs = folder / REGISTER, files, disk, runs
        self._claims: dict[str, _OutsideClaim] = {}

    def put(
        self, job_id: str, entries: Sequence[Entry], data_of: Callable[[Entry], bytes], acting: Acting, place: str
    ) -> Iterator[int]:
        """The lengths of those that are written, one by one; OSError where one cannot be, and then none is.

        They are written `acting` as the owner of `place`.
        """
        wanted = [entry for entry in entries if not self._is_there(job_id, entry, data_of)]
        if not wanted:
            return
        for entry in wanted:
            self._claims[entry.path] = _OutsideClaim([job_id], _what(entry))
        self._keep()
        try:
            for entry in wanted:
                data = data_of(entry)
                with acting(place):
                    self._files.make_folder(Path(entry.path).parent)
                    self._files.write(Path(entry.path), data, mode=entry.mode, durable=False)
                self._claims[entry.path].shape = _shape(self._disk.facts(entry.path, follow=False))
                yield entry.size_bytes
        except PermissionError as error:
            raise PermissionError(error.errno, NOT_THERE, error.filename) from None
        finally:
            self._claims = {path: claim for path, claim in self._claims.items() if claim.shape}
            self._keep()

    def _is_there(self, job_id: str, entry: Entry, data_of: Callable[[Entry], bytes]) -> bool:
        """As the job wants it. FileExistsError where something else is that has to stay."""
        claim, what, facts = self._claims.get(entry.path), _what(entry), self._facts(entry.path)
        if claim is not None and claim.what != what:
            for other in claim.jobs:
                if other != job_id and self._runs(other):
                    raise refused(entry.path, f"{other}, which runs on this node, has another file there")
        if facts is None:
            if self._facts(f"{entry.path}.new") is not None:
                raise refused(f"{entry.path}.new", "is in the way of what would be written")
            return False
        if claim is None:
            if facts.is_regular and facts.size_bytes == entry.size_bytes:
                with suppress(OSError):
                    if self._files.read(Path(entry.path)) == data_of(entry):
                        return True  # another has put the same there, and it stays theirs
            raise refused(entry.path, "something is there that did not come for a job of this node")
        if claim.what == what and job_id in claim.jobs:
            return True  # as the worker before it has left it
        if not claim.is_as_it_was(facts):
            raise refused(entry.path, f"it came for {', '.join(claim.jobs)}, and was written to since")
        if claim.what == what:
            claim.jobs.append(job_id)
            return True
        return False

    def _facts(self, path: str) -> FileFacts | None:
        return _facts(self._disk, path)

    def _keep(self) -> None:
        text = json.dumps({path: asdict(claim) for path, claim in self._claims.items()})
        self._files.write(self._register, text.encode(), durable=False)


def sweep(folder: Path, files: Files, disk: Disk) -> None:
    """Delete what an agent that is no more has put outside of its folder; not what was written to since."""
    try:
        claims = {path: _OutsideClaim(**facts) for path, facts in json.loads(files.read(folder / REGISTER)).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return  # it has put nothing there
    for path, claim in claims.items():
        with suppress(OSError):
            facts = _facts(disk, path)
            if facts is not None and facts.is_regular and claim.is_as_it_was(facts):
                files.remove(Path(path))


def _facts(disk: Disk, path: str) -> FileFacts | None:
    try:
        return disk.facts(path, follow=False)
    except FileNotFoundError:
        return None


def _what(entry: Entry) -> str:
    return hashlib.sha256("\n".join((oct(entry.mode), *entry.parts)).encode()).hexdigest()


def _shape(facts: FileFacts) -> list[int]:
    return [facts.size_bytes, facts.written_ns]


def refused(path: str, why: str) -> FileExistsError:
    """The file there stays."""
    return FileExistsError(errno.EEXIST, f"file_mounts.{path}: {why}, and stays; {NEXT}")
