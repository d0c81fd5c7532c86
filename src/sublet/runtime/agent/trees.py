"""A working directory on a node, made of parts: one per job, shared by its workers there, and used when it is whole.

Scripts write into their working directory, so nothing in it is a link to what we keep; a worker that starts again finds
there what the one before it has left, as on a disk that all share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sublet.machine.files import Files
from sublet.runtime.agent.acting import Acting, as_we_are
from sublet.runtime.agent.outside import NOT_THERE
from sublet.runtime.file_sync.content import Content
from sublet.runtime.file_sync.manifest import Entry

__all__ = ["Lost", "Tree"]

AT_ONCE = 4 << 20  # bytes of files, before the agent looks at its lines again


class Lost(Exception):
    """A part was here, and is gone."""


class Tree:
    """The files of one manifest below `place`; those of paths with ~/ below `home`.

    `give` makes the place the job's own; all of it is written `acting` as the owner of the place.
    """

    def __init__(
        self,
        place: Path,
        entries: Sequence[Entry],
        content: Content,
        files: Files,
        home: Path,
        *,
        give: Callable[[Path], None] = lambda _: None,
        acting: Acting = as_we_are,
    ) -> None:
        self.place, self._content, self._files, self._home = place, content, files, home
        self._give, self._acting = give, acting
        self._mark = place.with_name(place.name + ".whole")  # written last
        self._work: Iterator[int] = self._built(entries)
        self.whole = False

    def work(self) -> bool:
        """Put some more files there; whether all are. OSError where they cannot be, Lost as it says."""
        done = 0
        for size in self._work:
            done += size
            if done >= AT_ONCE:
                return False
        self.whole = True
        return True

    def _built(self, entries: Sequence[Entry]) -> Iterator[int]:
        if self._is_marked():
            return
        self._files.make_folder(self.place)
        self._give(self.place)
        folders: set[Path] = set()
        for entry in entries:
            path, data = self.place / self._at_home(entry.path), self.data_of(entry)
            try:
                with self._acting(str(self.place)):
                    if path.parent not in folders:
                        self._files.make_folder(path.parent)
                        folders.add(path.parent)
                    self._files.write(path, data, mode=entry.mode, durable=False)
            except PermissionError as error:
                raise PermissionError(error.errno, NOT_THERE, str(path)) from None
            yield entry.size_bytes
        self._files.write(self._mark, b"", durable=False)

    def _at_home(self, path: str) -> Path:
        first, *rest = Path(path).parts
        return self._home.joinpath(*rest) if first == "~" else Path(path)

    def _is_marked(self) -> bool:
        try:
            self._files.read(self._mark)
        except OSError:
            return False
        return True

    def data_of(self, entry: Entry) -> bytes:
        """Its bytes; Lost as above."""
        return b"".join(map(self._part, entry.parts))

    def _part(self, digest: str) -> bytes:
        if (data := self._content.data(digest)) is None:
            raise Lost(digest)
        return data
