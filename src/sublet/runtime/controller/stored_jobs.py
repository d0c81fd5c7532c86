"""Jobs as the store has them. One that cannot be run by the rules of today is held back; it does not stop the others.

That happens to a job that an earlier version took and this one would refuse (a million workers), or whose kind of GPU
is no longer offered. Its specification stays in the store as it is: a later version may know what to do with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sublet.errors import SubletError
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.jobs.serialize import spec_from_json
from sublet.runtime.jobs.spec import JobSpec

if TYPE_CHECKING:
    from sublet.runtime.controller.loop import Controller

__all__ = ["HELD_BY_RULES", "record_from_store"]

HELD_BY_RULES = "rules"  # what `paused` says of such a job


def record_from_store(controller: Controller, job_id: str, text: str, facts: dict[str, Any]) -> JobRecord:
    """What is known of a job; held, with the reason and an alarm, if it cannot be run."""
    submitted_s = float(facts.get("submitted_s", 0.0))
    try:
        given: dict[str, Any] = json.loads(text)
        if (secrets := controller.secret_files.read(job_id)) is not None:
            given["secrets"] = secrets
        record = controller.router.new_record(job_id, spec_from_json(given), submitted_s)
    except (SubletError, ValueError, TypeError, AttributeError) as error:
        record = controller.router.bare_record(job_id, _stand_in(job_id))
        record.submitted_s, record.refused = submitted_s, str(error).partition("\n")[0]
    record.restore(facts)
    if record.paused == HELD_BY_RULES:  # unless it still is
        record.paused = ""
    if record.refused and not record.outcome:
        record.paused = HELD_BY_RULES
        controller.note(
            HistoryRow(kind="Alarm", job_id=job_id, text=f"is held, for it cannot be run: {record.refused}")
        )
    return record


def _stand_in(job_id: str) -> JobSpec:
    """What is shown instead of a specification that says nothing."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in job_id)
    return JobSpec(name=letters.rpartition("-")[0].strip("-")[:63] or "job", argv=("false",), cwd="/")
