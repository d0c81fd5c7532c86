"""Jobs as the store has them. One that cannot be run by the rules of today is held back; it does not stop the others.

That happens to a job that an earlier version took and this one would refuse (a million workers), or whose kind of GPU
is no longer offered. Its specification stays in the store as it is: a later version may know what to do with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sublet.errors import SubletError
from sublet.runtime.controller.factory import RecordFactory
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.states import Hold
from sublet.runtime.jobs.serialize import spec_from_json
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store

__all__ = ["StoredJobs", "needs_secrets"]

PASSING = (Hold.NONE, Hold.BACK_OFF, Hold.COPY)  # it would run by and by


def needs_secrets(record: JobRecord) -> str:
    """What its owner is to do, in a sentence."""
    names = " ".join(f"--secret {name}" for name in record.spec.secrets)
    return f"needs its secrets again, which are in no backup; next: sublet resume {record.id} {names}"


class StoredJobs:
    """Those of one state directory."""

    def __init__(self, inbox: Inbox, *, store: Store, secret_files: SecretFiles, factory: RecordFactory) -> None:
        self._inbox, self._store, self._secret_files, self._factory = inbox, store, secret_files, factory

    def read(self) -> Iterator[JobRecord]:
        """What is known of each; held, with the reason and an alarm, if it cannot be run."""
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
    """What is shown instead of a specification that says nothing.

    Its workers may still run, so it is of the same kind (`sdk`), or their end would be misread; and whatever becomes of
    them, nobody knows how often its owner lets it fail.
    """
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in job_id)
    return JobSpec(
        name=letters.rpartition("-")[0].strip("-")[:63] or "job",
        argv=("false",),
        cwd="/",
        sdk=sdk,
        retries=Retries(user=None, infra=None),
    )
