"""Commands for jobs that there are: cancel, pause, resume, scale, give more money; and when they are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from sublet.domain.money import Money
from sublet.errors import Infeasible, InvalidValue, NoSuchJob, NotNow, OutOfBudget
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.memory import JobRecord
from sublet.runtime.controller.states import Ending, Hold
from sublet.runtime.controller.watch import HistoryRow, width

__all__ = ["JobCommands"]

PASSING = (Hold.NONE, Hold.BACK_OFF, Hold.BUDGET)  # ends by itself or with money: its owner's word is stronger


class JobCommands:
    """Each refuses what does not fit the job's phase; what it did is in the job's history, and durable."""

    def __init__(self, controller: Controller) -> None:
        self._inbox, self._records, self._jobs = controller.inbox, controller.records, controller.jobs
        self._bill, self._feasibility = controller.bill, controller.feasibility
        self._secret_files = controller.secret_files
        self._take_back = controller.writing()(controller.memory.take_back)  # it is on disk before it is shown

    def find(self, job_id: str) -> JobRecord:
        """All that the controller knows of a job, however long ago that was."""
        record = self._records.get(job_id) or self._take_back(job_id)
        if record is None:
            raise NoSuchJob(job_id, self._records)
        return record

    def cancel(self, job_id: str, *, now: bool) -> JobRecord:
        """End it, with a last checkpoint unless `now`; what it had saved stays. One that failed: for good."""
        record = self.find(job_id)
        self._jobs.cancel(record, now=now)
        return record

    def pause(self, job_id: str) -> JobRecord:
        """Save it and take its workers away, until its owner resumes it: neither time nor money does."""
        record = self._find_live(job_id, "pause")
        if record.paused in PASSING:  # one that is being cancelled stays so
            self._note("Paused", job_id, "held back by its owner")
            self._jobs.hold(record, Hold.OWNER)
        return record

    def resume(self, job_id: str, *, start_over: bool, secrets: Mapping[str, str] | None = None) -> JobRecord:
        """Let it go on, if its own budget lets it; with `start_over`, at step 0 if all its checkpoints are damaged.

        `secrets` take the place of those that it had.
        """
        record = self.find(job_id)
        if record.closed:
            raise NotNow(job_id, "failed, and was ended for good by 'sublet cancel'", "resume", hint="submit it anew")
        if record.outcome in (Ending.NONE, Ending.FAILED):
            self._refuse_spent_purse(record)
            self._take_secrets(record, secrets or {})
        if record.outcome is Ending.FAILED:
            self._note("Resumed", job_id, "is tried again")
            self._jobs.revive(record)
        record = self._find_live(job_id, "resume")
        if record.paused is Hold.CANCEL:
            raise NotNow(job_id, "being cancelled", "resume", hint="wait for its end, then submit it again")
        if record.paused:
            self._note("Resumed", job_id, "may go on, at step 0 if it has to" if start_over else "may go on")
            self._jobs.resume(record, start_over=start_over)
        return record

    def _take_secrets(self, record: JobRecord, given: Mapping[str, str]) -> None:
        """Refused unless all of them are here then."""
        names = list(record.spec.secrets)
        if strange := [name for name in given if name not in names]:
            allowed = f"those that {record.id} was submitted with: {', '.join(names) or 'none'}"
            raise InvalidValue("--secret", ", ".join(strange), allowed)
        kept = self._secret_files.read(record.id) or {}
        if lacking := [name for name in names if name not in {**kept, **given}]:
            how = "failed, and its secrets are deleted" if record.outcome else "held, for its secrets are not here"
            hint = f"sublet resume {record.id} " + " ".join(f"--secret {name}" for name in lacking)
            raise NotNow(record.id, how, "resume", hint=hint)
        if given:
            spec = replace(record.spec, secrets={**kept, **given})  # refused where it cannot be a variable
            self._secret_files.keep(record.id, spec.secrets)
            record.spec = record.group.spec = spec
            self._note("Secrets", record.id, f"has {', '.join(given)} anew")

    def top_up(self, job_id: str, usd: float) -> JobRecord:
        """Let it spend more; if it was held for want of money, it goes on."""
        record = self.find(job_id)
        if record.outcome is not Ending.FAILED:
            record = self._find_live(job_id, "be given more")
        purse = record.spec.purse_usd
        if purse is None:
            raise InvalidValue("purse", None, f"set when it is submitted: job {job_id} has no limit of its own")
        more = (Money.from_usd(purse) + Money.from_usd(usd)).usd
        self._note("Budget", job_id, f"may spend USD {more:g} in all from now on, USD {usd:g} more")
        left = max(0.0, more - self._spent_usd(record))  # what the planner hears of it
        self._jobs.respecify(record, replace(record.spec, purse_usd=more), left_usd=left)
        if record.paused is Hold.BUDGET:
            with contextlib.suppress(OutOfBudget, NotNow):  # too little, or something else: it stays, and says so
                return self.resume(job_id, start_over=False)
        return record

    def scale(self, job_id: str, *, low: int, high: int) -> JobRecord:
        """Other worker counts; a script that could have several workers goes on looking for its group."""
        record = self._find_live(job_id, "scale")
        sizes = tuple(size for size in record.spec.sizes if low <= size <= high)
        if record.spec.sizes and not sizes:
            allowed = f"a range with one of its sizes: {', '.join(map(str, record.spec.sizes))}"
            raise InvalidValue("workers", f"{low}..{high}", allowed)
        grouped = record.spec.torchrun or record.spec.max_workers > 1
        spec = replace(record.spec, min_workers=low, max_workers=high, sizes=sizes, torchrun=grouped)
        self._feasibility.refuse_beyond_limits(spec)
        self._note("Scaled", job_id, f"{width(low, high)} from now on")
        self._jobs.respecify(record, spec)
        return record

    def _find_live(self, job_id: str, verb: str) -> JobRecord:
        record = self.find(job_id)
        if record.id not in self._inbox.kernel.jobs:
            raise NotNow(job_id, record.outcome, verb)
        if record.refused:
            hint = f"sublet cancel {job_id}, and submit it anew"
            raise NotNow(job_id, f"held ({record.refused})", verb, hint=hint)
        return record

    def _refuse_spent_purse(self, record: JobRecord) -> None:
        if record.spec.purse_usd is None:
            return
        spent = self._spent_usd(record)
        try:
            self._feasibility.refuse_beyond_own_purse(record.id, record.spec, spent_usd=spent)
        except Infeasible as error:
            hint = str(error).partition("\n  next: ")[2]
            what = f"job {record.id} cannot go on, its own budget is spent"
            raise OutOfBudget(what, spent_usd=spent, limit_usd=record.spec.purse_usd, hint=hint) from None

    def _spent_usd(self, record: JobRecord) -> float:
        self._bill.settle(self._inbox.now_s())
        return self._bill.jobs[record.id].total.usd

    def _note(self, kind: str, job_id: str, text: str) -> None:
        self._inbox.note(HistoryRow(kind=kind, job_id=job_id, text=text))
