"""Checkpoints that the controller has, copied to a bucket (`checkpoint.copy`): no GPU waits for that.

One at a time for each job, in a process of its own, at the interval of its tier; the last of a job that ended at once.
A job that is new here, and whose bucket has checkpoints, is held until they are here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from sublet.errors import SubletError
from sublet.runtime.agent.disk import Disk
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.states import Hold
from sublet.runtime.controller.table import JobTable
from sublet.runtime.file_sync.access import CLOUDS, access_elsewhere, access_of
from sublet.wire.saves import ANCHOR, BUCKET, Saved

__all__ = ["CARRIED", "BucketCopies", "Copied", "CopyFailed", "Copying", "copy_in_process", "has_checkpoints"]

CARRIED = "carried:"  # before the path of what agents carried here, which is no directory of workers
AGAIN_S = 30.0  # wall, after one that failed; doubled each time up to
LONGEST_AGAIN_S = 1800.0
LIMIT_S = 6 * 3600.0  # a copy that takes longer is dead
# What is no checkpoint yet, in what agents carried here (without HEAD, parts are none) and in a directory of workers.
OF_CARRIED, OF_DIRECTORY = ("brought", "parts"), ("LOCK", "fence", "staging")
NO_KEYS = (
    "it is at an address of the job's own, where no keys of the controller's are sent: give AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY as secrets of the job"
)


def has_checkpoints(place: str, disk: Disk) -> bool:
    """Whether a job finds something to go on from; what a copy to here that was cut short has left is nothing."""
    folder = place.removeprefix(CARRIED)
    left = OF_CARRIED if place.startswith(CARRIED) else OF_DIRECTORY
    for path in disk.below(folder):
        with contextlib.suppress(OSError):  # it has gone
            if PurePath(path).relative_to(folder).parts[0] not in left and disk.facts(path, follow=False).size_bytes:
                return True
    return False


class CopyFailed(SubletError):
    """What it says goes to the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The newest step, and what it took; -1 = there was none."""

    step: int
    size_bytes: int
    seconds: float


class Copying(Protocol):
    """From a path or URI to another, waiting until it is done. CopyFailed if it is not."""

    def __call__(self, source: str, target: str, *, keep: int, access: Mapping[str, str]) -> Copied:
        """`access` are variables of the job, of which some may be for its bucket."""


def copy_in_process(source: str, target: str, *, keep: int, access: Mapping[str, str]) -> Copied:
    """In a process of its own, which has no variables of the job but its keys."""
    command = [sys.executable, "-P", "-m", "sublet.cli.work.copying", source, target, str(keep)]
    environment = access_of(os.environ, access)
    if environment is None and (environment := access_elsewhere(os.environ, access)) is None:
        raise CopyFailed(NO_KEYS)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)  # noqa: S603 - our own module
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyFailed(str(error)) from error
    if done.returncode:
        raise CopyFailed(done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}")
    return Copied(**json.loads(done.stdout))


@dataclass(slots=True)
class _Copy:
    """Of one job: what is under way, and when the next may begin."""

    under_way: bool = False
    brings: bool = False  # from the bucket
    tried: int = -1  # the step that the controller had then
    outcome: Copied | CopyFailed | None = None
    due_s: float = 0.0
    again_s: float = AGAIN_S


class BucketCopies:
    """Of all jobs. `place` is where a job's checkpoints are; `every_s` its bucket's interval; `saved` hears of each."""

    def __init__(
        self,
        table: JobTable,
        *,
        place: Callable[[JobRecord], str],
        every_s: Callable[[JobRecord], float],
        saved: Callable[[JobRecord, Saved], None],
        freed: Callable[[JobRecord], None],
        alarm: Callable[[str, str], None],
        aside: Callable[[Callable[[], None]], None],
        copy: Copying = copy_in_process,
    ) -> None:
        self._table, self._place, self._every_s, self._saved, self._freed = table, place, every_s, saved, freed
        self._alarm, self._aside, self._copy = alarm, aside, copy
        self._copies: dict[str, _Copy] = {}

    def tick(self, wall_s: float) -> None:
        """Settle what has ended, and begin what is due."""
        for record in self._table.records.values():
            if not record.spec.checkpoint_copy:
                continue
            copy = self._copies.setdefault(record.id, _Copy())
            if copy.outcome is not None:
                self._settle(record, copy, wall_s)
            if not copy.under_way and self._is_due(record, copy, wall_s):
                self._begin(record, copy)

    def _is_due(self, record: JobRecord, copy: _Copy, wall_s: float) -> bool:
        if record.paused is Hold.COPY:
            return wall_s >= copy.due_s
        new = record.tiers.of(ANCHOR).step > max(record.tiers.of(BUCKET).step, copy.tried)
        return new and (wall_s >= copy.due_s or bool(record.outcome))  # what is left of it is copied at once

    def _begin(self, record: JobRecord, copy: _Copy) -> None:
        here, bucket = self._place(record), record.spec.checkpoint_copy
        copy.brings, copy.tried = record.paused is Hold.COPY, record.tiers.of(ANCHOR).step
        source, target = (bucket, here) if copy.brings else (here, bucket)
        keep = record.spec.checkpoint_keep
        given = {**record.spec.env, **record.spec.secrets}
        access = {name: text for name, text in given.items() if name.startswith(CLOUDS)}

        def work() -> None:
            try:
                copy.outcome = self._copy(source, target, keep=keep, access=access)
            except CopyFailed as error:
                copy.outcome = error
            except Exception as error:  # noqa: BLE001 - nobody else would hear of it, and nothing be copied any more
                copy.outcome = CopyFailed(repr(error))

        copy.under_way, copy.outcome = True, None
        self._aside(work)

    def _settle(self, record: JobRecord, copy: _Copy, wall_s: float) -> None:
        outcome, copy.outcome, copy.under_way = copy.outcome, None, False
        if isinstance(outcome, CopyFailed):
            copy.due_s, copy.again_s = wall_s + copy.again_s, min(2.0 * copy.again_s, LONGEST_AGAIN_S)
            copy.tried = -1
            way = "brought from" if copy.brings else "copied to"
            text = f"its checkpoints are not {way} {record.spec.checkpoint_copy}, it is tried again: {outcome}"
            self._alarm(record.id, record.hide(text))
            return
        assert outcome is not None  # noqa: S101 - the caller has looked
        copy.again_s = AGAIN_S
        if copy.brings:
            if outcome.step >= 0:
                record.checkpoint_step = outcome.step
                record.tiers.found(outcome.step)
            if record.paused is Hold.COPY:  # unless its owner has decided otherwise meanwhile
                record.paused = Hold.NONE
                self._freed(record)
            return
        copy.due_s = wall_s + self._every_s(record)
        if outcome.step >= 0:
            self._saved(
                record,
                Saved(
                    worker_id=record.id,
                    step=outcome.step,
                    done=record.group.done,
                    seconds=outcome.seconds,
                    blocked_s=0.0,
                    size_bytes=outcome.size_bytes,
                    tier=BUCKET,
                ),
            )
