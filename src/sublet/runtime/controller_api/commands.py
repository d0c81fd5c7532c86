"""What users do with jobs: submit, cancel, pause, resume, scale, give more money; and what is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from sublet.domain.money import Money
from sublet.errors import Infeasible, InvalidValue, NoSuchJob, NotNow, OutOfBudget
from sublet.runtime.controller.history import HistoryRow, width
from sublet.runtime.controller.loop import Controller
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.states import Ending, Hold
from sublet.runtime.controller_api.expecting import expected_of
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["JobCommands"]


class JobCommands:
    """Each refuses what does not fit the job's phase; what it did is in the job's history, and durable."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def find(self, job_id: str) -> JobRecord:
        """What the controller knows of a job."""
        record = self._controller.records.get(job_id)
        if record is None:
            raise NoSuchJob(job_id, self._controller.records)
        return record

    def submit(self, spec: JobSpec, key: str) -> Submitted:
        """Take a job; the same `key` again gives the same job."""
        controller = self._controller
        if key and (known := controller.store.job_by_key(key)) is not None:
            return {"job_id": known[0], "name": controller.records[known[0]].spec.name}
        if controller.stopping:
            raise NotNow(spec.name, "brought to a controller that is stopping", "be submitted", hint="sublet up")
        warning = self.refuse_impossible(spec)
        expected = expected_of(controller, spec)
        number = 1 + sum(record.spec.name == spec.name for record in controller.records.values())
        record = controller.add(f"{spec.name}-{number}", spec, key)
        if warning:
            self._note("Warning", record.id, warning)
        return {"job_id": record.id, "name": spec.name, "expected": expected, "warning": warning}

    def refuse_impossible(self, spec: JobSpec) -> str:
        """What can never run is refused; what may not is warned of."""
        bounds.absolute("workdir", spec.cwd)
        bounds.absolute("checkpoint.uri", spec.checkpoint_dir)
        self._controller.feasibility.refuse_beyond_limits(spec)
        self._controller.feasibility.refuse_beyond_own_purse(spec.name, spec)
        return self._controller.feasibility.refuse_late(spec)

    def cancel(self, job_id: str, *, now: bool) -> JobRecord:
        """End it, with a last checkpoint unless `now`; what it had saved stays. One that failed: for good."""
        record = self.find(job_id)
        self._controller.jobs.cancel(record, now=now)
        return record

    def pause(self, job_id: str) -> JobRecord:
        """Save it and take its workers away."""
        record = self._find_live(job_id, "pause")
        if not record.paused:  # one that is being cancelled stays so
            self._note("Paused", job_id, "held back by its owner")
            self._controller.jobs.hold(record, Hold.OWNER)
        return record

    def resume(self, job_id: str, *, start_over: bool) -> JobRecord:
        """Let it go on, if its own budget lets it; with `start_over`, at step 0 if all its checkpoints are damaged."""
        record = self.find(job_id)
        if record.closed:
            raise NotNow(job_id, "failed, and was ended for good by 'sublet cancel'", "resume", hint="submit it anew")
        if record.outcome in (Ending.NONE, Ending.FAILED):
            self._refuse_spent_purse(record)
        if record.outcome is Ending.FAILED:
            if record.spec.secrets and not self._controller.secret_files.has(job_id):
                raise NotNow(job_id, "failed, and its secrets are deleted", "resume", hint="submit it anew")
            self._note("Resumed", job_id, "is tried again")
            self._controller.jobs.revive(record)
        record = self._find_live(job_id, "resume")
        if record.paused is Hold.CANCEL:
            raise NotNow(job_id, "being cancelled", "resume", hint="wait for its end, then submit it again")
        if record.paused:
            self._note("Resumed", job_id, "may go on, at step 0 if it has to" if start_over else "may go on")
            self._controller.jobs.resume(record, start_over=start_over)
        return record

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
        self._controller.jobs.respecify(record, replace(record.spec, purse_usd=more), left_usd=left)
        if record.paused is Hold.BUDGET:
            with contextlib.suppress(OutOfBudget):  # still too little: it stays where it is, and says so
                return self.resume(job_id, start_over=False)
        return record

    def scale(self, job_id: str, *, low: int, high: int) -> JobRecord:
        """Other widths."""
        record = self._find_live(job_id, "scale")
        sizes = tuple(size for size in record.spec.sizes if low <= size <= high)
        if record.spec.sizes and not sizes:
            allowed = f"a range with one of its sizes: {', '.join(map(str, record.spec.sizes))}"
            raise InvalidValue("workers", f"{low}..{high}", allowed)
        spec = replace(record.spec, min_workers=low, max_workers=high, sizes=sizes)
        self._controller.feasibility.refuse_beyond_limits(spec)
        self._note("Scaled", job_id, f"{width(low, high)} from now on")
        self._controller.jobs.respecify(record, spec)
        return record

    def _find_live(self, job_id: str, verb: str) -> JobRecord:
        record = self.find(job_id)
        if record.id not in self._controller.kernel.jobs:
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
            self._controller.feasibility.refuse_beyond_own_purse(record.id, record.spec, spent_usd=spent)
        except Infeasible as error:
            hint = str(error).partition("\n  next: ")[2]
            what = f"job {record.id} cannot go on, its own budget is spent"
            raise OutOfBudget(what, spent_usd=spent, limit_usd=record.spec.purse_usd, hint=hint) from None

    def _spent_usd(self, record: JobRecord) -> float:
        self._controller.bill.settle(self._controller.now_s())
        return self._controller.bill.jobs[record.id].total.usd

    def _note(self, kind: str, job_id: str, text: str) -> None:
        self._controller.note(HistoryRow(kind=kind, job_id=job_id, text=text))
