"""The answer of a group to the kernel's orders becomes an event, a line of history, and how its job ended."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from sublet.domain import events as news
from sublet.domain.plan import Phase
from sublet.errors import InvalidValue
from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.jobs.node_loss import NodeLosses
from sublet.runtime.controller.jobs.sizes import LearnedSizes
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.controller.states import Ending
from sublet.runtime.controller.watch import HistoryRow, gist_of
from sublet.runtime.group.failures import ending_of, is_kill
from sublet.runtime.group.protocol import GroupNews, Outcome

__all__ = ["Answers"]

TOO_WIDE_S = 3600.0  # wall, for which a width that a job could not train at is not tried again


class Answers:
    """Of the groups of all jobs."""

    def __init__(
        self, context: Context, jobs: Lifecycle, *, attempts: Attempts, losses: NodeLosses, sizes: LearnedSizes
    ) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._jobs, self._attempts, self._losses, self._sizes = jobs, attempts, losses, sizes

    def take(self, record: JobRecord, item: GroupNews) -> None:
        """One of them."""
        now_s, state = self._inbox.now_s(), self._inbox.kernel.jobs.get(record.id)
        match item.outcome:
            case Outcome.MOVED:
                record.in_vain = 0
                self._bill.settle_job(record.id, now_s)
                first = state is not None and state.phase is Phase.STARTING
                answer = news.JobStarted if first else news.JobResized
                self._inbox.queue(answer(now_s, record.id, item.generation, record.share, now_s))
                self._losses.moved(record)
                self._attempts.hold_in_place(record)
                self._jobs.save_facts(record)  # a width that was awaited is no longer
            case Outcome.STOPPED:
                self._attempts.unpin(record)  # it holds nothing that it could stay on
                self._inbox.queue(news.JobStopped(now_s, record.id, item.generation, record.share))
                self._jobs.save_facts(record)
            case Outcome.FINISHED:
                self._attempts.check_workers_met(record, self._clock.wall.monotonic())
                self._sizes.finished(record, state)
                self._end(record, Ending.FINISHED, now_s, exit_code=0)
                self._inbox.queue(news.JobFinished(now_s, record.id))
            case Outcome.FAILED:
                self._bill.book_hang(record.id, item.silent_s * self._clock.speedup)
                self._jobs.throw_away(record)
                record.error = record.hide(item.why)
                self._end(record, Ending.FAILED, now_s, exit_code=item.exit_code)
                self._inbox.queue(news.JobFailed(now_s, record.id, _summary(record.error, item.exit_code)))
            case Outcome.RESTARTED:
                self._bill.book_hang(record.id, item.silent_s * self._clock.speedup)
                why = _summary(record.hide(item.why), item.exit_code)
                what = "a worker was killed, and is started" if is_kill(item.exit_code) else "failed and starts"
                self._inbox.note(HistoryRow(kind="Restarted", job_id=record.id, text=f"{what} again: {why}"))
                if record.lost_wall_s is None:
                    record.lost_wall_s = self._clock.wall.monotonic()
                record.in_vain, record.in_vain_why = record.in_vain + 1, why
                record.failed_s = now_s
                self._jobs.save_facts(record)  # or the next controller would count the same end again
            case Outcome.NARROWED:
                self._narrow(record, item, _summary(record.hide(item.why), item.exit_code))
            case Outcome.SESSION:
                self._begin_session(record)
            case _:
                assert_never(item.outcome)

    def _begin_session(self, record: JobRecord) -> None:
        """A script that was submitted as one without a session has opened one: it is started as such, and stays so."""
        self._attempts.unpin(record)
        try:
            spec = replace(record.spec, sdk=True)
        except InvalidValue as error:
            record.blamed = f"it opens a session, which a job like this cannot have: {error}"  # it is given up for that
            return
        text = "opens a session of sublet.train: its workers start again as one group, resized without a restart"
        self._inbox.note(HistoryRow(kind="Session", job_id=record.id, text=text))
        self._jobs.respecify(record, spec)

    def _end(self, record: JobRecord, outcome: Ending, now_s: float, *, exit_code: int | None) -> None:
        if not record.outcome:
            record.outcome, record.ended_s, record.exit_code = outcome, now_s, exit_code
        self._jobs.save_facts(record)

    def _narrow(self, record: JobRecord, item: GroupNews, why: str) -> None:
        """It cannot train with so many workers: it is not planned for a while, even if its owner wants no less."""
        width, until_s = item.width, self._inbox.now_s() + TOO_WIDE_S * self._clock.speedup
        record.narrow(width, item.back_to, why, until_s)
        self._jobs.save_facts(record)
        text = f"cannot train on {width} workers, goes back to fewer and stays below {width} for an hour: {why}"
        self._inbox.note(HistoryRow(kind="Narrowed", job_id=record.id, text=text))
        self._jobs.relearn(record)

    def try_any_width(self, record: JobRecord) -> None:
        """The obstacle to a worker count may be gone by now."""
        if record.too_wide is not None and self._inbox.now_s() >= record.wide_again_s:
            record.allow_any_width()
            self._jobs.relearn(record)


def _summary(why: str, code: int | None) -> str:
    """In one line; how the process ended comes first."""
    last = gist_of(why)
    return last if code is None or ending_of(code) in last else f"{ending_of(code)}: {last}"
