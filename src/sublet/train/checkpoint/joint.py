"""One checkpoint of several writers: the first opens the folder and commits, and each writes its segments there.

    first    open -> token ... begin: own segments ... count: what all have written -> tree, manifest, commit
    others            token -> begin: own segments -> what they have written, with digests, to the first

How they hear of one another is not its business. Until the commit there is nothing that a reader would take for a
checkpoint, and whoever dies or gives up before it leaves the one before as it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from sublet.errors import CheckpointFailed
from sublet.train.checkpoint.files import data_name
from sublet.train.checkpoint.folder import Folder, Place
from sublet.train.checkpoint.manifest import NamedFile, write_contents
from sublet.train.checkpoint.snapshot import TensorPlace
from sublet.train.checkpoint.store import Store

__all__ = ["TOKEN_BYTES", "Abandoned", "Joint", "Share"]

TOKEN_BYTES = 6  # of dice: as many as a double holds exactly, in which it is told to the others


class Abandoned(CheckpointFailed):
    """The writers are others now, or one of them could not write."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "the group changed while it was written", hint="it is begun again by itself")


class Joint:
    """For the first writer: a folder that is open, and what is known of it. As a context, it is closed at the end."""

    def __init__(self, store: Store, step: int, token: str) -> None:
        """Opens it; an OSError or a SubletError if that fails."""
        self.step, self.token, self._place = step, token, store.place
        self.places: tuple[TensorPlace, ...] = ()  # of the tensors in the segments of all
        self._segments: Mapping[int, memoryview] = {}
        self._open = contextlib.ExitStack()
        self.folder: Folder = self._open.enter_context(store.open_staging(step, token))
        self.own: Future[list[NamedFile]] = Future()
        self._all: Future[Sequence[NamedFile]] = Future()
        self._deciding = threading.Lock()
        self._taken = False  # by who writes, and closes it

    def begin(self, segments: Mapping[int, memoryview], places: tuple[TensorPlace, ...]) -> None:
        """These are ours, by their numbers; tensors are at these places of the segments of all."""
        self._segments, self.places = segments, places

    def count(self, files: Sequence[NamedFile]) -> None:
        """All have written, and this is what: it may be committed."""
        with self._deciding:
            if not self._all.done():
                self._all.set_result(files)

    def abandon(self, error: CheckpointFailed | None = None) -> None:
        """It will not come to be, unless all had been counted. Nothing to do then: it is being committed."""
        with self._deciding:
            if not self._all.done():
                self._all.set_exception(error or Abandoned(self._place))
            if not self._taken:
                self._open.close()

    def written(self) -> Sequence[NamedFile]:
        """Write what is ours, and wait until all have; what all have written, or Abandoned."""
        try:
            self.own.set_result(write_contents(self.folder, _named(self._segments)))
        except BaseException as error:
            self.own.set_exception(error)
            raise
        return self._all.result()

    def __enter__(self) -> Folder:
        with self._deciding:
            if self._all.done():
                self._all.result()  # nobody wants it any more
            self._taken = True
        return self.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


class Share:
    """For all others: writes segments in a thread of its own, one checkpoint after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sublet-part")

    def begin(
        self, step: int, token: str, generation: int, segments: Mapping[int, memoryview]
    ) -> Future[list[NamedFile]]:
        """Into the folder of the first."""
        folder = self._store.share_staging(step, token, generation)
        return self._thread.submit(write_contents, folder, _named(segments))

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown(wait=True)


def _named(segments: Mapping[int, memoryview]) -> dict[str, memoryview]:
    return {data_name(number): content for number, content in segments.items()}
