"""The folder that a script without the SDK saves to, as an agent sees it from outside: carried as a whole, when quiet.

There is no message about a save. A folder that has changed, and is the same at two looks, is taken as it is; one that
never rests, because a log grows in it, is taken after a while, file by file as each stood. Files that change while they
are read are read again.
"""

from __future__ import annotations

import contextlib
from itertools import islice

from sublet.runtime.agent.disk import Disk
from sublet.runtime.agent.snapshots import Found

__all__ = ["LOOK_S", "MOST_FILES", "RESTLESS_S", "FolderFinder", "files_in"]

LOOK_S = 1.0  # between two looks ...
LOOK_FILES = 500  # ... and as much more for so many files: a look is to cost next to nothing
RESTLESS_S = 10.0  # that a folder may go on changing, before it is taken as it is
MOST_FILES = 5_000
Signature = tuple[tuple[str, int, int], ...]  # path below the folder, length, when it was written


def files_in(folder: str, disk: Disk) -> Signature:
    """The files to carry, in order; no links, and one file more than may be."""
    found = []
    for path in islice(disk.below(folder), MOST_FILES + 1):
        with contextlib.suppress(OSError):  # it was replaced while we looked
            facts = disk.facts(path, follow=False)
            if facts.is_regular:
                found.append((path[len(folder) + 1 :], facts.size_bytes, facts.written_ns))
    return tuple(sorted(found))


class FolderFinder:
    """That of one job on this node, as `snapshots.Finder` has it."""

    def __init__(self, folder: str, disk: Disk, now_s: float) -> None:
        self.folder, self._disk = folder, disk
        self.generation = 0
        self._settled: Signature = ()  # as it was carried, or could not be
        self._carried: Signature = ()
        self._seen: Signature = ()
        self._looked_s, self._look_s = now_s, now_s + LOOK_S
        self._restless_s: float | None = None  # since when it changes
        self.watched = False  # saves were seen there

    def touch(self) -> None:
        """A worker has ended, or will: look at once."""
        self._look_s = float("-inf")

    def due_s(self) -> float:
        """At every look, while there are saves."""
        return self._look_s if self.watched or self._look_s == float("-inf") else float("inf")

    def find(self, now_s: float, *, urgent: bool) -> Found | None:
        """All of it, if it is not as it was carried last."""
        before, self._seen = self._seen, files_in(self.folder, self._disk)
        seen, self._looked_s = self._seen, now_s
        self._look_s = now_s + LOOK_S * (1.0 + len(seen) / LOOK_FILES)
        if not seen or seen == self._settled:
            self._restless_s = None
            return None
        self._restless_s = now_s if self._restless_s is None else self._restless_s
        if not urgent and seen != before and now_s - self._restless_s < RESTLESS_S:
            return None
        paths, written_ns = tuple(path for path, _, _ in seen), max(written for _, _, written in seen)
        return Found(paths=paths, generation=self.generation, written_ns=written_ns, mark=seen)

    def is_still(self, found: Found) -> bool:
        """Or it never is."""
        restless = self._restless_s is not None and self._looked_s - self._restless_s >= RESTLESS_S
        return restless or files_in(self.folder, self._disk) == found.mark

    def settle(self, found: Found, *, carried: bool) -> None:
        """So it is with the controller, or will not be."""
        mark: Signature = found.mark  # type: ignore[assignment]  # we made it
        self._settled, self._restless_s = mark, None
        self._carried = mark if carried else self._carried

    def came(self, generation: int, step: int) -> None:
        """The files here are those of the controller, if anything was brought; else they are to be carried."""
        self.generation = generation
        if step >= 0:
            self._carried = files_in(self.folder, self._disk)
        self._settled = self._carried
