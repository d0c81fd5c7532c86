"""Which jobs there are, and which one is meant: by its id, its name, or the beginning of its id that no other has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from sublet.errors import NoSuchJob


class Names(Protocol):
    """`sublet.runtime.controller.memory.table.JobTable`, as far as it matters here."""

    @property
    def records(self) -> Mapping[str, object]:
        """By id, in order of submission."""
        ...

    @property
    def named(self) -> Mapping[str, Iterable[str]]:
        """Name -> ids, the oldest first."""
        ...


class Directory:
    """Of the jobs that are remembered. `take_back(job_id)` raises NoSuchJob for one that is not on the shelf either."""

    def __init__(
        self, names: Names, *, is_alive: Callable[[str], bool], take_back: Callable[[str], object] | None = None
    ) -> None:
        self._names, self._is_alive, self._take_back = names, is_alive, take_back

    def ids(self) -> list[str]:
        """In order of submission."""
        return list(self._names.records)

    def find(self, ref: str) -> str:
        """An id is itself; of several jobs with one name, the one that has not ended; else a unique prefix of an id.

        An id or a name costs the same however many jobs there are; for what is neither, all of them are looked at.
        """
        records, named = self._names.records, self._names.named
        if ref in records:
            return ref
        called = list(named.get(ref, ()))
        found = [job_id for job_id in called if self._is_alive(job_id)] or called[-1:]  # of those that ended, the last
        if not found and ref:
            found = [job_id for job_id in records if job_id.startswith(ref)] or [
                job_id for name, ids in named.items() if name.startswith(ref) for job_id in ids
            ]
        if len(found) == 1:
            return found[0]
        if self._take_back is not None:
            with suppress(NoSuchJob):  # one that ended long ago is on the shelf, and found by its whole id
                self._take_back(ref)
                return ref
        raise NoSuchJob(ref, [*records, *named], several=found)
