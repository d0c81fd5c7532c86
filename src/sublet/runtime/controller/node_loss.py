"""What a job does when it loses a node, as its owner chose (`elastic.on_node_loss`).

    continue   the survivors go on, at whatever width the policy gives them
    replace    the survivors stand and wait: for a while no plan gives the job another width than it had
    restart    all its workers start again from the last checkpoint (the group sees to that)
    fail       the survivors save and leave, and the job has failed; it can be resumed

A node that was left in time, after a notice, is not lost: nobody was on it any more.
"""

from __future__ import annotations

from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.domain.quantity import counted
from sublet.runtime.clock import Clock
from sublet.runtime.controller.attempts import Attempts
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.records import Awaited, JobRecord
from sublet.runtime.jobs.bounds import OnNodeLoss

__all__ = ["NodeLosses"]


class NodeLosses:
    """Of all jobs."""

    def __init__(self, inbox: Inbox, *, jobs: Lifecycle, bill: Bill, attempts: Attempts, clock: Clock) -> None:
        self._inbox, self._jobs, self._bill, self._attempts, self._clock = inbox, jobs, bill, attempts, clock

    def go_on_without(
        self, node_id: str, records: list[JobRecord], wall_s: float, *, cut_off: bool = False
    ) -> list[Event]:
        """A node is gone, or cut off; these have, or had, workers there. What the kernel must hear before that.

        Of one that is cut off nobody knows when it is back: whoever was to stay as it is may go on narrower at once.
        """
        first: list[Event] = []
        for record in records:
            pinned = record.pinned is not None
            self._attempts.unpin(record)
            if pinned and cut_off:
                first.append(news.JobChanged(self._inbox.now_s(), self._jobs.describe(record)))
            if any(worker.node_id == node_id for worker in record.group.workers.values()):
                first += self.lose(record, node_id)
                self._bill.settle_job(record.id, self._inbox.now_s())
                record.lost_wall_s = wall_s
            record.group.node_lost(node_id, wall_s)
        return first

    def lose(self, record: JobRecord, node_id: str) -> list[Event]:
        """A node is gone on which it had workers; what the kernel must hear before it hears of that."""
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None or record.paused or record.outcome:
            return []
        match record.spec.on_node_loss:
            case OnNodeLoss.FAIL:
                # Before the loss: or a node would be rented in place of this one, for a job that is given up.
                record.blamed = record.blamed or f"it lost {node_id}, and its elastic.on_node_loss is fail"
                survivors = any(worker.node_id != node_id for worker in record.group.workers.values())
                change = self._jobs.begin_to_give_up(record, record.blamed, saves=survivors)
                self._jobs.save_facts(record)  # with the loss, or the next controller would let it go on
                return [change]
            case OnNodeLoss.REPLACE if record.awaited is None and state.gpus:
                until_s = self._inbox.now_s() + record.spec.replace_s
                record.awaited = Awaited(workers=state.gpus, until_s=until_s)
                text = f"waits for another node in place of {node_id}, for {record.spec.replace_s:g} s at most"
                self._inbox.note(HistoryRow(kind="AwaitsNode", job_id=record.id, text=text))
                self._jobs.save_facts(record)  # with the loss, or under the next controller it would wait for ever
                return [news.JobChanged(self._inbox.now_s(), self._jobs.describe(record))]
            case _:
                pass
        return []

    def moved(self, record: JobRecord) -> None:
        """It trains in the shape of the last order; if that is as wide as it was, it waits no more."""
        if record.awaited is not None and record.group.size >= record.awaited.workers:
            self._wait_no_more(record)

    def tick(self, record: JobRecord) -> None:
        """Nobody waits for ever."""
        if record.awaited is not None and self._inbox.now_s() >= record.awaited.until_s:
            wide = counted(record.awaited.workers, "worker")
            text = f"{wide} could not be had again in time: it goes on with what there is"
            self._inbox.note(HistoryRow(kind="AwaitsNode", job_id=record.id, text=text))
            self._wait_no_more(record)

    def _wait_no_more(self, record: JobRecord) -> None:
        record.awaited = None
        self._jobs.relearn(record)
        self._jobs.save_facts(record)
