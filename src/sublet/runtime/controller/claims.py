"""What workers say they saved in a bucket, looked for there before it counts.

A worker runs the job's own code, and its word decides when a node is given back and where a job goes on. So the bucket
of the job (`checkpoint.uri`) is asked, in a process of its own: the word counts when a whole checkpoint of that step or
of a later one is committed there. Until then the end of that worker is not heard either. Where the controller cannot
ask, workers are believed, and that is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sublet.errors import SubletError
from sublet.machine.remote import is_remote
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.table import JobTable
from sublet.runtime.controller.vouching import job_of
from sublet.runtime.file_sync.access import CLOUDS, access_elsewhere, access_of
from sublet.wire import messages as wire
from sublet.wire.saves import Saved, SaveFailed

__all__ = ["BELIEVED_S", "Claims", "LookFailed", "Looking", "look_in_process"]

ANSWER_S = 20.0  # wall, for one look: so long a worker's end may be held up
BELIEVED_S = 600.0  # wall, after one that failed: nobody is held up by a store that does not answer


class LookFailed(SubletError):
    """The bucket cannot be asked from here."""


class Looking(Protocol):
    """The highest step of which a whole checkpoint is committed at a URI; -1 for none. LookFailed if nobody knows."""

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
    told: str = ""  # why nobody can look, as it was told last


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
        """Whether it is heard later: what is said to be in a bucket, and the end of whoever said so."""
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
            except Exception as error:  # noqa: BLE001 - nobody else would hear of it, and what is held stay so
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
