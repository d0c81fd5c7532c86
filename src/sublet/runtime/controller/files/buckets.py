"""Buckets of jobs: claimed checkpoints are looked for there, and checkpoints of the controller are copied there.

A worker runs the job's own code, and its word decides when a node is given back and where a job goes on. So the bucket
of the job (`checkpoint.uri`) is asked, in a process of its own: the word counts when a whole checkpoint of that step or
of a later one is committed there. Until then the end of that worker is not heard either. Where the controller cannot
ask, workers are believed, and that is told.

Checkpoints that the controller has are copied to `checkpoint.copy`, and no GPU waits for that. It is one at a time for
each job, in a process of its own, at the interval of its tier; the last of a job that ended at once. A job that is new
here, and whose bucket has checkpoints, is held until they are here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol

from sublet.errors import SubletError
from sublet.machine.remote import is_remote
from sublet.runtime.agent.disk import Disk
from sublet.runtime.controller.inbox import Hold
from sublet.runtime.controller.memory import Context, JobRecord, JobTable, job_of
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.file_sync.buckets import CLOUDS, access_elsewhere, access_of
from sublet.wire import messages as wire
from sublet.wire.files import ANCHOR, BUCKET, Saved, SaveFailed

ANSWER_S = 20.0  # wall, for one look: so long a worker's end may be held up
BELIEVED_S = 600.0  # wall, after one that failed: no worker is held up by a store that does not answer


class LookFailed(SubletError):
    """The bucket cannot be asked from here."""


class Looking(Protocol):
    """The highest step of which a whole checkpoint is committed at a URI; -1 for none. LookFailed if not known."""

    def __call__(self, uri: str, *, access: Mapping[str, str]) -> int:
        """`access` are variables of the job, of which some may be for its bucket."""


def look_in_process(uri: str, *, access: Mapping[str, str]) -> int:
    """In a process of its own, which has no variables of the job but its keys."""
    environment = access_of(os.environ, access)
    if environment is None and (environment := access_elsewhere(os.environ, access)) is None:
        raise LookFailed("it is at an address of the job's own, where no keys of the controller's are sent")
    command = [sys.executable, "-P", "-m", "sublet.cli.work.looking", uri]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ANSWER_S, check=False)  # noqa: S603 - our own module
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookFailed(str(error)) from error
    if done.returncode:
        raise LookFailed(done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}")
    return int(json.loads(done.stdout)["step"])


@dataclass(slots=True)
class _Look:
    """At the bucket of one job."""

    held: list[tuple[str, wire.ToController]] = field(default_factory=list)  # node and what it said, in order
    asked: int = 0  # of these, when the look that is under way began
    under_way: bool = False
    outcome: int | LookFailed | None = None
    believed_until_s: float = 0.0
    told: str = ""  # why it cannot be looked at, as it was told last


class Claims:
    """Of all jobs. `hear` is told again what was held; `look` is asked aside."""

    def __init__(
        self,
        table: JobTable,
        *,
        hear: Callable[[str, wire.ToController], None],
        note: Callable[[HistoryRow], None],
        aside: Callable[[Callable[[], None]], None],
        look: Looking = look_in_process,
    ) -> None:
        self._table, self._hear, self._note, self._aside, self.look = table, hear, note, aside, look
        self._looks: dict[str, _Look] = {}
        self._passing = False

    def holds(self, node_id: str, message: wire.ToController, wall_s: float) -> bool:
        """Whether it is heard later: a claim of a checkpoint in a bucket, and the end of the worker that claimed it."""
        if self._passing:
            return False
        if isinstance(message, wire.WorkerDown):
            look = self._looks.get(job_of(message.worker_id))
            if look is None or not any(node == node_id and _by(said) == message.worker_id for node, said in look.held):
                return False
        elif isinstance(message, wire.FromWorker) and _claims(message):
            record = self._table.records.get(job_of(message.message.worker_id))
            if record is None or not is_remote(record.spec.checkpoint_dir):
                return False
            look = self._looks.setdefault(record.id, _Look())
            if wall_s < look.believed_until_s:
                return False
        else:
            return False
        look.held.append((node_id, message))
        return True

    def tick(self, wall_s: float) -> None:
        """Settle what was looked at, and look at what is new."""
        for job_id, look in list(self._looks.items()):
            record = self._table.records.get(job_id)
            if look.outcome is not None:
                outcome, look.outcome, look.under_way = look.outcome, None, False
                self._settle(look, outcome, job_id, wall_s)
            if record is None and not look.under_way:
                del self._looks[job_id]
            elif record is not None and look.held and not look.under_way:
                self._begin(look, record)

    def _begin(self, look: _Look, record: JobRecord) -> None:
        given = {**record.spec.env, **record.spec.secrets}
        access = {name: text for name, text in given.items() if name.startswith(CLOUDS)}

        def work() -> None:
            try:
                look.outcome = self.look(record.spec.checkpoint_dir, access=access)
            except LookFailed as error:
                look.outcome = error
            except Exception as error:  # noqa: BLE001 - it would be lost otherwise, and what is held stay so
                look.outcome = LookFailed(repr(error))

        look.under_way, look.asked = True, len(look.held)
        self._aside(work)

    def _settle(self, look: _Look, outcome: int | LookFailed, job_id: str, wall_s: float) -> None:
        seen, look.held = look.held[: look.asked], look.held[look.asked :]
        if isinstance(outcome, LookFailed):
            look.believed_until_s = wall_s + BELIEVED_S
            seen, look.held = [*seen, *look.held], []
            self._tell(look, str(outcome), job_id)
        while look.held and isinstance(look.held[0][1], wire.WorkerDown):
            seen.append(look.held.pop(0))  # of one of whom all is known now
        self._passing = True
        try:
            for node_id, message in seen:
                self._hear(node_id, message if isinstance(outcome, LookFailed) else _judged(message, outcome))
        finally:
            self._passing = False

    def _tell(self, look: _Look, why: str, job_id: str) -> None:
        record = self._table.records.get(job_id)
        if record is None or why == look.told:
            return
        look.told = why
        uri = record.spec.checkpoint_dir
        text = f"what its workers say is in {uri} cannot be looked at from the controller, and is believed: {why}"
        self._note(HistoryRow(kind="Alarm", job_id=job_id, text=record.hide(text)))


def _claims(message: wire.FromWorker) -> bool:
    """In whatever tier: where the job has named a bucket, nothing else outlives its nodes."""
    said = message.message
    return isinstance(said, Saved) and said.safe and not said.part


def _by(message: wire.ToController) -> str:
    return message.message.worker_id if isinstance(message, wire.FromWorker) else ""


def _judged(message: wire.ToController, newest: int) -> wire.ToController:
    """As it is, or that nothing was saved."""
    said = message.message if isinstance(message, wire.FromWorker) else None
    if not isinstance(said, Saved) or said.step <= newest:
        return message
    why = f"{said.worker_id} said so, and the bucket has no whole one" + (
        f" after step {newest}" if newest >= 0 else ""
    )
    return wire.FromWorker(message=SaveFailed(worker_id=said.worker_id, step=said.step, why=why))


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
    """Its text goes to the history."""


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
    """Of all jobs. `place` is where a job's checkpoints are; `every_s` its bucket's interval."""

    def __init__(
        self,
        context: Context,
        *,
        place: Callable[[JobRecord], str],
        every_s: Callable[[JobRecord], float],
        freed: Callable[[JobRecord], None],
        copy: Copying = copy_in_process,
    ) -> None:
        self._inbox, self._table, self._bill, self._host = context.inbox, context.table, context.bill, context.host
        self._place, self._every_s, self._freed, self._copy = place, every_s, freed, copy
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
            except Exception as error:  # noqa: BLE001 - it would be lost otherwise, and nothing be copied any more
                copy.outcome = CopyFailed(repr(error))

        copy.under_way, copy.outcome = True, None
        self._host.aside(work)

    def _settle(self, record: JobRecord, copy: _Copy, wall_s: float) -> None:
        outcome, copy.outcome, copy.under_way = copy.outcome, None, False
        if isinstance(outcome, CopyFailed):
            copy.due_s, copy.again_s = wall_s + copy.again_s, min(2.0 * copy.again_s, LONGEST_AGAIN_S)
            copy.tried = -1
            way = "brought from" if copy.brings else "copied to"
            text = f"its checkpoints are not {way} {record.spec.checkpoint_copy}, it is tried again: {outcome}"
            self._inbox.note(HistoryRow(kind="Alarm", job_id=record.id, text=record.hide(text)))
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
            saved = Saved(
                worker_id=record.id,
                step=outcome.step,
                done=record.group.done,
                seconds=outcome.seconds,
                blocked_s=0.0,
                size_bytes=outcome.size_bytes,
                tier=BUCKET,
            )
            record.tiers.saved(record.id, saved, self._bill, self._host.clock.speedup)
