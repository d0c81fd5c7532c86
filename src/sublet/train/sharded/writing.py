"""One checkpoint of all ranks: each writes its shards behind the loop, and rank 0 commits when all have written.

    tick s      rank 0 opens a folder; all copy their shards to host memory, and write them in the background
    later       each says at every tick whether it is through; after the last one rank 0 has all digests, and commits

A checkpoint is of one tick, and no tick waits for a disk. All methods but `close` are called by all ranks alike.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch.distributed as dist

from sublet.errors import CheckpointFailed, DamagedCheckpoint, SubletError
from sublet.machine.wall import WALL
from sublet.train.checkpoint.checkpoints import Joint, LoadedCheckpoint
from sublet.train.checkpoint.manifest import NamedFile, read_manifest, write_contents
from sublet.train.checkpoint.saving import Saver
from sublet.train.checkpoint.snapshot import read_state
from sublet.train.sharded.dcp import files_of
from sublet.train.sharded.parts import Parts
from sublet.train.state.state import Progress

EVERYWHERE = "give checkpoint.uri a place that all nodes see, s3://bucket/prefix for one"
AGAIN = "again"


class Together:
    """The checkpoints of ranks that have a state in shards."""

    def __init__(self, saver: Saver, parts: Parts) -> None:
        self.parts, self._saver = parts, saver
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sublet-shards")
        self._files: Future[list[NamedFile]] | None = None  # of ours, while not all are known to have written
        self._joint: Joint | None = None  # at rank 0
        self._begun: tuple[dict[str, Any], Progress] | None = None  # at rank 0, as they were then

    def newest(self) -> LoadedCheckpoint | None:
        """The newest whole checkpoint, as rank 0 finds it; None also where it cannot be seen from here."""
        loaded = self._saver.newest() if dist.get_rank() == 0 else None
        step = _of_rank_0(None if loaded is None else loaded.step)
        if loaded is not None or step is None:
            return loaded
        folder = self._saver.store.folder(step)
        try:
            manifest, state = read_state(folder, step, whole=False)
        except DamagedCheckpoint:
            return None
        return LoadedCheckpoint(step=step, state=state, meta=dict(manifest.meta), path=folder.place)

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """The shards of this step, with `beside` of each part."""
        folder = self._saver.store.folder(step)
        self.parts.load(saved, folder, read_manifest(folder, step))

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint was begun of which not all are known to have written their part."""
        return self._files is not None

    @property
    def is_writing(self) -> bool:
        """Whether we write our part."""
        return self._files is not None and not self._files.done()

    def begin(self, tree: Mapping[str, Any], progress: Progress) -> None:
        """Copy our shards, and write them in the background; `tree`, at rank 0, is the rest of the state."""
        began_s = WALL.monotonic()
        state = self.parts.state()
        self._joint = self._saver.open_joint(progress.steps) if dist.get_rank() == 0 else None
        opened = None if self._joint is None else (self._joint.token, self._saver.store.announced())
        opened = _of_rank_0(opened)
        if opened is None:
            return  # rank 0 has told why
        folder = self._saver.store.share_staging(progress.steps, opened[0], opened[1])
        self._files = self._thread.submit(write_contents, folder, files_of(state))
        if self._joint is not None:
            self._begun = copy.deepcopy((dict(tree), progress))
            self._joint.blocked_s = WALL.monotonic() - began_s

    def finish(self) -> None:
        """All have written, or are waited for: rank 0 commits in the background."""
        if self._files is None:
            return
        error, world = self._files.exception(), dist.get_world_size()
        told: list[Any] = [None] * world
        dist.all_gather_object(told, str(error) if error is not None else self._files.result())
        joint, begun, self._files, self._joint, self._begun = self._joint, self._begun, None, None, None
        if joint is None or begun is None:
            return
        failed = [f"rank {rank}: {each}" for rank, each in enumerate(told) if isinstance(each, str)]
        if failed:
            joint.abandon(CheckpointFailed(self._saver.directory, "; ".join(failed), hint=EVERYWHERE))
        else:
            joint.count([file for files in told for file in files])
        if not self._saver.begin(*begun, world, joint):
            joint.abandon()

    def save_last(self, tree: Mapping[str, Any], progress: Progress) -> None:
        """Save this tick unless it is, and wait for the commit; rank 0 tries again for a while, and all with it."""
        if dist.get_rank() != 0:
            while _of_rank_0(None):
                self.begin(tree, progress)
                self.finish()
            return

        def save() -> None:
            self._saver.settle()
            if not self._saver.has(progress.steps):
                _of_rank_0(AGAIN)
                self.begin(tree, progress)
                self.finish()
                self._saver.settle()

        try:
            self._saver.insist(save, progress)
        finally:
            _of_rank_0(None)

    def close(self) -> None:
        """A checkpoint that is not written by all is given up."""
        self._thread.shutdown(wait=True)
        if self._joint is not None:
            with contextlib.suppress(SubletError, OSError):
                self._joint.abandon()
            self._joint = self._files = self._begun = None


def _of_rank_0(fact: Any) -> Any:
    """At all ranks."""
    told = [fact]
    dist.broadcast_object_list(told, src=0)
    return told[0]
