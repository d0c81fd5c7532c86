"""When checkpoints are written, and their reports. A failed one stops no training, except for the last."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sublet.domain.saving import least_interval_s
from sublet.errors import CheckpointFailed, NoCheckpointLeft, StaleWriter, SubletError
from sublet.machine.objects import StoreFailed
from sublet.machine.remote import is_remote
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.checkpoints import Abandoned, Checkpoints, Joint, LoadedCheckpoint, Pending
from sublet.train.checkpoint.disk import Place
from sublet.train.checkpoint.store import Store, open_store, step_of
from sublet.train.link.agent_line import AgentLine, LineLost
from sublet.train.state.state import Progress
from sublet.wire.files import ANCHOR, BUCKET, DISK, Damaged, Saved, SaveFailed

EVERY_S = 600.0  # without a controller, which knows better
FIRST_S = 15.0  # of training, to the first checkpoint: these workers may be gone soon
WORTH = 20.0  # times what the last one took to write: an early one comes no sooner than that
KEEP = 3
BRING_S = 86_400.0  # for a checkpoint that its agent brings, however large: the agent says if it cannot
LAST_PAUSES_S = (1.0, 5.0, 20.0)  # between tries of the last one: a disk that is away for a moment comes back
LAST_TRIES = 1 + len(LAST_PAUSES_S)
LAST_HINT = "make room, or let the directory be written; 'sublet resume' then goes on from the one before it"

RANGE_HINT = "nothing: training goes on from the checkpoint before it"


class Saver:
    """The checkpoints of this run; `directory` None = there are none.

    The first comes early, and each waits as long as was trained until the last one, up to `every_s`: a training that
    ends young has lost at most half of its work, for a handful of writes. Time counts from where the first worker
    began, and the next writer goes on there: the time comes with the state, the last commit is on the disk. Where a
    controller chose the interval, training is slowed by no more than it says, whatever a write costs.
    """

    def __init__(
        self,
        directory: Place | None,
        writer: str,
        tell: Callable[[Saved | SaveFailed | Damaged], None],
        *,
        wall: Wall = WALL,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory, self._writer, self._tell, self._wall = directory, writer, tell, wall
        self._sleep = sleep
        self._kept = None if directory is None else open_store(directory, wall=wall)
        own = os.environ.get("SUBLET_CHECKPOINT_TIER", ANCHOR)
        self.tier = BUCKET if directory is not None and is_remote(str(directory)) else own
        self.every_s = float(os.environ.get("SUBLET_CHECKPOINT_EVERY_S", EVERY_S))
        self._most_slowdown = float(os.environ.get("SUBLET_CHECKPOINT_MOST_SLOWDOWN", math.inf))
        self._least_s = 0.0  # for that, after what the last one cost
        self.blocked_s = 0.0  # since the last report
        self._checkpoints: Checkpoints | None = None
        self._pending: Pending | None = None
        self._asked = False  # for one of now or later, and none has begun since
        self._done = 0  # samples, of the pending one
        self._committed = -1  # step
        self._began_s: float | None = None  # when training did, by our clock: anew, or from a checkpoint
        self._saved_s = 0.0  # of training, at the last that was begun
        self._worth_s = 0.0  # no sooner than that after it, for what a write takes
        self._is_new = True  # others may have saved since we last wrote
        self._failure: SubletError | None = None  # of the last that was not written

    @property
    def trained_s(self) -> float:
        """Seconds since training began, at any worker."""
        return 0.0 if self._began_s is None else self._wall.monotonic() - self._began_s

    @property
    def store(self) -> Store:
        """The store; there is one wherever a checkpoint has begun."""
        assert self._kept is not None  # noqa: S101 - a checkpoint has begun
        return self._kept

    def take_over(self, trained_s: float) -> None:
        """Another has handed us its state, after so long."""
        self._began_s = self._wall.monotonic() - trained_s

    def opened(self, generation: int | None) -> None:
        """This worker writes from now on; None = without generations."""
        if self._kept is None:
            return
        self._is_new = True
        if generation is None:
            generation = self._kept.announced()
        if self._checkpoints is None:
            keep = int(os.environ.get("SUBLET_CHECKPOINT_KEEP", KEEP))
            self._checkpoints = Checkpoints(
                self._kept, keep=keep, writer=self._writer, generation=generation, wall=self._wall
            )
            return
        try:
            self._checkpoints.advance(generation)
        except SubletError as error:
            self._complain(error, self._committed)

    def newest(self) -> LoadedCheckpoint | None:
        """The checkpoint to start from."""
        if self._checkpoints is None:
            return None
        loaded = self._checkpoints.newest()
        for path, why in self._checkpoints.skipped:
            print(f"sublet: {path} is damaged ({why}) and was passed over", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
        if loaded is not None:
            self._committed = loaded.step
        if self._checkpoints.skipped:
            self._tell_passed_over(self._checkpoints.skipped, -1 if loaded is None else loaded.step)
        return loaded

    def _tell_passed_over(self, skipped: list[tuple[Place, str]], step: int) -> None:
        """Report damaged ones; without a good one, begin at step 0 only if a user has decided that."""
        start_over = step < 0 and os.environ.get("SUBLET_START_OVER") == "1"
        if start_over and self._kept is not None:
            place = self._kept.set_aside([step_of(path) for path, _ in skipped])
            print(f"sublet: they are in {place} now; training begins at step 0, as ordered", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
            return
        paths, why = tuple(str(path) for path, _ in skipped), skipped[0][1]
        self._tell(Damaged(worker_id=self._writer, paths=paths, why=why, step=step))
        if step < 0:
            raise NoCheckpointLeft(self.directory, len(skipped), why)

    def tick(
        self, now_s: float, tree: Callable[[], dict[str, Any]], progress: Progress, world: int, *, asked: bool
    ) -> None:
        """At a step boundary of the writer: tell what has been committed, begin what is due or `asked` for.

        What is asked for while another is being written begins when that is over: it is of an earlier step.
        """
        if self.is_due(now_s, asked=asked):
            self.begin(tree(), progress, world)

    def is_due(self, now_s: float, *, asked: bool) -> bool:
        """Report commits; whether another is to begin now. The caller then begins it."""
        if self._checkpoints is None:
            return False
        self._asked |= asked
        if self._pending is not None and self._pending.done:
            self.settle()
        if self._began_s is None:
            self._began_s = now_s
        trained_s = now_s - self._began_s
        if self._is_new:
            self._is_new, age_s = False, self.store.commit_age_s()
            self._saved_s = max(self._saved_s, trained_s - age_s)
        wait_s = max(min(max(self._saved_s + FIRST_S, self._worth_s), self.every_s), self._least_s)
        due = self._pending is None and (self._asked or trained_s - self._saved_s >= wait_s)
        if due:
            self._saved_s = trained_s
        return due

    def cannot(self, step: int, why: str) -> None:
        """A checkpoint that was asked for is not written."""
        if self._checkpoints is not None:
            self._complain(CheckpointFailed(self.directory, why, hint=RANGE_HINT), step)

    def save(self, tree: dict[str, Any], progress: Progress, world: int = 1) -> None:
        """Save now, and wait until it is committed, unless this step is already."""
        if self._checkpoints is None:
            return
        if self._pending is not None:
            self.settle()
        if not self.has(progress.steps):
            self.begin(tree, progress, world)
            self.settle()

    def has(self, step: int) -> bool:
        """Whether the last commit is of this step, or there are none to be."""
        return self._checkpoints is None or self._committed == step

    def save_last(self, tree: dict[str, Any], progress: Progress, world: int = 1) -> None:
        """Save the end of training: without it nothing is finished. CheckpointFailed after some tries.

        StaleWriter at once: a newer writer has it.
        """
        self.insist(lambda: self.save(tree, progress, world), progress)

    def insist(self, save: Callable[[], object], progress: Progress) -> None:
        """As `save_last`, with another function that saves: called up to LAST_TRIES times."""
        for pause_s in (*LAST_PAUSES_S, None):
            save()
            if self.has(progress.steps):
                return
            if isinstance(self._failure, StaleWriter):
                raise self._failure
            if pause_s is not None:
                self._sleep(pause_s)
        why = f"all {progress.steps} steps are made, and what they came to cannot be kept ({self._failure})"
        why = why.partition("\n")[0].rstrip(")") + ")"
        raise CheckpointFailed(self.directory, why, hint=LAST_HINT) from self._failure

    def close(self) -> None:
        """Wait for what is being written."""
        if self._checkpoints is not None:
            if self._pending is not None:
                self.settle()
            self._checkpoints.close()
            self._checkpoints = None

    def open_joint(self, step: int) -> Joint | None:
        """A checkpoint of several writers, for `begin`; None after a failure, which has been reported."""
        if self._checkpoints is None:
            return None
        self._asked = False
        try:
            return self._checkpoints.open_joint(step)
        except SubletError as error:
            self._complain(error, step)
            return None

    def begin(self, tree: dict[str, Any], progress: Progress, world: int, joint: Joint | None = None) -> bool:
        """Copy the state, and write it in the background; False after a failure, which has been reported."""
        assert self._checkpoints is not None  # noqa: S101 - the callers have looked
        self._asked = False
        meta = {"samples_done": progress.done, "epoch": progress.epoch, "global_batch": progress.batch, "world": world}
        try:
            self._pending = self._checkpoints.save(progress.steps, tree, meta, joint=joint)
        except SubletError as error:
            self._complain(error, progress.steps)
            return False
        self._done = progress.done
        self.blocked_s += self._pending.blocked_s
        return True

    def settle(self) -> None:
        """Wait for the pending checkpoint, and report its outcome."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.wait()
        except Abandoned:
            self._asked = True  # begin it again
            return
        except SubletError as error:
            self._complain(error, pending.step)
            return
        self._committed = pending.step
        self._worth_s = WORTH * pending.seconds
        self._least_s = least_interval_s(pending.blocked_s, pending.seconds, self._most_slowdown)
        self._tell(
            Saved(
                worker_id=self._writer,
                step=pending.step,
                done=float(self._done),
                seconds=pending.seconds,
                blocked_s=pending.blocked_s,
                size_bytes=pending.size_bytes,
                tier=self.tier,
            )
        )

    def _complain(self, error: SubletError, step: int) -> None:
        self._failure = error
        print(f"sublet: a checkpoint was not written, training goes on: {error}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process
        self._tell(SaveFailed(worker_id=self._writer, step=step, why=str(error)))


async def find(saver: Saver, line: AgentLine | None, generation: int | None) -> LoadedCheckpoint | None:
    """The newest, brought to this node first where its disk is its own; LineLost if that is not known."""
    try:
        with _at_work(line):
            if line is not None and generation is not None and saver.tier == DISK:
                await line.bring(generation, BRING_S)
            return saver.newest()
    except StoreFailed as error:
        if error.lasting:
            raise
        raise LineLost(str(error)) from error  # whether there is one is not known: another worker is to ask again


@contextmanager
def _at_work(line: AgentLine | None) -> Iterator[None]:
    """Long reads are work, and no sign of a group that does not form."""
    if line is None:
        yield
        return
    before, line.script_s = line.script_s, line.wall.monotonic()
    try:
        yield
    finally:
        line.script_s = before
