"""Checkpoints of a training job: the loop stands still for a copy to host memory; the rest happens in a thread.

    save(step, state, meta)
      copy to host memory            the caller waits for this alone
      ---- in a thread of its own ----------------------------------------
      staging/<step>-<token>/        data, tree, manifest; digests; fsync      snapshot, manifest
      rename to step-<step>/, fsync  the commit point, refused to an old generation                  commit
      remove old ones                (an object store moves HEAD instead                            bucket)

A writer that dies anywhere in this leaves earlier checkpoints as they were. A reader takes the highest step whose
digests are right. The state is whole, so it loads at any number of workers.

Several writers can share a checkpoint: the first opens the folder and commits, and each writes its segments there.

    first    open -> token ... begin: own segments ... count: all files -> tree, manifest, commit
    others            token -> begin: own segments -> their files, with digests, to the first

Before the commit no reader takes it for a checkpoint, and a writer that dies leaves the one before as it was.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sublet import __version__
from sublet.errors import CheckpointFailed, DamagedCheckpoint, InvalidValue, StaleWriter, SubletError
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.disk import DISK, Disk, Folder, Place
from sublet.train.checkpoint.manifest import NamedFile, write_contents
from sublet.train.checkpoint.snapshot import HostCopy, Snapshot, TensorPlace, data_name, read_state, write_state
from sublet.train.checkpoint.store import Store, open_store

TOKEN_BYTES = 6  # random: as many as a double holds exactly, in which the others are told
FEWEST_KEPT = 2  # one may be found damaged
OPEN_WAIT_S = 1.0  # opening puts up with a busy directory; the first save tries again


class Abandoned(CheckpointFailed):
    """The writers have changed, or one of them could not write."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "the group changed while it was written", hint="it is begun again by itself")


class Joint:
    """The side of the first writer: an open folder, and its contents so far. As a context, it is closed at the end."""

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
        self._taken = False  # by the thread that writes, and closes it
        self.opened_s, self.blocked_s = time.perf_counter(), 0.0  # how long the loop stood still for it

    def begin(self, segments: Mapping[int, memoryview], places: tuple[TensorPlace, ...]) -> None:
        """Our segments, by number; `places` are those of the tensors in all segments."""
        self._segments, self.places = segments, places

    def count(self, files: Sequence[NamedFile]) -> None:
        """All have written these files: it may be committed."""
        with self._deciding:
            if not self._all.done():
                self._all.set_result(files)

    def abandon(self, error: CheckpointFailed | None = None) -> None:
        """Give it up, unless all files had been counted: then it is being committed."""
        with self._deciding:
            if not self._all.done():
                self._all.set_exception(error or Abandoned(self._place))
            if not self._taken:
                self._open.close()

    def written(self) -> Sequence[NamedFile]:
        """Write our segments, and wait for the others; the files of all, or Abandoned."""
        try:
            self.own.set_result(write_contents(self.folder, _named(self._segments)))
        except BaseException as error:
            self.own.set_exception(error)
            raise
        return self._all.result()

    def __enter__(self) -> Folder:
        with self._deciding:
            if self._all.done():
                self._all.result()  # raises: it was abandoned
            self._taken = True
        return self.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


class Share:
    """The side of the other writers: a thread writes segments, one checkpoint after the other."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """The newest checkpoint that can be trusted, and the newer ones that cannot, with the reason."""

    step: int
    state: dict[str, Any]  # on the CPU; tuples, integer keys and data types as they were saved
    meta: dict[str, Any]
    path: Place
    skipped: list[tuple[Place, str]] = field(default_factory=list)


class Pending:
    """A checkpoint on its way to the disk."""

    def __init__(self, step: int, *, blocked_s: float, size_bytes: int) -> None:
        self.step = step
        self.blocked_s = blocked_s  # how long the training loop stood still
        self.size_bytes = size_bytes  # of the tensors
        self.seconds = 0.0  # from the call of save() to the end, once it has ended
        self._future: Future[None] = Future()

    @property
    def done(self) -> bool:
        """Whether it was committed or has failed."""
        return self._future.done()

    @property
    def error(self) -> SubletError | None:
        """Why it failed; None while it is being written and after it was committed."""
        return cast(SubletError | None, self._future.exception()) if self._future.done() else None

    def wait(self, timeout_s: float | None = None) -> Self:
        """Until it is committed; raises `error` if it failed, TimeoutError if it takes longer than `timeout_s`."""
        self._future.result(timeout_s)
        return self

    def end(self, seconds: float, failure: SubletError | None) -> None:
        """It is committed, and survives a power cut; or it has failed."""
        self.seconds = seconds
        if failure is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(failure)


class Checkpoints:
    """The checkpoints in one place, and the right to add some while `generation` is the highest announced.

    Args:
        directory: made when it is missing; staging is inside of it, so all of it must be one filesystem. Or the URI of
            an object store, or a store that is open.
        keep: how many whole checkpoints stay, at least 2.
        writer: our name in the manifest, for people.
        generation: of the group in which we are the writer. Opening announces it.
        disk, wall, rng: of the machine that we run on.

    One save is written at a time. Host memory as large as the state is kept for the next one.
    """

    def __init__(
        self,
        directory: Place | Store,
        *,
        keep: int = 3,
        writer: str,
        generation: int,
        disk: Disk = DISK,
        wall: Wall = WALL,
        rng: Rng = RNG,
    ) -> None:
        if keep < FEWEST_KEPT:
            raise InvalidValue("keep", keep, f"at least {FEWEST_KEPT}, because the newest may turn out damaged")
        if generation < 0:
            raise InvalidValue("generation", generation, "at least 0")
        if isinstance(directory, Path | str):
            directory = open_store(directory, disk=disk, wall=wall, rng=rng)
        self._kept: Store = directory
        self.directory = self._kept.place
        self.keep = keep
        self.writer = writer
        self.skipped: list[tuple[Place, str]] = []  # what newest() passed over, also when it found none
        self.generation, self._rng = generation, rng
        self._host = HostCopy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sublet-checkpoint")
        self._under_way: Pending | None = None
        self._one_save = threading.Lock()
        self._closed = False
        self._announced = False
        with contextlib.suppress(OSError, SubletError):  # a full or read-only disk is told by save(), and can be read
            self._kept.announce(generation)
            self._announced = True
            self._kept.sweep(wait_s=OPEN_WAIT_S)

    def reserve(self, state: Mapping[str, Any]) -> None:
        """Have host memory ready for states like this one; otherwise the first save waits for it too."""
        with self._one_save:
            if self._under_way is None or self._under_way.done:
                self._host.reserve(state)

    def open_joint(self, step: int) -> Joint:
        """A checkpoint that others write with us; it is begun by `save`. SubletError if there is no room for it."""
        try:
            return Joint(self._kept, step, self._rng.token(TOKEN_BYTES))
        except OSError as error:
            raise _failure_from(self.directory, error) from error

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        meta: Mapping[str, Any],
        *,
        joint: Joint | None = None,
    ) -> Pending:
        """Copy `state` and return; it is written and committed in the background.

        `meta` is JSON (world, global batch, data position, ...). While another save is being written this one is
        skipped: the Pending of that one comes back, with its `step`. What cannot be saved at all raises InvalidValue
        here; everything that happens later is in Pending.error, and training goes on.
        """
        begun_s = time.perf_counter()
        if step < 0:
            raise InvalidValue("step", step, "at least 0")
        facts = {"code_version": __version__} | _as_json(meta)
        with self._one_save:
            if self._closed:
                raise CheckpointFailed(self.directory, "save() after close()", hint="open the directory again")
            other = self._under_way
            if other is not None and not other.done:
                return other
            snapshot = self._host.take(state, () if joint is None else joint.places)
            size = sum(segment.nbytes for segment in snapshot.segments)
            blocked_s = time.perf_counter() - begun_s + (0.0 if joint is None else joint.blocked_s)
            pending = Pending(step, blocked_s=blocked_s, size_bytes=size)
            self._under_way = pending
            begun_s = begun_s if joint is None else joint.opened_s
            self._thread.submit(self._finish, pending, snapshot, facts, begun_s, joint)
        return pending

    def newest(self) -> LoadedCheckpoint | None:
        """The highest step whose digests are right; None if there is none (then see `skipped`).

        Our generation is announced first, so that an earlier writer does not commit after we looked. A disk that is
        full or cannot be written may be read all the same. StoreFailed if a store fails: it may be written by others.
        """
        if not self._announced:
            with contextlib.suppress(OSError):
                self._kept.announce(self.generation)
                self._announced = True
        self.skipped = []
        return _newest_of(self._kept, self.skipped)

    def fence(self, generation: int) -> None:
        """Announce `generation`: once this returns, no writer of a lower one commits, ourselves included."""
        try:
            self._kept.fence(generation)
        except OSError as error:
            raise _failure_from(self.directory, error) from error

    def advance(self, generation: int) -> None:
        """Go on as a writer of `generation`, and fence off those below it."""
        if generation < self.generation:
            raise InvalidValue("generation", generation, f"at least {self.generation}, the present one")
        self.generation = generation
        self.fence(generation)

    def close(self) -> None:
        """Wait for the save under way, if any. Its outcome is in its Pending."""
        with self._one_save:
            self._closed = True
        self._thread.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(
        self, pending: Pending, snapshot: Snapshot, meta: Mapping[str, Any], begun_s: float, joint: Joint | None
    ) -> None:
        failure: SubletError | None = None
        try:
            self._write(pending, snapshot, meta, joint)
        except SubletError as error:
            failure = error
        except OSError as error:
            failure = _failure_from(self.directory, error)
        except BaseException as error:  # noqa: BLE001 - a waiting training loop must be told of anything
            failure = CheckpointFailed(self.directory, repr(error), hint="report this: it is a fault in sublet")
        pending.end(time.perf_counter() - begun_s, failure)

    def _write(self, pending: Pending, snapshot: Snapshot, meta: Mapping[str, Any], joint: Joint | None) -> None:
        step, facts = pending.step, {"generation": self.generation, "writer": self.writer, "meta": meta}
        with self._kept.open_staging(step) if joint is None else joint as staging:
            beside = () if joint is None else joint.written()
            manifest = write_state(staging, snapshot, step=step, beside=beside, **facts)
            self._commit(staging, step)
        if joint is not None:
            pending.size_bytes = manifest.size_bytes  # of all
        with contextlib.suppress(OSError, SubletError):  # the commit stands; old ones are removed next time
            self._kept.collect(keep=self.keep, just_committed=step)
            self._kept.sweep()

    def _commit(self, staging: Folder, step: int) -> None:
        while True:
            generation = self.generation
            try:
                self._kept.announce(generation)
                self._kept.commit(staging, step, generation)
            except StaleWriter:
                if generation == self.generation:  # otherwise we advanced meanwhile
                    raise
            else:
                return


def newest(
    directory: Place, skipped: list[tuple[Place, str]] | None = None, *, disk: Disk = DISK
) -> LoadedCheckpoint | None:
    """The newest whole checkpoint of a directory or URI, for readers; `skipped` collects the damaged ones above it."""
    return _newest_of(open_store(directory, disk=disk), [] if skipped is None else skipped)


def _newest_of(kept: Store, found: list[tuple[Place, str]]) -> LoadedCheckpoint | None:
    steps = list[tuple[int, Place]]()
    while (seen := [(step, kept.place_of(step)) for step in kept.steps()]) != steps:  # a writer may replace all of
        steps = seen  # them meanwhile: look again
        found.clear()
        for step, path in steps:
            try:
                manifest, state = read_state(kept.folder(step), step)
            except DamagedCheckpoint as error:
                found.append((path, error.why))
                kept.pass_over(step)
            else:
                return LoadedCheckpoint(
                    step=step, state=state, meta=dict(manifest.meta), path=path, skipped=list(found)
                )
    return None


def _as_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(json.dumps(dict(meta)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("meta", type(meta).__name__, f"what JSON can hold: {error}") from error
    return facts


def _failure_from(directory: Place, error: OSError) -> CheckpointFailed:
    return CheckpointFailed(
        error.filename or directory,
        error.strerror or str(error),
        hint=f"make room in {directory} or make it writable; the next save tries again",
    )
