"""The life of a job, as its owner, its budget and its failures make it: submitted, held, resumed, cancelled, given up.

What the kernel must know of it is told through the inbox; what the log does not tell is saved beside it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

from sublet.domain import events as news
from sublet.domain.budget import Holder, Level
from sublet.domain.events import PurseSet
from sublet.domain.job import Job
from sublet.domain.money import Money, microseconds
from sublet.domain.plan import Phase
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.jobs.factory import RecordFactory
from sublet.runtime.controller.jobs.feasibility import STOP_S
from sublet.runtime.controller.memory import Context, JobRecord, kernel_job
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store

LAST_S = 2.0  # wall, to be ended without a save: a second for that, and what may lie between two looks


class OwnBudgets:
    """Of all jobs; `carry_s`: for how long the end of its workers may be held while what they saved is carried."""

    def __init__(self, context: Context, carry_s: Callable[[JobSpec], float]) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._carry_s = carry_s

    def tell(self, record: JobRecord) -> None:
        """The kernel, of a job that has one: when it comes, is given more, or goes on."""
        if record.spec.purse_usd is None:
            return
        now_s, own = self._inbox.now_s(), Holder(Level.FILE, record.id)
        self._bill.settle_job(record.id, now_s)
        left = Money.from_usd(record.spec.purse_usd) - self._bill.jobs[record.id].total
        purses = self._inbox.kernel.budgets
        free = 0 if own not in purses.allowed else purses.allowed[own].opening  # what it was never charged
        amount = Money(max(0, left.grains + purses.spent(own, microseconds(now_s)) - free))
        self._inbox.tell(PurseSet(now_s, own, amount, None, self._clock.wall.unix()))

    def lacks(self, record: JobRecord) -> bool:
        """The kernel was not told of it: by a controller of an earlier version."""
        kernel, own = self._inbox.kernel, Holder(Level.FILE, record.id)
        lives = record.id in kernel.jobs and not record.outcome
        return lives and record.spec.purse_usd is not None and own not in kernel.budgets.allowed

    def is_spent(self, record: JobRecord) -> bool:
        """The kernel has ended the job at its last cent: it was not held in time."""
        own = self._inbox.kernel.budgets.allowed.get(Holder(Level.FILE, record.id))
        return own is not None and own.spent

    def stop_usd(self, record: JobRecord) -> float:
        """To save, to leave, and to carry what was saved, at what the job burns now."""
        return self._usd(record, STOP_S + record.write_s)

    def end_usd(self, record: JobRecord) -> float:
        """To be ended, where it did not get away in time."""
        return self._usd(record, LAST_S)

    def _usd(self, record: JobRecord, wall_s: float) -> float:
        usd_per_s = self._bill.burn_usd_per_h(record.id) * self._clock.speedup / 3600.0
        return usd_per_s * (wall_s + self._carry_s(record.spec))


log = logging.getLogger("sublet.controller")
FACTS_A_TURN = 50  # jobs whose facts are looked at without a break, at least
TURNS = 8  # in which all have been looked at


class Lifecycle:
    """Of all jobs."""

    def __init__(self, context: Context, factory: RecordFactory, store: Store, secret_files: SecretFiles) -> None:
        self._inbox, self._table, self._bill = context.inbox, context.table, context.bill
        self._clock, self._store = context.host.clock, store
        self.factory, self._secret_files = factory, secret_files
        self.budgets = OwnBudgets(context, factory.carry_s)
        self._all_stop = False
        self._unsaved: dict[str, None] = {}  # jobs whose facts wait for their turn to be saved

    # ------------------------------------------------------------------ coming and going

    def add(self, job_id: str, spec: JobSpec, key: str = "") -> JobRecord:
        """Take a job; it is on disk when this returns."""
        record = self.factory.record(job_id, spec, self._inbox.now_s())
        self._secret_files.keep(job_id, spec.secrets)
        with self._store.transaction():
            self._store.add_job(job_id, key, json.dumps(spec_to_json(spec, secrets=False)))
            self._store.change_job(job_id, facts=json.dumps(record.to_store()))
        self._table.keep(record)
        self.submit(record)
        return record

    def submit(self, record: JobRecord) -> None:
        """Let the kernel hear of it."""
        self._table.submitted.add(record.id)
        at_s = max(record.submitted_s, self._inbox.kernel.now_s)
        submitted = news.JobSubmitted(at_s, self.describe(record))
        if record.spec.purse_usd is None:
            self._inbox.tell(submitted)
        else:  # both in one commit
            self._inbox.queue(submitted)
            self.budgets.tell(record)

    def revive(self, record: JobRecord) -> None:
        """One that failed is tried once more, from where it was, with all its retries."""
        if record.id in self._inbox.kernel.jobs or record.group.workers:
            return  # it runs, or is on its way out
        old = record.group
        record.group = self.factory.record(record.id, record.spec, record.submitted_s).group
        record.group.round = old.round  # no later round may be mistaken for an earlier one
        record.group.step = min(old.step, record.checkpoint_step or 0)  # what was beyond it is lost, and billed so
        record.group.done, record.group.work = old.done, old.work
        record.outcome, record.ended_s, record.error, record.exit_code = Ending.NONE, None, "", None
        record.paused, record.forgiven, record.blamed = Hold.NONE, record.noticed + record.unnoticed, ""
        record.awaited = record.pinned = None  # it holds nothing that it could stay on
        self._table.keep(record)
        self.save_facts(record)
        self.submit(record)

    def cancel(self, record: JobRecord, *, now: bool = False) -> None:
        """It is not wanted any more: it saves and leaves as if it were paused, and is ended then; `now`, at once."""
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None:
            if record.outcome is Ending.FAILED and not record.closed:
                self._close(record)
            return
        if not now and state.phase is not Phase.WAITING:
            if record.paused is not Hold.CANCEL:
                text = "is to end: it saves first" if record.spec.sdk else "is to end"
                self._inbox.note(HistoryRow(kind="Cancelling", job_id=record.id, text=text))
                self.hold(record, Hold.CANCEL)
            return
        self.throw_away(record)
        record.outcome, record.ended_s = Ending.CANCELLED, self._inbox.now_s()
        self._inbox.tell(news.JobCancelled(self._inbox.now_s(), record.id))
        self.save_facts(record)

    def cancel_leaving(self) -> None:
        """The controller ends: jobs that were to be cancelled have left, or have had their time."""
        for record in self._table.records.values():
            if record.paused is Hold.CANCEL:
                self.cancel(record, now=True)

    def _close(self, record: JobRecord) -> None:
        """One that failed has ended for good: it cannot be resumed, and its secrets are not needed."""
        record.closed = True
        text = "has failed for good: it cannot be resumed any more"
        self._inbox.note(HistoryRow(kind="Closed", job_id=record.id, text=text))
        self.save_facts(record)
        if record.id not in self._table.live:  # else with its last worker
            self._forget_secrets(record)

    def give_up(self, record: JobRecord, why: str) -> None:
        """It has had all its retries: it saves and leaves, has failed then, and can be resumed."""
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None:
            return
        if state.phase is not Phase.WAITING:
            begun = record.paused is Hold.GIVEN_UP
            change = None if begun else self.begin_to_give_up(record, why, saves=bool(record.group.workers))
            self.save_facts(record)
            if change is not None:
                self._inbox.tell(change)
            return
        self.throw_away(record)
        record.outcome, record.ended_s, record.error = Ending.FAILED, self._inbox.now_s(), why
        self._inbox.tell(news.JobFailed(self._inbox.now_s(), record.id, why))
        self.save_facts(record)

    def begin_to_give_up(self, record: JobRecord, why: str, *, saves: bool) -> news.JobChanged:
        """It is to leave, and `saves` where a worker is left; what the kernel must hear."""
        leaves = "saves and leaves" if record.spec.sdk and saves else "leaves"
        self._inbox.note(HistoryRow(kind="GivenUp", job_id=record.id, text=f"{leaves}: {why}"))
        record.paused = Hold.GIVEN_UP
        record.note_told()
        return news.JobChanged(self._inbox.now_s(), self.describe(record))

    def throw_away(self, record: JobRecord) -> None:
        """It ends unfinished: what it has done since its last checkpoint goes with it."""
        self._bill.settle_job(record.id, self._inbox.now_s())
        lost = record.group.step - (record.checkpoint_step or 0)
        if record.spec.sdk and lost > 0:
            record.steps_lost += lost
            self._bill.book_thrown_away(record.id, lost, record.group.step)

    def stop_all(self, *, end: bool) -> None:
        """Every job saves and leaves; with `end` it has ended then. Whatever is learned from now on lets none go on."""
        self._all_stop = True
        for record in list(self._table.records.values()):
            if record.id in self._inbox.kernel.jobs:
                try:
                    if end:
                        self.cancel(record)
                    else:
                        self._inbox.tell(news.JobChanged(self._inbox.now_s(), self.describe(record)))
                except Exception:  # one job's trouble must not keep all nodes rented
                    log.exception("%s cannot be told to stop: it ends with its nodes", record.id)

    # ------------------------------------------------------------------ changes

    def hold(self, record: JobRecord, why: Hold) -> None:
        """It saves and leaves, and does not run until it is resumed."""
        record.paused = why
        self._change(record)

    def resume(self, record: JobRecord, *, start_over: bool | None = None) -> None:
        """It may go on; `start_over`: whether at step 0 if it has to, None = as was said before."""
        lacked_secrets, lacked_money = record.paused is Hold.SECRETS, record.paused is Hold.BUDGET
        record.paused = Hold.NONE
        if lacked_money:
            self.budgets.tell(record)
        if lacked_secrets:
            self.factory.hold_without_checkpoints(record)  # they were not looked for yet
        if start_over is not None:
            record.start_over = start_over
        self._change(record)

    def respecify(self, record: JobRecord, spec: JobSpec, *, left_usd: float | None = None) -> None:
        """Its owner wants something else of it, or it has shown itself as something else.

        `left_usd` is what is left of its own budget, where that is new.
        """
        if spec.sdk != record.spec.sdk:  # other machinery runs its workers, of which none is left
            old, record.group = record.group, self.factory.record(record.id, spec, record.submitted_s).group
            record.group.round, record.group.generation = old.round, old.generation
        record.spec = record.group.spec = spec
        if left_usd is not None:
            record.left_usd = left_usd
        record.allow_any_width()  # its owner knows better
        record.awaited = None
        self._change(record)
        if left_usd is not None and record.id in self._inbox.kernel.jobs:
            self.budgets.tell(record)

    def _change(self, record: JobRecord) -> None:
        with self._store.transaction():
            self._store.change_job(record.id, spec=json.dumps(spec_to_json(record.spec, secrets=False)))
            self.save_facts(record)
        if record.id in self._inbox.kernel.jobs:
            record.note_told()
            self._inbox.tell(news.JobChanged(self._inbox.now_s(), self.describe(record)))

    def relearn(self, record: JobRecord) -> None:
        """Tell the kernel what is known of the job now."""
        if record.id in self._inbox.kernel.jobs:
            record.note_told()
            self._inbox.queue(news.JobChanged(self._inbox.now_s(), self.describe(record)))
            self._inbox.wake()

    def describe(self, record: JobRecord) -> Job:
        """The job as the kernel is to know it."""
        job = kernel_job(record, self._clock.speedup)
        return replace(job, paused=True) if self._all_stop else job

    def watch_purse(self, record: JobRecord) -> bool:
        """A job's own budget: hold it back in time, so that stopping still fits in. True: it has to end at once."""
        purse, state = record.spec.purse_usd, self._inbox.kernel.jobs.get(record.id)
        if purse is None or state is None:
            return False
        self._bill.settle_job(record.id, self._inbox.now_s())
        spent = self._bill.jobs[record.id].total.usd
        if record.learn_spend(spent):
            self.relearn(record)
        ended = self.budgets.is_spent(record)
        if not (state.gpus or state.shape or (ended and not record.paused)):
            return False
        if record.paused:
            return spent + self.budgets.end_usd(record) >= purse  # it did not get away in time
        if ended or spent + self.budgets.stop_usd(record) >= purse:
            kept = f"USD {max(0.0, purse - spent):.4f} are kept back for stopping"
            text = f"has spent USD {spent:.4f} of its budget of USD {purse:g}, {kept}; it can be resumed with more"
            self._inbox.note(HistoryRow(kind="Budget", job_id=record.id, text=text))
            self.hold(record, Hold.BUDGET)
        return False

    # ------------------------------------------------------------------ what stays on disk

    def save_facts(self, record: JobRecord) -> None:
        """Facts of a job that the log does not have, if they have changed."""
        record.grains = self._bill.jobs[record.id].split()
        facts = json.dumps(record.to_store())
        if facts != record.saved:
            self._store.change_job(record.id, facts=facts)
            record.saved = facts

    def save_all_facts(self) -> None:
        """Of those that live: nothing changes any more about the others."""
        self._unsaved = dict.fromkeys(self._table.live)
        while self._unsaved:
            self.save_more_facts()

    def save_more_facts(self) -> None:
        """Of some of those whose turn it is since `save_in_turn`: agents and users wait meanwhile."""
        chosen = list(islice(self._unsaved, max(FACTS_A_TURN, len(self._table.live) // TURNS)))
        with self._store.transaction() if chosen else nullcontext():
            for job_id in chosen:
                del self._unsaved[job_id]
                if (record := self._table.live.get(job_id)) is not None:
                    self.save_facts(record)

    def save_in_turn(self) -> None:
        """It is the turn of all again; those that wait for it go first."""
        self._unsaved |= dict.fromkeys(self._table.live)

    def retire(self, record: JobRecord) -> None:
        """It has ended, and so has its last worker."""
        del self._table.live[record.id]
        if record.profile.rows:  # for the next run of the same job
            keep = asyncio.to_thread(self.factory.profiles.keep, record.spec, record.profile, self._clock.wall)
            self._inbox.spawn(keep, f"keep what {record.id} measured")
        self._forget_secrets(record)

    def _forget_secrets(self, record: JobRecord) -> None:
        """They are not needed again, if it has ended for good."""
        if (record.outcome.for_good or record.closed) and self._secret_files.has(record.id):
            forget = asyncio.to_thread(self._secret_files.forget, record.id, record.spec.secrets)
            self._inbox.spawn(forget, f"forget the secrets of {record.id}")

    async def forget_all_secrets(self, *, failed_too: bool) -> None:
        """The controller ends: of all jobs that have ended for good, and with `failed_too` of those that failed."""
        for record in self._table.records.values():
            failed = record.outcome is Ending.FAILED and (failed_too or record.closed)
            if (record.outcome.for_good or failed) and self._secret_files.has(record.id):
                await asyncio.to_thread(self._secret_files.forget, record.id, record.spec.secrets)
