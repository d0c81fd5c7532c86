"""The jobs of a controller: those at hand, those that live, those that the kernel has heard of, and those in the store.

A stored job that cannot be run by the rules of today is held; it does not stop the others. That happens to a job that
an earlier version took and this one would refuse (a million workers), or whose kind of GPU is no longer offered. Its
specification stays in the store as it is: a later version may know what to do with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from sublet.domain.plan import Phase
from sublet.errors import SubletError
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.inbox import Ending, Hold, Inbox
from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.controller.money import Bill
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.jobs.spec import JobSpec, Retries, spec_from_json
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store


def job_of(worker_id: str) -> str:
    """Workers are called JOB.ROUND.NUMBER."""
    return worker_id.rsplit(".", 2)[0]


@dataclass(frozen=True, slots=True)
class JobTable:
    """By id."""

    records: dict[str, JobRecord] = field(default_factory=dict)  # all but those on the shelf
    live: dict[str, JobRecord] = field(default_factory=dict)  # those that have not ended, or whose workers have not
    submitted: set[str] = field(default_factory=set)  # jobs that the kernel has heard of
    named: dict[str, dict[str, None]] = field(default_factory=dict)  # name -> ids of the records, the oldest first

    def keep(self, record: JobRecord) -> None:
        """Know of a job from now on."""
        self.live[record.id] = record
        self.lay_out(record)

    def lay_out(self, record: JobRecord) -> None:
        """Have a job at hand that has ended, or lives."""
        self.records[record.id] = record
        self.named.setdefault(record.spec.name, {})[record.id] = None

    def put_away(self, record: JobRecord) -> None:
        """It is on the shelf."""
        del self.records[record.id]
        del self.named[record.spec.name][record.id]
        if not self.named[record.spec.name]:
            del self.named[record.spec.name]

    def at_hand(self, job_ids: Iterable[str]) -> list[JobRecord]:
        """Of these jobs; one that is on the shelf has no workers, wherever it had some."""
        return [self.records[job_id] for job_id in job_ids if job_id in self.records]

    def bill(self, kernel: Kernel) -> Bill:
        """Of these jobs."""
        asked = self.trains, self.has_session, self.is_doubtful, self.gpus_at_work, self.unsure_grains
        return Bill(kernel, *asked)

    def trains(self, job_id: str) -> bool:
        """It makes steps, as its workers say, and they are wanted."""
        record = self.records.get(job_id)
        return record is not None and record.group.training and record.outcome is not Ending.CANCELLED

    def gpus_at_work(self, job_id: str) -> int | None:
        """GPUs on which it makes steps; None = on all that it holds."""
        record = self.records.get(job_id)
        return None if record is None else record.group.working

    def has_session(self, job_id: str) -> bool:
        """It says itself how far it is and what it lost; a script without a session does not."""
        record = self.records.get(job_id)
        return record is None or record.spec.sdk

    def kept(self, job_id: str) -> str:
        """The rest of one that was given up, where no worker was left to save; "" where all of it is."""
        record = self.records.get(job_id)
        if record is None or not record.blamed or record.group.step <= (record.checkpoint_step or 0):
            return ""
        return f"the checkpoint of step {record.checkpoint_step}" if record.checkpoint_step else "nothing"

    def grid(self, job_id: str) -> str:
        """How its workers sit, copies x parts; "" where its model is not cut, or no worker sits."""
        record = self.records.get(job_id)
        return "" if record is None or not record.group.size else str(record.group.places.formed or "")

    def checkpoint_terms(self, job_id: str) -> tuple[int, int] | None:
        """How many checkpoints it keeps, and its newest generation; None for a job that is not at hand."""
        record = self.records.get(job_id)
        return None if record is None else (max(1, record.spec.checkpoint_keep), record.group.round.number)

    def is_doubtful(self, job_id: str) -> bool:
        """It has ended, and what that is worth is not known."""
        record = self.records.get(job_id)
        if record is None:
            return False
        return bool(record.apart) if record.outcome is Ending.FINISHED else record.may_be_kept

    def unsure_grains(self, job_id: str) -> int:
        """Of its starts before the present one."""
        record = self.records.get(job_id)
        return 0 if record is None else sum(start.grains for start in record.unsure)


PASSING = (Hold.NONE, Hold.BACK_OFF, Hold.COPY)  # it would run by and by


def needs_secrets(record: JobRecord) -> str:
    """The next step of its owner, in a sentence."""
    names = " ".join(f"--secret {name}" for name in record.spec.secrets)
    return f"needs its secrets again, which are in no backup; next: sublet resume {record.id} {names}"


class MakesRecords(Protocol):
    """The factory of records, as far as stored jobs need it."""

    def record(self, job_id: str, spec: JobSpec, submitted_s: float) -> JobRecord:
        """A job with its workers-to-be."""

    def bare_record(self, job_id: str, spec: JobSpec) -> JobRecord:
        """A job that will never run."""

    def hold_without_checkpoints(self, record: JobRecord) -> None:
        """A job whose checkpoints may be in a bucket waits for them."""


class StoredJobs:
    """Those of one state directory."""

    def __init__(self, inbox: Inbox, store: Store, secret_files: SecretFiles, factory: MakesRecords) -> None:
        self._inbox, self._store, self._secret_files, self._factory = inbox, store, secret_files, factory

    def read(self) -> Iterator[JobRecord]:
        """The record of each; held, with the reason and an alarm, if it cannot be run."""
        for job_id, text, facts in self._store.jobs():
            yield self._record(job_id, text, facts)

    def read_one(self, job_id: str) -> JobRecord:
        """The same, of one that is among them."""
        return next(self._record(*row) for row in self._store.jobs(job_id))

    def _record(self, job_id: str, text: str, facts: dict[str, Any]) -> JobRecord:
        submitted_s, secrets = float(facts.get("submitted_s", 0.0)), None
        try:
            given: dict[str, Any] = json.loads(text)
            if (secrets := self._secret_files.read(job_id)) is not None:
                given["secrets"] = secrets
            record = self._factory.record(job_id, spec_from_json(given), submitted_s)
        except (SubletError, ValueError, TypeError, AttributeError) as error:
            record = self._factory.bare_record(job_id, _stand_in(job_id, sdk=facts.get("sdk", True) is True))
            record.group.barred = True
            record.submitted_s, record.refused = submitted_s, str(error).partition("\n")[0]
        record.restore(facts)
        asked_for = record.paused is Hold.SECRETS
        if record.paused in (Hold.RULES, Hold.SECRETS):  # unless it still is
            record.paused = Hold.NONE
        if not record.refused and record.paused in (Hold.NONE, Hold.COPY):
            record.paused = Hold.NONE
            self._factory.hold_without_checkpoints(record)
        if record.spec.secrets and secrets is None and not record.outcome and record.paused in PASSING:
            record.paused = Hold.SECRETS
            if not asked_for:
                self._inbox.note(HistoryRow(kind="Alarm", job_id=job_id, text=needs_secrets(record)))
        if record.refused and not record.outcome:
            record.paused = Hold.RULES
            text = f"is held, for it cannot be run: {record.refused}"
            self._inbox.note(HistoryRow(kind="Alarm", job_id=job_id, text=text))
        return record


def _stand_in(job_id: str, *, sdk: bool) -> JobSpec:
    """A stand-in for a specification that cannot be read.

    Its workers may still run, so it is of the same kind (`sdk`), or their end would be misread; and whatever becomes of
    them, how often its owner lets it fail is not known.
    """
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in job_id)
    return JobSpec(
        name=letters.rpartition("-")[0].strip("-")[:63] or "job",
        argv=("false",),
        cwd="/",
        sdk=sdk,
        retries=Retries(user=None, infra=None),
    )


@dataclass(frozen=True, slots=True)
class JobsAtWork:
    """`sublet.runtime.providers.protocol.AtWork`, of all jobs at hand."""

    table: JobTable
    kernel: Callable[[], Kernel]

    def share(self) -> float:
        """Each job counts alike, however fast it is; of one that has ended nothing is left to do."""
        records = self.table.records.values()
        done = sum(record.share if record.ended_s is None else 1.0 for record in records)
        return done / len(records) if records else 0.0

    def nodes(self) -> Collection[str]:
        """On which jobs train."""
        kernel = self.kernel()
        training = (job_id for job_id, state in kernel.jobs.items() if state.phase is Phase.RUNNING)
        return {node_id for job_id in training for node_id, _ in kernel.tenancy.placement.get(job_id, ())}
